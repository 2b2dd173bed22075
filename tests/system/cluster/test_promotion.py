"""Who may be promoted: what a member is, times what the others are, times who asks; real members, and what comes of it.

A row names a situation, every member that must refuse, with its exit code and the reason that it gives, and who leads in the
end. Who asks: an operator (`tidemark ctl member promote`) or a resource manager through its agent, both without an etcd; with
one an operator, or nobody, for members look after it themselves. Refusals are asked for by everybody. Whoever leads in the end has
everything that was confirmed, and so have the others when they are back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from helpers.ocf import FAILED, OK, PROMOTED, Agent
from system.cluster.cluster import Cluster, Publisher, Watch, drained, fresh, judge, wait_until
from system.cluster.test_external import External

pytestmark = pytest.mark.timeout(120)

DONE, REFUSED, NO_ANSWER = 0, 1, 3

Provider = Literal["external", "etcd"]
Part = Literal["leader", "second", "third"]


class Cast(NamedTuple):
    """The members by what they are before anything happens."""

    leader: str
    second: str
    third: str

    def names(self, words: str) -> str:
        return words.format(**self._asdict())


class Scene:
    """A whole cluster, and the messages that it has confirmed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cast = Cast(*cluster.look()[cluster.leader].status["ready"])
        self.queue = fresh("promoted")
        cluster.declare(self.queue)
        self.publisher = Publisher(cluster, self.queue, first=(self.cast.leader,))
        self.publisher.start()
        self.publisher.await_more(5)

    # Situations: all of them end with members that know as much as they can --------------------------------------

    def all_ready(self) -> None: ...

    def leader_killed(self) -> None:
        self.cluster.kill(self.cast.leader)

    def leader_frozen(self) -> None:
        self.cluster.freeze(self.cast.leader)

    def leader_demoted(self) -> None:
        self.cluster.must(self.cast.leader, "demote")

    def third_left_out(self) -> None:
        """It is told, and the others go on."""
        self.cluster.must(self.cast.leader, "drop", self.cast.third)
        self.cluster.await_state(self.cast.third, "catch-up", "joining")
        self.publisher.await_more(5)

    def third_left_out_and_leader_frozen(self) -> None:
        self.third_left_out()
        self.cluster.freeze(self.cast.leader)

    def third_behind_and_leader_killed(self) -> None:
        self._third_behind()
        self.cluster.kill(self.cast.leader)
        self._start(self.cast.third)

    def third_behind_and_second_frozen(self) -> None:
        self._third_behind()
        self.cluster.freeze(self.cast.second)
        self.cluster.kill(self.cast.leader)
        self._start(self.cast.third)

    def third_behind_and_alone(self) -> None:
        self._third_behind()
        self.cluster.kill(self.cast.leader, self.cast.second)
        self._start(self.cast.third)

    def third_behind_and_all_killed(self) -> None:
        self._third_behind()
        self.cluster.kill(self.cast.leader, self.cast.second)
        self._start(*reversed(self.cast))

    def third_empty_and_leader_demoted(self) -> None:
        self.leader_demoted()
        self.cluster.kill(self.cast.third)
        self.cluster.trial.data(self.cast.third).rename(self.cluster.trial.directory / fresh("taken"))
        self._start(self.cast.third)

    def _third_behind(self) -> None:
        """It knows that it was left out, and was not there when the others confirmed more."""
        self.third_left_out()
        self.cluster.kill(self.cast.third)
        self.publisher.await_more(5)

    def _start(self, *names: str) -> None:
        self.cluster.restart(*names)
        wait_until("they know of a view", lambda: all(map(self._knows, names)))

    def _knows(self, name: str) -> bool:
        said = self.cluster.look()[name].status
        # An empty one has no users yet whom it could tell more.
        return bool(said.get("ready")) or "; ready: " in said.get("why", "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a member answers that is asked to lead. In words, {leader}, {second} and {third} are the cast's."""

    part: Part
    says: str
    words: tuple[str, ...] = ()
    """More than `promote`."""
    code: int = REFUSED


@dataclass(frozen=True, slots=True)
class Row:
    situation: Callable[[Scene], None]
    leads: Part
    """Who leads in the end."""
    refusals: tuple[Refusal, ...] = ()
    back: tuple[Part, ...] = ()
    """Who has to be back for that."""
    itself: bool = False
    """With an etcd it leads without being asked."""


LACKS = "may lack what was confirmed; ready: {leader}, {second}"
ALL_GONE = "If what {leader}, {second} had will not come back, promote {third} with --accept-loss"
FROZEN = "{second} is ready and its process is there"
ACCEPTING = ("--accept-loss",)

ROWS: dict[Provider, list[Row]] = {
    "external": [
        Row(Scene.all_ready, "leader"),
        Row(Scene.all_ready, "third"),
        Row(Scene.leader_killed, "third", (Refusal("leader", "no answer", code=NO_ANSWER),)),
        Row(Scene.leader_frozen, "second", (Refusal("leader", "no answer", code=NO_ANSWER),)),
        Row(Scene.leader_demoted, "leader"),
        Row(Scene.third_left_out, "second", (Refusal("third", LACKS),)),
        Row(
            Scene.third_left_out_and_leader_frozen,
            "second",
            (
                Refusal("third", LACKS),
                Refusal("third", "need not lead: {second} is there with all that was confirmed", ACCEPTING),
            ),
        ),
        Row(Scene.third_behind_and_leader_killed, "second", (Refusal("third", LACKS),)),
        Row(
            Scene.third_behind_and_second_frozen,
            "second",
            (Refusal("third", FROZEN), Refusal("third", f"need not lead: {FROZEN}", ACCEPTING)),
            back=("second",),
        ),
        Row(Scene.third_behind_and_alone, "leader", (Refusal("third", ALL_GONE),), back=("leader", "second")),
        Row(Scene.third_behind_and_all_killed, "second", (Refusal("third", LACKS),)),
        Row(
            Scene.third_empty_and_leader_demoted,
            "second",
            (Refusal("third", "may lack what was confirmed; ready: {leader}, "),),
        ),
    ],
    "etcd": [
        Row(Scene.all_ready, "leader"),
        Row(Scene.all_ready, "third"),
        Row(Scene.leader_killed, "second", (Refusal("leader", "no answer", code=NO_ANSWER),), itself=True),
        Row(Scene.leader_frozen, "second", (Refusal("leader", "no answer", code=NO_ANSWER),)),
        Row(Scene.leader_demoted, "leader"),
        Row(Scene.third_left_out, "second", (Refusal("third", LACKS),)),
        Row(
            Scene.third_behind_and_second_frozen,
            "second",
            (
                Refusal("third", "{second} is ready"),
                Refusal("third", "need not lead: {second} is ready", ACCEPTING),
            ),
            back=("second",),
            itself=True,
        ),
        Row(Scene.third_behind_and_all_killed, "second", itself=True),
    ],
}


# Members that are whole before each row ----------------------------------------------------------------------------------


class Company:
    """The members of one provider, made anew when a row has failed."""

    def __init__(self, directory: Path, provider: Provider) -> None:
        self._directory = directory
        self._provider = provider
        self._made = 0
        self._cluster: Cluster | None = None

    def whole(self) -> Cluster:
        if self._cluster is None:
            self._made += 1
            directory = self._directory / f"{self._made}"
            if self._provider == "external":
                self._cluster = External(directory).found("n1")
            else:
                self._cluster = Cluster(directory, "chain").start()
        return self._cluster.whole(30)

    def discard(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None


@pytest.fixture(scope="module")
def companies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Provider, Company]]:
    made: dict[Provider, Company] = {name: Company(tmp_path_factory.mktemp(name), name) for name in ROWS}
    yield made
    for company in made.values():
        company.discard()


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, companies: dict[Provider, Company], provider: Provider
) -> Iterator[Scene]:
    company, failed = companies[provider], request.session.testsfailed
    made = Scene(company.whole())
    yield made
    if request.session.testsfailed > failed:
        for name in made.cluster.names:
            print(f"--- {name}", *made.cluster.log(name).splitlines()[-40:], sep="\n")
        company.discard()


@pytest.fixture
def agent(tmp_path: Path, scene: Scene) -> Callable[[str, str], tuple[int, str]]:
    """What a resource manager does with the members: name, action → exit code, what it says."""
    caller = Agent(tmp_path)

    def call(name: str, action: str) -> tuple[int, str]:
        pid = tmp_path / f"{name}.pid"
        pid.write_text(f"{scene.cluster.trial.processes[name].pid}\n")
        url = f"http://{scene.cluster.trial.members[name].admin}"
        done = caller.call(name, action, config=str(pid), pid_file=str(pid), url=url, answer_s="1")
        return done.returncode, done.stdout

    return call


# Rows --------------------------------------------------------------------------------------------------------------------


def _rows() -> Iterator[object]:
    for provider, rows in ROWS.items():
        for row in rows:
            words = row.situation.__name__.replace("_", " ")
            yield pytest.param(provider, row, id=f"{provider}: {words}, {row.leads} leads")


@pytest.mark.parametrize(("provider", "row"), list(_rows()))
def test_only_a_member_with_all_that_was_confirmed_is_promoted(
    scene: Scene, row: Row, provider: Provider, agent: Callable[[str, str], tuple[int, str]]
) -> None:
    """S-6, H-48, H-49, H-52, Q-8, Q-9, Q-10, U-7: state x what the others are x who asks; exit codes, and words."""
    cluster, cast = scene.cluster, scene.cast
    with Watch(cluster):
        row.situation(scene)

        for refusal in row.refusals:
            name = getattr(cast, refusal.part)
            _await_refusal(cluster, name, refusal, cast.names(refusal.says))
            if provider == "external" and not refusal.words:
                code, words = agent(name, "promote")
                assert code == FAILED, words
        _bring_back(cluster, [getattr(cast, part) for part in row.back])

        heir = getattr(cast, row.leads)
        if provider == "external":
            code, words = agent(heir, "promote")
            assert code == OK, words
            assert agent(heir, "monitor")[0] == PROMOTED
        elif not row.itself:
            cluster.must(heir, "promote")
        wait_until("somebody leads", lambda: cluster.trial.leader())
        assert cluster.leader == heir or (row.itself and cluster.leader != cast.third)
        cluster.whole(30)
        scene.publisher.await_more(5)
        scene.publisher.finish()

    judge(scene.publisher, drained(cluster, scene.queue))
    cluster.await_equal()


def _await_refusal(cluster: Cluster, name: str, refusal: Refusal, says: str) -> None:
    """It refuses at once, and at the latest when leases have ended for this reason."""

    def says_so() -> bool:
        said = cluster.ctl(name, "promote", "--timeout", "1", *refusal.words)
        assert said.code == refusal.code, said
        return says in said.err

    wait_until(f"{name} says: {says}", says_so, 6)


def _bring_back(cluster: Cluster, names: list[str]) -> None:
    states = cluster.states()
    for name in names:
        if states[name] == "frozen":
            cluster.thaw(name)
        else:
            cluster.restart(name)
    for name in names:
        cluster.await_state(name, "joining", "catch-up", "ready", "recovering", "active")
