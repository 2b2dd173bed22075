"""What becomes of a member that starts, by the kind of store that it starts with: beside a leader that lives, and together
with others that nobody leads yet. Real processes, a chain with an etcd and a standby without.

    none     there is no data directory        older    of this cluster, of an earlier clean stop
    empty    of a member that never belonged   theirs   of another cluster
    clean    of this cluster, the last stop    alone    of a broker that stood alone, with a message
    dirty    of this cluster, killed

A cluster lives once (`Past`): it is stopped, started, stopped, started and killed, and its directories and etcd's are kept
from each of these moments. A row of a table puts together what it needs from there, so rows know nothing of one another.

With an etcd whoever must wait goes on by itself when those that it waits for are there (`docs/cluster.md`, "After a total
crash"); without one an operator says who leads.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers.broker import BrokerProcess
from helpers.etcd import PROGRAM
from system.cluster.cluster import (
    PERSISTENT,
    Cluster,
    Publisher,
    Said,
    connect,
    drained,
    fresh,
    judge,
    wait_until,
)
from system.cluster.test_external import External, store

from tidemark.cli.trial import HOST, Place, free_ports

pytestmark = pytest.mark.timeout(180)

SETTINGS = {
    "cluster.backup_timeout_ms": "1000",
    "store.segment_bytes": f"{4 << 20}",
    "store.compact_quiet_ms": "600000",  # what was rewritten cannot be gone on from
}
ROLES = ("leader", "heir", "third")
QUEUES = ("first", "second", "third")
"""Filled before the first stop, before the second, and before the crash."""


# Stores ------------------------------------------------------------------------------------------------------------------


def copy(source: Path, target: Path) -> None:
    """A directory as it is, with the holes of its files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def status(directory: Path) -> dict[str, Any]:
    """What `tidemark store status` says."""
    return store("status", "--json", str(directory)).status


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of brokers that are not of this cluster, by kind."""
    base = tmp_path_factory.mktemp("strangers")
    other = External(base / "other", nodes=1, settings=SETTINGS)
    data = other.trial.data("n1")
    try:
        other.start()
        other.stop("n1")
        copy(data, base / "empty")

        other.start().must("n1", "promote")
        other.declare("theirs")
        with Publisher(other, "theirs") as publisher:
            publisher.await_more(10)
        other.kill("n1")
        copy(data, base / "theirs-dirty")

        other.start().must("n1", "promote")
        other.stop("n1")
        copy(data, base / "theirs")
    finally:
        other.close()

    broker = BrokerProcess(base / "alone").start()
    try:
        with connect([broker.address]) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("alone", durable=True)
            channel.basic_publish("", "alone", b"1", PERSISTENT)
        broker.stop()
    finally:
        broker.close()
    return base


@dataclass
class Moment:
    """When everything was down, and what was kept."""

    directory: Path
    roles: dict[str, str]
    """Role → member. The first two were ready at the end."""
    queues: tuple[str, ...]
    """What had been filled."""


class Past:
    """A cluster of three, and what it was."""

    def __init__(self, cluster: Cluster, directory: Path, strangers: Path) -> None:
        self.cluster = cluster
        self.published: dict[str, Publisher] = {}
        self.moments: dict[str, Moment] = {}
        self._directory = directory
        self._strangers = strangers

    def live(self) -> Past:
        """Two clean stops and a crash, in which the third member had been left out and the other two confirmed more."""
        self.begin("n1")
        for moment, queue in (("older", "first"), ("stopped", "second")):
            roles = self._roles()
            self.cluster.declare(queue)
            with Publisher(self.cluster, queue) as publisher:
                publisher.await_more(30)
            self.published[queue] = publisher
            self.cluster.must(roles["leader"], "shutdown")
            self._await_end()
            self._keep(moment, roles)
            self.begin("n1")

        roles = self._roles()
        self.cluster.declare("third")
        with Publisher(self.cluster, "third", first=(roles["leader"],)) as publisher:
            publisher.await_more(20)
            self.cluster.kill(roles["third"])
            publisher.await_more(20)
            self._await_ready(2)
            publisher.await_more(1)
            self.cluster.kill(roles["leader"], roles["heir"])
        self.published["third"] = publisher
        self._keep("crashed", roles)
        return self

    def begin(self, leader: str) -> None:
        """All three are started, and lead and follow."""
        if isinstance(self.cluster, External):
            self.cluster.start().must(leader, "promote")
        else:
            self.cluster.trial.up()
        self.cluster.trial.wait_whole()

    def at(self, moment: str, stores: str = "") -> Cluster:
        """Nothing runs but etcd, and all is as it was at this moment, with these stores of the three members, by role. Of no
        moment: etcd holds nothing."""
        self.end()
        for name in self.cluster.names:
            shutil.rmtree(self.cluster.trial.data(name), ignore_errors=True)
            self.cluster.trial.log(name).unlink(missing_ok=True)
        for role, kind in zip(ROLES, stores.split(), strict=False):
            name = self.role(moment, role)
            self.put(name, name, kind, moment)
        if not stores:
            for name in self.cluster.names:
                self.put(name, name, "as it was", moment)
        etcd = self.cluster.trial.etcd
        if etcd is not None:
            shutil.rmtree(etcd.directory / "etcd", ignore_errors=True)
            if moment:
                copy(self.moments[moment].directory / "etcd", etcd.directory / "etcd")
            etcd.start()
            assert etcd.process is not None
            self.cluster.trial.processes["etcd"] = etcd.process
        return self.cluster

    def put(self, name: str, whose: str, kind: str, moment: str) -> None:
        """Let a member have a store of this kind."""
        data = self.cluster.trial.data(name)
        if kind in ("clean", "dirty", "as it was"):
            copy(self.moments[moment].directory / whose, data)
            assert kind == "as it was" or status(data)["state"] == kind
        elif kind == "older":
            copy(self.moments["older"].directory / whose, data)
        elif kind != "none":
            copy(self._strangers / kind, data)

    def role(self, moment: str, role: str) -> str:
        return self.moments[moment].roles[role] if moment else self.cluster.names[ROLES.index(role)]

    def end(self) -> None:
        """All processes end at once, those of members that came later, too."""
        self.cluster.kill(*(name for name in self.cluster.trial.processes if name != "etcd"))
        for name in [name for name in self.cluster.trial.members if name not in self.cluster.names]:
            del self.cluster.trial.members[name]
            self.cluster.trial.processes.pop(name, None)
        self.cluster.trial.save()
        if self.cluster.trial.etcd is not None:
            self.cluster.trial.etcd.kill()

    def check(self, moment: str, *lost: str) -> None:
        """Everything that was confirmed until then is there, in order; of queues that are lost, a beginning of it."""
        leader = self.cluster.leader
        for queue in self.moments[moment].queues:
            publisher = self.published[queue]
            if queue in lost:
                if queue in self.cluster.queues(leader):
                    found = drained(self.cluster, queue, leader)
                    assert found == publisher.confirmed[: len(found)], f"{queue} has something else"
                    assert len(found) < len(publisher.confirmed), f"{queue} is not lost"
            else:
                judge(publisher, drained(self.cluster, queue, leader))

    def _roles(self) -> dict[str, str]:
        return dict(zip(ROLES, self._await_ready(3), strict=True))

    def _await_ready(self, count: int) -> list[str]:
        """Who is ready when so many are, the leader first."""
        found: list[str] = []

        def ready() -> bool:
            found[:] = self.cluster.status(self.cluster.leader)["ready"]
            return len(found) == count

        wait_until(f"{count} are ready", ready)
        return found

    def _await_end(self) -> None:
        wait_until("all have ended", lambda: set(self.cluster.states().values()) == {"down"})

    def _keep(self, moment: str, roles: dict[str, str]) -> None:
        kept = self._directory / moment
        etcd = self.cluster.trial.etcd
        if etcd is not None:
            etcd.kill()
            copy(etcd.directory / "etcd", kept / "etcd")
            for spare in (kept / "etcd").rglob("*.tmp"):
                spare.unlink()
        for name in self.cluster.names:
            copy(self.cluster.trial.data(name), kept / name)
        self.moments[moment] = Moment(kept, roles, tuple(self.published))


@pytest.fixture(scope="module", params=["etcd", "external"])
def past(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, strangers: Path
) -> Iterator[Past]:
    if request.param == "etcd" and shutil.which(PROGRAM) is None:
        assert not os.environ.get("CI"), "etcd is missing: apt-get install etcd-server"
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    base = tmp_path_factory.mktemp(f"starts-{request.param}")
    cluster: Cluster
    if request.param == "etcd":
        cluster = Cluster(base / "cluster", "chain", settings=SETTINGS)
    else:
        cluster = External(base / "cluster", "standby", settings=SETTINGS)
    found = Past(cluster, base / "kept", strangers)
    try:
        yield found.live()
    finally:
        cluster.close()


@pytest.fixture(autouse=True)
def logs(request: pytest.FixtureRequest, past: Past) -> Iterator[None]:
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        for name in past.cluster.trial.members:
            if past.cluster.trial.log(name).exists():
                print(f"--- {name}", *past.cluster.log(name).splitlines()[-40:], sep="\n")


def of_provider(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("past", [name], indirect=True)


def await_words(cluster: Cluster, name: str, pattern: str) -> None:
    """Wait until a member has said this of its state."""
    words = re.compile(f'state of the member +state=joining why="{pattern}')
    try:
        wait_until("", lambda: words.search(cluster.log(name)))
    except AssertionError:
        problem = f"{name} does not say {pattern!r} but {cluster.status(name)['why']!r}"
        raise AssertionError(problem) from None


# Beside a leader that lives ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """What became of one."""

    state: str
    why: str
    log: str


JOINS = ("none", "empty", "clean", "older", "dirty")
REFUSED = ("theirs", "theirs-dirty", "alone")
BELONGS = (
    r"it belongs to cluster \w{32}, and .*n1.* belong to \w{32}: start whichever is wrong with the right data"
)


@pytest.fixture(scope="module")
def joined(past: Past) -> dict[str, Joined]:
    """A leader is under load, and one member with each kind of store starts, all at once. What was of this cluster was the
    third member's, which had been left out before the crash."""
    cluster, moment = past.at("crashed"), past.moments["crashed"]
    past.begin(moment.roles["leader"])
    ports = iter(free_ports(3 * len(JOINS + REFUSED)))
    for kind in JOINS + REFUSED:
        cluster.trial.members[kind] = Place(*(f"{HOST}:{next(ports)}" for _ in range(3)))
        shutil.rmtree(cluster.trial.data(kind), ignore_errors=True)
        past.put(kind, moment.roles["third"], kind, "stopped" if kind == "clean" else "crashed")
    cluster.declare("live")

    with Publisher(cluster, "live") as publisher:
        publisher.await_more(10)
        cluster.restart(*JOINS, *REFUSED)
        for kind in JOINS:
            cluster.await_state(kind, "ready")
        for kind in REFUSED:
            if isinstance(cluster, External) and kind != "alone":
                await_words(cluster, kind, BELONGS)
            else:
                cluster.await_state(kind, "down")
        publisher.await_more(10)
    members = [*cluster.names, *JOINS]
    cluster.await_equal(*members)
    seen = cluster.look()
    found = {}
    for kind in JOINS + REFUSED:
        if kind in REFUSED and seen[kind].state == "joining":
            await_refusal(cluster, kind, f"{kind} must not lead: {BELONGS}")
        found[kind] = Joined(
            seen[kind].state,
            seen[kind].status.get("why", ""),
            cluster.log(kind),
        )
    assert not [name for name in members if "members differ" in cluster.log(name)]

    heir = "older"  # what it held at first was the oldest: it has everything now
    if isinstance(cluster, External):
        cluster.must(heir, "promote")
    else:
        cluster.must(cluster.leader, "demote", "--to", heir)
    wait_until(f"{heir} leads", lambda: cluster.states()[heir] == "active")
    judge(publisher, drained(cluster, "live"))
    past.check("crashed")
    past.end()
    return found


@pytest.mark.parametrize("kind", JOINS)
def test_a_member_with_nothing_or_with_a_store_of_this_cluster_becomes_ready_and_holds_the_same(
    joined: dict[str, Joined], kind: str
) -> None:
    """S-9, H-53, H-67..69, P-7, Q-77, Q-79, Q-83: beside a leader that lives clean, dirty and older ones are as good as none, and
    what they hold is used."""
    one = joined[kind]
    assert one.state == "ready"
    assert "store emptied" not in one.log


@of_provider("etcd")
@pytest.mark.parametrize("kind", ["theirs", "theirs-dirty"])
def test_a_member_with_a_store_of_another_cluster_ends_and_says_so(
    joined: dict[str, Joined], kind: str
) -> None:
    """H-58, H-68, Q-79"""
    one = joined[kind]
    assert one.state == "down" and "stopped  code=1" in one.log
    assert re.search(
        r"this store belongs to cluster \w{32}, the cluster that is kept under this name is \w{32}: start with the right data "
        "directory, or with an empty one",
        one.log,
    )


@of_provider("external")
@pytest.mark.parametrize("kind", ["theirs", "theirs-dirty"])
def test_without_an_etcd_a_member_with_a_store_of_another_cluster_says_so_and_cannot_be_promoted(
    joined: dict[str, Joined], kind: str
) -> None:
    """H-58, H-68, Q-79: nobody here keeps a view for all, so it does not know who is right."""
    one = joined[kind]
    assert one.state == "joining" and one.log.count("TM-4011") < 20, "once for each member"
    assert re.search(BELONGS, one.why)


def test_a_member_with_the_store_of_a_broker_that_stood_alone_ends_and_says_what_to_do(
    joined: dict[str, Joined],
) -> None:
    """Q-79: what was confirmed by it is in no log of the cluster, and stays where it is."""
    one = joined["alone"]
    assert one.state == "down" and "stopped  code=1" in one.log
    assert (
        "holds what the cluster does not: move its messages over and start it with an empty data directory"
        in one.log
    )


# Together with others ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All three start. Patterns may name members by their roles."""

    stores: str
    """Of the member that led, of the one that was ready with it, and of the third."""
    past: str
    """After which moment: `stopped` (all were ready) or `crashed` (the third was not). Empty: there was none before."""
    says: dict[str, str] = field(default_factory=dict)
    """Those that start first, and what they say then; nobody leads yet."""
    refused: dict[str, str] = field(default_factory=dict)
    """Those that are promoted when all are there, and why not."""
    promoted: str = ""
    """Who is promoted then, with words."""
    leads: str = "leader heir"
    """One of these leads in the end; nobody: empty."""
    outside: str = ""
    """Whose store is of another cluster: it has no part in it."""
    lost: tuple[str, ...] = ()
    """Queues of which some is lost, because no store that is there has it."""
    best: str = ""
    """What `tidemark store best` names, of the directories that are there: one of these; or what it says."""


def start_together(past: Past, row: Row) -> None:
    """Whatever the table says comes true."""
    cluster = past.at(row.past, row.stores)
    names = {role: past.role(row.past, role) for role in ROLES}

    def filled(pattern: str) -> str:
        return pattern.format(**names)

    check_best([cluster.trial.data(names[role]) for role in ROLES], row, names)
    early = [names[role] for role in row.says]
    cluster.restart(*early)
    for role, pattern in row.says.items():
        await_words(cluster, names[role], filled(pattern))
    assert not set(cluster.states().values()) & {"active", "recovering"}, "nobody may lead yet"
    cluster.restart(*(name for name in names.values() if name not in early))
    outside = names[row.outside] if row.outside else ""
    inside = [name for name in names.values() if name != outside]
    for role in row.refused.keys() | set(row.promoted.split()[:1]):
        cluster.await_state(names[role], "joining", "catch-up", "ready")
    for role, pattern in row.refused.items():
        await_refusal(cluster, names[role], filled(pattern))
    if row.promoted:
        role, *words = row.promoted.split()
        await_promotion(cluster, names[role], *words)
    if not row.leads:
        assert "active" not in cluster.states().values()
        return

    cluster.trial.wait_whole(names=inside)
    if outside and not isinstance(cluster, External):
        wait_until(f"{outside} ends", lambda: cluster.states()[outside] == "down")
        assert "start with the right data directory, or with an empty one" in cluster.log(outside)
    elif outside:
        await_words(cluster, outside, "it belongs to cluster .*: start whichever is wrong")
        assert cluster.states()[outside] == "joining"
    confirms(cluster, cluster.leader)
    if row.past:
        past.check(row.past, *row.lost)
    cluster.await_equal(*inside)
    assert cluster.leader in [names[role] for role in row.leads.split()]
    assert not [name for name in inside if "members differ" in cluster.log(name)]


def check_best(directories: list[Path], row: Row, names: dict[str, str]) -> None:
    """H-62, H-63, X-7: the tool names the store from which nothing is lost, or says why it names none."""
    paths = [str(directory) for directory in directories]
    missing = [directory for directory in directories if not directory.exists()]
    if missing:
        said = store("best", *paths)
        assert said.code == 1 and "none is named" in said.out and "--missing-ok" in said.out
    said = store("best", "--json", "--missing-ok", *paths)
    roles = [role for role in ROLES if role in row.best.split()]
    if roles:
        assert Path(said.status["best"]).name in [names[role] for role in roles], said.status["verdict"]
    else:
        assert said.code == 1 and row.best in said.status["verdict"]


def await_promotion(cluster: Cluster, name: str, *words: str) -> None:
    """It is promoted, as soon as all are there that must be."""
    said: list[Said] = []

    def done() -> bool:
        said.append(cluster.ctl(name, "promote", *words))
        return said[-1].code == 0

    try:
        wait_until("", done)
    except AssertionError:
        raise AssertionError(f"{name} is not promoted: {said[-1].err}") from None


def await_refusal(cluster: Cluster, name: str, pattern: str) -> None:
    """It is not promoted, and says this when it knows all."""
    said: list[Said] = []

    def refused() -> bool:
        said.append(cluster.ctl(name, "promote"))
        if said[-1].code == 0:
            raise RuntimeError(f"{name} is promoted: {said[-1].out}")
        return said[-1].code == 1 and bool(re.search(pattern, said[-1].err))

    try:
        wait_until("", refused)
    except AssertionError:
        raise AssertionError(f"{name} does not say {pattern!r} but {said[-1].err!r}") from None


def confirms(cluster: Cluster, name: str) -> None:
    """Something is published at this member, is confirmed, and is there."""
    queue = fresh("after")
    with cluster.channel(name) as channel:
        channel.queue_declare(queue, durable=True)
    with Publisher(cluster, queue, only=(name,)) as publisher:
        publisher.await_more(5)
    judge(publisher, drained(cluster, queue, name))


WITH_ETCD = {
    "all clean": Row(past="stopped", stores="clean clean clean", leads="leader heir third", best="leader"),
    "all dirty, the third had been left out": Row(
        past="crashed",
        stores="dirty dirty dirty",
        says={
            "third": "it waits for {leader}, which leads in epoch .: it may lack what was confirmed and cannot lead; "
            'ready: {leader}, {heir}"'
        },
        best="leader heir",
    ),
    "one clean that is older, the others dirty": Row(
        past="crashed",
        stores="dirty dirty older",
        says={"third": "it waits for {leader}, which leads in epoch .: it may lack"},
        best="leader heir",
    ),
    "only the heir has its store": Row(past="crashed", stores="none dirty empty", leads="heir", best="heir"),
    "the leader's is of an older stop": Row(
        past="stopped",
        stores="older clean clean",
        says={
            "leader": "its store is an older copy: it was in line in epoch 1 last, and its member in epoch .: ({heir}|{third}) "
            "is to lead"
        },
        leads="heir third",
        best="heir",
    ),
    "the heir's is of an older stop": Row(
        past="stopped",
        stores="clean older clean",
        says={
            "heir": "its store is an older copy: it was in line in epoch 1 last, and its member in epoch .; it waits for "
            "another that leads, and catches up then"
        },
        leads="leader third",
        best="leader",
    ),
    "all are of an older stop": Row(
        past="stopped",
        stores="older older older",
        refused={"leader": "None of those answers with its store.* promote {leader} with --accept-loss"},
        promoted="leader --accept-loss",
        leads="leader",
        lost=("second",),
        best="leader",
    ),
    "those that were ready have lost theirs": Row(
        past="crashed",
        stores="none empty dirty",
        refused={
            "third": "ready: .*None of those answers with its store.*If what .* had will not come back, promote {third} with "
            "--accept-loss"
        },
        promoted="third --accept-loss",
        leads="third",
        lost=("third",),
        best="third",
    ),
    "the leader's is of another cluster": Row(
        past="crashed", stores="theirs-dirty dirty dirty", outside="leader", leads="heir", best="heir"
    ),
    "nothing yet": Row(
        past="",
        stores="none empty none",
        says={"leader": "2 of 3 members are here", "heir": "2 of 3 members are here"},
        leads="leader heir third",
        best="none of these is a store of a member that was ever ready",
    ),
}


@of_provider("etcd")
@pytest.mark.parametrize("row", WITH_ETCD.values(), ids=WITH_ETCD)
def test_members_that_start_together_lead_by_themselves_when_nothing_can_be_missing(
    past: Past, row: Row
) -> None:
    """S-9, P-7, H-57, H-58, H-62..64, H-66..69, Q-75..77, Q-79, Q-80, U-16: who may lack something waits and says for whom; in
    doubt an operator is told what to do."""
    start_together(past, row)


FOUND = "there is no leader yet: promote one member"
WITHOUT = {
    "all clean": Row(
        past="stopped",
        stores="clean clean clean",
        says={"leader": "it led in epoch 2 and does not any more: promote it or another"},
        promoted="third",
        leads="third",
        best="leader",
    ),
    "all dirty, the third had been left out": Row(
        past="crashed",
        stores="dirty dirty dirty",
        says={"heir": "it waits for {leader}, which leads in epoch 3, or for a promotion"},
        refused={"third": "may lack what was confirmed; ready: {leader}, {heir}"},
        promoted="heir",
        leads="heir",
        best="leader heir",
    ),
    "only the heir has its store": Row(
        past="crashed",
        stores="none dirty empty",
        refused={"leader": "its store is empty, and may lack what was confirmed; ready: {leader}, {heir}"},
        promoted="heir",
        leads="heir",
        best="heir",
    ),
    "the leader's is of an older stop": Row(
        past="stopped",
        stores="older clean clean",
        refused={
            "leader": "its store is an older copy: it was in line in epoch 1 last, and its member in epoch 2"
        },
        promoted="heir",
        leads="heir",
        best="heir",
    ),
    "the leader's is of another cluster": Row(
        past="crashed",
        stores="theirs dirty dirty",
        outside="leader",
        refused={"leader": "{leader} must not lead: it belongs to cluster .*, and .*{heir}.* belong to"},
        promoted="heir",
        leads="heir",
        best="heir",
    ),
    "one each of two clusters": Row(
        past="stopped",
        stores="clean theirs none",
        refused={
            "leader": "{leader} must not lead: it belongs to cluster .*, and {heir} belongs to .*: start whichever is wrong",
            "heir": "{heir} must not lead: it belongs to cluster .*, and {leader} belongs to",
            "third": "{third} must not lead: .* belongs to cluster .*, and .* belongs to",
        },
        leads="",
        best="the stores are of 2 clusters, as many of each",
    ),
    "nothing yet": Row(
        past="",
        stores="none empty none",
        says={"leader": FOUND, "heir": FOUND, "third": FOUND},
        promoted="heir",
        leads="heir",
        best="none of these is a store of a member that was ever ready",
    ),
}


@of_provider("external")
@pytest.mark.parametrize("row", WITHOUT.values(), ids=WITHOUT)
def test_without_an_etcd_only_a_member_that_lacks_nothing_can_be_promoted(past: Past, row: Row) -> None:
    """S-9, H-57, H-58, H-62..64, H-66..69, Q-75, Q-77, Q-79, Q-80, U-16, X-6: nobody leads by itself, and what is refused says
    what to do."""
    start_together(past, row)


# One after the other -----------------------------------------------------------------------------------------------------


@of_provider("etcd")
def test_after_a_clean_stop_members_are_started_one_after_the_other_and_each_serves(past: Past) -> None:
    """Q-83, Q-84, U-16: the third first, which did not lead; nobody waits for all of them."""
    cluster = past.at("stopped")
    up: list[str] = []

    for role in reversed(ROLES):
        up.append(past.role("stopped", role))
        cluster.restart(up[-1])
        cluster.trial.wait_whole(names=up)
        confirms(cluster, up[-1])

    assert cluster.leader == up[0], "it goes on when the others come"
    past.check("stopped")
    cluster.await_equal()


@of_provider("etcd")
def test_the_last_one_that_stood_comes_back_and_leads_and_until_then_the_others_wait_for_it(
    past: Past,
) -> None:
    """Q-82, H-59, H-60, U-16: what `tidemark store status` says meanwhile. Its store is dirty like those of the others: it is the
    view that says who was the last."""
    cluster = past.at("stopped")
    data = {name: cluster.trial.data(name) for name in cluster.names}
    assert {status(one)["state"] for one in data.values()} == {"clean"}
    past.begin("")
    first = cluster.leader
    cluster.kill(first)
    second = cluster.leader
    cluster.kill(second)
    last = cluster.leader
    assert store("status", str(data[last])).code == 2, "it is in use"
    cluster.declare("alone")
    with Publisher(cluster, "alone", only=(last,)) as alone:
        alone.await_more(5)
    epoch = cluster.status(last)["epoch"]
    cluster.kill(last)
    left = {name: status(data[name]) for name in (first, second, last)}

    cluster.restart(first, second)
    for name in (first, second):
        await_words(cluster, name, f'it waits for {last}, which leads in epoch {epoch}: .* ready: {last}"')
    cluster.restart(last)
    cluster.trial.wait_whole()

    assert [(one["state"], one["role"]) for one in left.values()] == [("dirty", "leader")] * 3
    assert left[first]["epoch"] < left[second]["epoch"] < left[last]["epoch"] == epoch
    assert cluster.leader == last
    judge(alone, drained(cluster, "alone"))
    past.check("stopped")
    cluster.await_equal()
    cluster.must(last, "shutdown")
    wait_until("all have ended", lambda: set(cluster.states().values()) == {"down"})
    [(state, kept)] = {(status(one)["state"], status(one)["epoch"]) for one in data.values()}
    assert state == "clean" and kept > epoch


@of_provider("etcd")
def test_a_member_that_is_the_only_one_is_killed_and_leads_again(past: Past, tmp_path: Path) -> None:
    """Q-81, H-59, H-60, H-61: nobody need do anything; each start is an epoch."""
    past.end()
    solo = Cluster(tmp_path / "solo", "chain", nodes=1, settings=SETTINGS)
    data, seen = solo.trial.data("n1"), []
    try:
        solo.start()
        solo.declare("q")
        for _ in range(2):
            with Publisher(solo, "q") as publisher:
                publisher.await_more(5)
            solo.kill("n1")
            seen.append(status(data))
            solo.restart("n1")
            assert solo.leader == "n1"
            judge(publisher, drained(solo, "q"))
        solo.stop("n1")
        seen.append(status(data))
    finally:
        solo.close()

    assert [(one["state"], one["role"]) for one in seen] == [
        ("dirty", "leader"),
        ("dirty", "leader"),
        ("clean", "leader"),
    ]
    assert [(one["epoch"], one["generation"]) for one in seen] == [(1, 1), (2, 2), (3, 3)]
    assert len({(one["store"], one["cluster"]) for one in seen}) == 1
