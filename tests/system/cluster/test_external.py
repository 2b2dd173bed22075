"""Clusters without an etcd: real members, promoted and demoted by `tidemark ctl member` and by the OCF resource agent."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pika
import pytest
from helpers.broker import parse_address
from helpers.ocf import (
    AGENT,
    FAILED,
    NOT_CONFIGURED,
    NOT_INSTALLED,
    NOT_RUNNING,
    OK,
    PROMOTED,
    UNIMPLEMENTED,
    Agent,
)
from system.cluster.cluster import PERSISTENT, Cluster, Publisher, Said, drained, fresh, judge, wait_until

from tidemark import cli
from tidemark.cli.trial import HOST, Mode, free_ports

pytestmark = pytest.mark.timeout(180)


class External(Cluster):
    """Members whose leader is whoever was promoted."""

    def __init__(
        self,
        directory: Path,
        mode: Mode = "standby",
        *,
        nodes: int = 3,
        settings: dict[str, str] | None = None,
    ) -> None:
        super().__init__(
            directory,
            mode,
            nodes=nodes,
            etcd=f"{HOST}:1",  # nobody asks it
            settings={"cluster.provider": "external", **(settings or {})},
        )
        peers = ",".join(f"{name}={place.peer}" for name, place in self.trial.members.items())
        self.trial.settings["cluster.peers"] = peers

    def start(self) -> External:
        self.restart(*self.names)
        self.await_answers(*self.names)
        return self

    def found(self, leader: str) -> External:
        """Start all, and let this one lead."""
        self.start()
        self.must(leader, "promote")
        self.trial.wait_whole()
        return self

    def await_answers(self, *names: str) -> None:
        for name in names:
            self.await_state(name, "joining", "catch-up", "ready")

    def await_views(self, leader: str, *names: str) -> None:
        """Wait until these know that this one leads."""
        wait_until(
            f"{names} know that {leader} leads",
            lambda: all(self.look()[name].status.get("leader") == leader for name in names),
        )


@pytest.fixture(params=["standby", "chain"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[External]:
    yield from _lent(request, External(tmp_path, request.param))


@pytest.fixture
def members(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[External]:
    yield from _lent(request, External(tmp_path))


def _lent(request: pytest.FixtureRequest, cluster: External) -> Iterator[External]:
    failed = request.session.testsfailed
    yield cluster
    cluster.close()
    if request.session.testsfailed > failed:
        for name in cluster.names:
            if cluster.trial.log(name).exists():
                print(f"--- {name}", *cluster.log(name).splitlines()[-60:], sep="\n")


# Failover by hand ----------------------------------------------------------------------------------------------------


def test_a_backup_that_is_promoted_after_a_kill_has_all_that_was_confirmed(either: External) -> None:
    """H-14, H-48, H-61, S-1 by hand: KILL the leader, promote a backup; the old leader comes back and follows."""
    cluster = either.found("n1")
    queue = fresh("by-hand")
    cluster.declare(queue)

    with Publisher(cluster, queue) as publisher:
        for leader, heir in (("n1", "n2"), ("n2", "n3"), ("n3", "n1")):
            publisher.await_more(50)
            cluster.kill(leader)
            time.sleep(0.3)
            assert not [name for name, state in cluster.states().items() if state == "active"], "nobody asked"
            cluster.must(heir, "promote")
            publisher.await_more(20)
            cluster.restart(leader)
            cluster.await_state(leader, "ready")
    epochs = {seen.status["epoch"] for seen in cluster.look().values()}

    judge(publisher, drained(cluster, queue))
    cluster.await_equal()
    assert epochs == {4}


def test_a_leader_that_runs_steps_down_before_another_leads(members: External) -> None:
    """H-15: promote n2 while n1 is alive."""
    members.found("n1")
    queue = fresh("handed-over")
    members.declare(queue)

    with Publisher(members, queue) as publisher:
        publisher.await_more(50)
        members.must("n2", "promote")
        assert members.states()["n1"] != "active"
        publisher.await_more(50)
    members.trial.wait_whole()

    judge(publisher, drained(members, queue))
    assert members.leader == "n2"


def test_a_leader_that_was_frozen_and_replaced_confirms_nothing_when_it_thaws(members: External) -> None:
    """U-7: the answer to the promotion names whom it could not ask, and so what may be lost."""
    members.found("n1")
    queue = fresh("thawed")
    members.declare(queue)

    with Publisher(members, queue) as publisher, Publisher(members, queue, only=("n1",)) as stale:
        publisher.await_more(50)
        members.freeze("n1")
        said = members.must("n2", "promote")
        frozen_at = len(stale.confirmed)
        members.thaw("n1")
        members.await_state("n1", "ready")
        publisher.await_more(50)
    members.trial.wait_whole()

    found = drained(members, queue)
    assert "not reached: n1" in said.out
    assert not set(publisher.confirmed) - set(found)
    # What the old leader's client was told before the freeze is there, and later only what n2 has confirmed.
    assert not set(stale.confirmed) - set(found), frozen_at
    assert members.leader == "n2"


def test_a_manager_that_tries_one_member_after_the_other_ends_with_one_that_lacks_nothing(
    members: External,
) -> None:
    """H-49, H-52, Q-9: n3 was away while others confirmed; it refuses although it believes to be ready, n2 does not."""
    members.found("n1")
    queue = fresh("second-failure")
    members.declare(queue)
    with Publisher(members, queue) as publisher:
        publisher.await_more(20)
        members.kill("n3")
        publisher.await_more(50)
    members.kill("n1")
    members.restart("n3")
    members.await_answers("n3")

    codes = {name: members.ctl(name, "promote") for name in ("n3", "n2")}
    members.restart("n1")
    members.trial.wait_whole()

    assert (codes["n3"].code, codes["n2"].code) == (1, 0), codes
    assert "may lack what was confirmed" in codes["n3"].err
    judge(publisher, drained(members, queue))


def test_a_member_that_joins_later_needs_no_change_at_the_others(members: External) -> None:
    """H-50, H-51: n4 knows one of them, they learn of it."""
    members.found("n1")
    members.declare("early")
    settings = {"cluster.peers": f"n2={members.trial.members['n2'].peer}"}
    amqp, admin, peer = (f"{HOST}:{port}" for port in free_ports(3))
    members.trial.members["n4"] = type(members.trial.members["n1"])(amqp, admin, peer)
    members.restart("n4", settings=settings)

    members.await_state("n4", "ready")
    members.kill("n1")
    members.must("n4", "promote")

    assert members.queues("n4") == {"early": 0}


# Commands and their exit codes -----------------------------------------------------------------------------------------


def test_every_command_has_the_exit_code_that_a_resource_agent_needs(members: External) -> None:
    """S-6, H-44, H-48, H-49, Q-10, Q-62, Q-64: state x command x exit code, on real members. H-43: active after promote."""
    members.start()
    ctl = members.ctl

    # Nobody leads and all are empty.
    assert ctl("n1", "status", "--expect", "joining").code == 0
    assert ctl("n1", "status", "--expect", "ready,active").code == 1
    assert ctl("n1", "status", "--is-leader").code == 1
    assert ctl("n1", "status", "--expect", "leading").code == 2
    for command in (["demote"], ["drop", "n2"], ["refill"], ["shutdown"]):
        refused = ctl("n1", *command)
        assert refused.code == 1, "nobody can log in yet; only promote is open, and only here"
        assert "n1 is empty and has no users yet: all that it takes is 'promote'" in refused.err
    wait_until("n1 has seen all", lambda: ctl("n1", "status", "--json").status.get("score") == 10)
    assert ctl("n2", "status", "--json").status["score"] == 0, (
        "of equals the first in the alphabet is offered"
    )
    assert ctl("n1", "promote", "--json").status["state"] == "active"
    members.trial.wait_whole()

    # A leader and two that are ready.
    assert ctl("n1", "promote").out == "n1 leads already\n"
    assert ctl("n1", "status", "--is-leader").code == 0
    assert ctl("n1", "status", "--json").status["score"] == 100
    assert ctl("n1", "drop", "n1").code == 1
    assert ctl("n2", "status", "--expect", "ready", "--wait", "5").code == 0
    assert ctl("n2", "status", "--json").status["score"] == 80
    assert ctl("n2", "status", "--is-leader", "--expect", "active").code == 1
    assert ctl("n2", "demote").code == 0
    refused = ctl("n2", "drop", "n3")
    assert (refused.code, refused.err) == (1, "tidemark: n2 does not lead; ask n1\n")
    assert ctl("n1", "demote", "--to", "n2").code == 1

    # One that was dropped catches up until it connects anew, and cannot lead.
    assert ctl("n1", "drop", "n3").code == 0
    members.await_state("n3", "catch-up")
    refused = ctl("n3", "promote")
    assert refused.code == 1
    assert refused.err == "tidemark: n3 is catch-up and may lack what was confirmed; ready: n1, n2\n"
    assert ctl("n3", "status", "--json").status["score"] == 0

    # Demoted: nobody leads until one is promoted, be it the same.
    assert ctl("n1", "demote").code == 0
    assert ctl("n1", "status", "--is-leader").code == 1
    assert ctl("n1", "promote").code == 0
    members.trial.wait_whole()

    # One that hangs, one that is not there, one that does not know us.
    members.freeze("n3")
    began = time.monotonic()
    hung = ctl("n3", "status", "--timeout", "1")
    assert (hung.code, time.monotonic() - began < 3) == (3, True)
    members.thaw("n3")
    members.trial.wait_whole()
    members.kill("n3")
    assert ctl("n3", "status").code == 3
    assert ctl("n3", "status", "--expect", "ready", "--wait", "0.5").code == 3
    url = f"http://{members.trial.members['n1'].admin}"
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert cli.main(["ctl", "--url", url, "--password", "wrong", "member", "promote"]) == 2
        assert cli.main(["ctl", "--url", url, "--password", "wrong", "member", "status", "--is-leader"]) == 2
    assert "login refused" in err.getvalue()
    assert "command of an administrator  command=demote" in members.log("n1")

    # A backup leaves alone, the leader takes all with it.
    members.restart("n3")
    members.await_state("n3", "ready")
    assert ctl("n3", "shutdown").code == 0
    wait_until("n3 has ended", lambda: members.states()["n3"] == "down")
    assert members.states()["n1"] == "active"
    assert ctl("n1", "shutdown").code == 0
    wait_until("all have ended", lambda: set(members.states().values()) == {"down"})
    for name in members.names:
        assert store("status", str(members.trial.data(name))).out.startswith("state       clean(")


def test_a_member_of_a_cluster_with_etcd_takes_the_same_commands(cluster: Cluster) -> None:
    """X-9: with an etcd or without, members are told the same and do the same."""
    leader, other = cluster.leader, cluster.second

    assert cluster.ctl(leader, "status", "--is-leader").code == 0
    assert cluster.ctl(other, "status", "--is-leader").code == 1
    assert cluster.ctl(leader, "demote", "--to", "nobody").code == 1
    assert cluster.ctl(leader, "demote", "--to", other).code == 0
    cluster.whole()
    assert cluster.leader == other
    assert cluster.ctl(leader, "promote").code == 0
    cluster.whole()
    assert cluster.leader == leader


# After a crash of all ---------------------------------------------------------------------------------------------------


def store(*words: str) -> Said:
    """`tidemark store …`"""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(["store", *words])
    return Said(code, out.getvalue(), err.getvalue())


def test_after_a_crash_of_all_the_tool_names_the_store_that_lacks_nothing(members: External) -> None:
    """S-7, H-59, H-60, H-62..64, Q-80: n3 was left out, then all are killed; the tool names n2, which led last.

    H-67, X-6: no store that was left in use seeds the cluster by itself. X-7: the tool ranks by epoch, role and sequence. X-22: what
    each store says about itself.
    """
    members.found("n1")
    queue = fresh("crashed")
    members.declare(queue)
    with Publisher(members, queue) as publisher:
        publisher.await_more(30)
        members.must("n2", "promote")
        members.await_state("n1", "ready")
        publisher.await_more(30)
        members.kill("n3")
        publisher.await_more(50)
    members.kill("n1", "n2")
    paths = [str(members.trial.data(name)) for name in members.names]

    said = store("best", "--json", *paths)
    ranked = said.status
    members.start()
    assert not set(members.states().values()) & {"active", "recovering"}, "nobody leads by itself"
    best = Path(ranked["best"]).name
    members.must(best, "promote")
    members.trial.wait_whole()

    assert said.code == 0
    assert [Path(one["directory"]).name for one in ranked["stores"]] == ["n2", "n1", "n3"]
    assert [(one["epoch"], one["role"], one["state"]) for one in ranked["stores"]][:2] == [
        (2, "leader", "dirty"),
        (2, "backup", "dirty"),
    ]
    assert ranked["view"] == {"epoch": 2, "leader": "n2", "ready": ["n2", "n1"]}
    judge(publisher, drained(members, queue))


def test_the_best_store_copied_everywhere_brings_the_cluster_back(members: External) -> None:
    """H-65, H-66: the others are emptied, or get a copy."""
    members.found("n1")
    queue = fresh("copied")
    members.declare(queue)
    with Publisher(members, queue) as publisher:
        publisher.await_more(30)
    members.kill(*members.names)
    shutil.rmtree(members.trial.data("n2"))
    shutil.copytree(members.trial.data("n1"), members.trial.data("n2"))
    shutil.rmtree(members.trial.data("n3"))

    members.start()
    members.must("n1", "promote")
    members.trial.wait_whole()

    judge(publisher, drained(members, queue))
    members.await_equal()


# The resource agent -----------------------------------------------------------------------------------------------------


class Manager:
    """What a resource manager does: it calls the agent on each node, and remembers the scores that it is told."""

    def __init__(self, directory: Path, names: tuple[str, ...]) -> None:
        self.directory = directory
        self.names = names
        ports = iter(free_ports(3 * len(names)))
        places = {name: [f"{HOST}:{next(ports)}" for _ in range(3)] for name in names}
        self.amqp = {name: place[0] for name, place in places.items()}
        self.admin = {name: place[1] for name, place in places.items()}
        peers = ", ".join(f'"{name}={place[2]}"' for name, place in places.items())
        secret = directory / "secret"
        secret.touch(0o600)
        secret.write_text("of this test, and of no other\n")
        for name, (amqp, admin, peer) in places.items():
            (directory / f"{name}.toml").write_text(
                f'[node]\ndata = "{directory / name}"\n'
                f'[listen]\namqp = "{amqp}"\nadmin = "{admin}"\npeer = "{peer}"\n'
                "[limits]\ndisk_free_bytes_min = 0\n"
                f'[cluster]\nname = "ocf"\nprovider = "external"\nsize = {len(names)}\n'
                f'peers = [{peers}]\nsecret_file = "{secret}"\n'
            )
        self.agent = Agent(directory)

    def call(self, name: str, action: str, **parameters: str) -> subprocess.CompletedProcess[str]:
        own = {
            "config": str(self.directory / f"{name}.toml"),
            "url": f"http://{self.admin[name]}",
            "pid_file": str(self.directory / f"{name}.pid"),
            "log_file": str(self.directory / f"{name}.log"),
        }
        return self.agent.call(name, action, **(own | parameters))

    def must(self, name: str, action: str, code: int = OK) -> None:
        done = self.call(name, action)
        assert done.returncode == code, f"{action} of {name} is {done.returncode}, not {code}: {done.stdout}"

    def score(self, name: str) -> int:
        return self.agent.score(name)

    def await_score(self, name: str, score: int) -> None:
        def told() -> bool:
            self.call(name, "monitor")
            return self.score(name) == score

        wait_until(f"{name} has score {score}", told)

    def pid(self, name: str) -> int:
        return int((self.directory / f"{name}.pid").read_text())

    def kill(self, name: str) -> None:
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        wait_until(f"{name} is gone", lambda: self.call(name, "monitor").returncode == NOT_RUNNING)

    def close(self) -> None:
        for name in self.names:
            with contextlib.suppress(OSError, ValueError):
                os.kill(self.pid(name), signal.SIGKILL)

    def publish(self, name: str, numbers: range) -> None:
        """At this member, each confirmed."""
        address = parse_address(self.amqp[name])
        connection = pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port))
        channel = connection.channel()
        channel.queue_declare("ocf", durable=True)
        channel.confirm_delivery()
        for number in numbers:
            channel.basic_publish("", "ocf", b"%d" % number, PERSISTENT, mandatory=True)
        connection.close()

    def messages(self, name: str) -> int:
        address = parse_address(self.amqp[name])
        connection = pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port))
        count: int = connection.channel().queue_declare("ocf", passive=True).method.message_count
        connection.close()
        return count


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path, ("n1", "n2"))
    yield found
    found.close()
    for name in found.names:
        log = tmp_path / f"{name}.log"
        if log.exists():
            print(f"--- {name}", *log.read_text().splitlines()[-40:], sep="\n")


def test_a_resource_manager_runs_a_cluster_through_the_agent_alone(manager: Manager) -> None:
    """H-14, H-44, H-83, S-6: start, promote, kill, promote the other, failback, demote, stop."""
    manager.must("n1", "monitor", NOT_RUNNING)
    manager.must("n1", "stop")
    manager.must("n1", "start")
    manager.must("n1", "start")
    manager.call("n1", "monitor")
    assert manager.score("n1") == 0, "n2 was not seen: it may hold something"
    manager.must("n2", "start")
    manager.await_score("n1", 10)
    manager.must("n1", "promote")
    manager.must("n1", "monitor", PROMOTED)
    manager.await_score("n2", 80)
    manager.publish("n1", range(1, 101))

    manager.kill("n1")
    manager.must("n1", "monitor", NOT_RUNNING)
    manager.must("n1", "stop")
    manager.await_score("n2", 50)
    manager.must("n2", "promote")
    assert manager.messages("n2") == 100
    manager.must("n1", "start")
    manager.await_score("n1", 80)
    manager.must("n1", "monitor", OK)

    manager.publish("n2", range(101, 201))
    manager.must("n2", "demote")
    manager.must("n2", "monitor", OK)
    manager.must("n1", "promote")
    assert manager.messages("n1") == 200

    os.kill(manager.pid("n2"), signal.SIGSTOP)
    began = time.monotonic()
    assert manager.call("n2", "monitor", answer_s="1").returncode == FAILED
    assert time.monotonic() - began < 8
    os.kill(manager.pid("n2"), signal.SIGCONT)
    manager.must("n2", "stop")
    manager.must("n2", "stop")
    manager.must("n2", "demote", NOT_RUNNING)
    manager.must("n1", "stop")
    manager.must("n1", "monitor", NOT_RUNNING)


def test_the_agent_says_what_is_wrong_before_it_starts_anything(manager: Manager) -> None:
    assert manager.call("n1", "validate-all").returncode == OK
    assert manager.call("n1", "validate-all", binary="no-such-program").returncode == NOT_INSTALLED
    assert manager.call("n1", "validate-all", config="/no/such/file").returncode == NOT_CONFIGURED
    assert manager.call("n1", "validate-all", password_file="/no/such/file").returncode == NOT_CONFIGURED
    assert manager.call("n1", "validate-all", answer_s="soon").returncode == NOT_CONFIGURED
    assert manager.call("n1", "start", config="/no/such/file").returncode == NOT_CONFIGURED
    assert manager.call("n1", "notify").returncode == OK
    assert manager.call("n1", "dance").returncode == UNIMPLEMENTED
    done = manager.call("n1", "start", options="--set cluster.lease_s=0")
    assert done.returncode == FAILED and "cluster.lease_s" in done.stdout


def test_the_agent_describes_itself_in_xml_that_names_every_action_and_parameter(manager: Manager) -> None:
    root = ElementTree.fromstring(manager.call("n1", "meta-data").stdout)
    actions = {one.get("name") for one in root.iter("action")}
    assert actions == {"start", "stop", "monitor", "promote", "demote", "notify", "validate-all", "meta-data"}
    described = {one.get("name") for one in root.iter("parameter")}
    used = set(re.findall(r"OCF_RESKEY_([a-z_]+)", AGENT.read_text()))
    assert described == used
    assert all(one.findtext("longdesc") and one.findtext("shortdesc") for one in root.iter("parameter"))
