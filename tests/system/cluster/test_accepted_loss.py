"""The only member that was ready is lost for good: real processes, with an etcd and without."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from system.cluster.cluster import Cluster, Publisher, Watch, drained, fresh, wait_until
from system.cluster.test_external import External

pytestmark = pytest.mark.timeout(120)

GONE_S = 3.0
"""By then a lease has ended."""


@pytest.fixture
def founded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Three members that hold the same."""
    cluster: Cluster
    provider, mode = request.param
    if provider == "etcd":
        cluster = Cluster(tmp_path / "members", mode).start()
    else:
        cluster = External(tmp_path / "members", mode).found("n1")
    failed = request.session.testsfailed
    yield cluster
    cluster.close()
    if request.session.testsfailed > failed:
        for name in cluster.names:
            print(f"--- {name}", *cluster.log(name).splitlines()[-40:], sep="\n")


@pytest.mark.parametrize("founded", [("etcd", "chain"), ("external", "standby")], indirect=True, ids="-".join)
def test_the_best_of_those_that_are_left_goes_on_when_an_operator_accepts_the_loss(
    founded: Cluster, tmp_path: Path
) -> None:
    """n1 confirms alone and is lost; n2 has most of it, n3 less. n1 comes back without its store, and later with it."""
    cluster, kept = founded, tmp_path / "kept"
    n1 = cluster.leader
    n3, n2 = reversed(cluster.backups)
    queue = fresh("burned")
    cluster.declare(queue)
    with Publisher(cluster, queue, first=(n1,)) as before:
        before.await_more(20)
        for leaving in (n3, n2):
            if isinstance(cluster, External):
                cluster.must(n1, "drop", leaving)  # else it would take itself for ready
                cluster.await_state(leaving, "catch-up")
            cluster.kill(leaving)
            before.await_more(20)
    cluster.kill(n1)
    data = cluster.trial.data(n1)
    shutil.copytree(data, kept)
    shutil.rmtree(data)
    cluster.restart(n2, n3)
    cluster.await_state(n2, "joining")
    cluster.await_state(n3, "joining")

    # What is refused, and what a refusal says.
    wait_until("n1 is not there", lambda: "None of those answers" in cluster.ctl(n2, "promote").err)
    told = cluster.ctl(n3, "promote")
    worse = cluster.ctl(n3, "promote", "--accept-loss")
    assert (told.code, worse.code) == (1, 1)
    assert f"promote {n2} with --accept-loss: then everything that only {n1} had is lost" in told.err
    assert f"Promote {n2} with --accept-loss; or name this one" in worse.err
    assert f"{n2} has journal" in worse.err and f"{n3} has journal" in worse.err
    cluster.restart(n1)  # with an empty store: what it had is as lost as before
    cluster.await_state(n1, "joining")
    assert "active" not in cluster.states().values()

    with Watch(cluster):
        done = cluster.ctl(n2, "promote", "--accept-loss")
        assert done.code == 0, done
        assert f"Given up: {n1}; what only {n1} had is lost" in done.out
        cluster.trial.wait_whole()
        assert cluster.ctl(n3, "promote", "--accept-loss", "--wait", "20").code == 0, "it lacks nothing now"
        cluster.trial.wait_whole()
        with Publisher(cluster, queue) as after:
            after.await_more(30)

        # The store of n1 turns up after all.
        cluster.kill(n1)
        shutil.rmtree(data)
        shutil.copytree(kept, data)
        with Publisher(cluster, queue) as later:
            later.await_more(10)
            cluster.restart(n1)
            cluster.await_state(n1, "ready")
            later.await_more(10)
    cluster.await_equal()
    found = drained(cluster, queue)

    shared = len(found) - len(after.confirmed) - len(later.confirmed)
    assert 40 <= shared < len(before.confirmed)
    assert found[:shared] == before.confirmed[:shared], "what n2 had is there, in order"
    assert found[shared:] == [*after.confirmed, *later.confirmed], "and all that was confirmed since"
    [given_up] = re.findall(r"TM-4041 confirmed messages given up +messages=(\d+)", cluster.log(n1))
    assert int(given_up) == len(before.confirmed) - shared
    assert "TM-4040 loss accepted  epoch=" in cluster.log(n2) and f"given_up={n1}" in cluster.log(n2)
    status = cluster.ctl(n1, "status", "--json").status
    assert status["given_up_messages"] == int(given_up) and status["accepted"] > 1


@pytest.mark.parametrize(
    "founded", [("etcd", "standby"), ("external", "standby")], indirect=True, ids="-".join
)
def test_while_a_ready_member_is_there_nothing_is_given_up(founded: Cluster) -> None:
    cluster = founded
    leader = cluster.leader
    name = cluster.backups[0]
    assert cluster.ctl(leader, "drop", name).code == 0
    cluster.await_state(name, "catch-up")

    refused = cluster.ctl(name, "promote", name, "--accept-loss")
    asked = cluster.ctl(name, "promote")

    assert refused.code == 1 and "is there with all that was confirmed" in refused.err
    assert asked.code == 1 and "accept-loss" not in asked.err
    assert cluster.leader == leader


@pytest.mark.parametrize(
    "founded", [("etcd", "standby"), ("external", "standby")], indirect=True, ids="-".join
)
def test_a_ready_member_that_stands_still_is_not_given_up(founded: Cluster) -> None:
    """Its lease has run out before the others start, so they never heard of it: but its process is there, and so is its
    store."""
    cluster = founded
    leader = cluster.leader
    queue = fresh("still")
    cluster.declare(queue)
    for name in cluster.backups:
        assert cluster.ctl(leader, "drop", name).code == 0
        cluster.await_state(name, "catch-up")
    with Publisher(cluster, queue, first=(leader,)) as publisher:
        publisher.await_more(20)
    cluster.kill(*cluster.backups)
    with Publisher(cluster, queue, first=(leader,)) as alone:
        alone.await_more(10)
    cluster.freeze(leader)
    time.sleep(GONE_S)
    name, *_ = others = [one for one in cluster.names if one != leader]
    cluster.restart(*others)
    for one in others:
        cluster.await_state(one, "joining")

    def refused() -> str:
        said = cluster.ctl(name, "promote", name, "--accept-loss")
        assert said.code == 1
        return said.err

    wait_until("the lease has run out", lambda: "its process is there" in refused())
    cluster.thaw(leader)
    cluster.trial.wait_whole()
    assert drained(cluster, queue) == [*publisher.confirmed, *alone.confirmed]


@pytest.mark.parametrize("founded", [("etcd", "standby")], indirect=True, ids="-".join)
def test_an_etcd_that_is_brought_back_from_an_older_copy_costs_nothing_but_a_promotion(
    founded: Cluster, tmp_path: Path
) -> None:
    """Its view is of an epoch that is long over: first while the members run, then while they are down."""
    cluster, copy, queue = founded, tmp_path / "copy", fresh("older")
    etcd = cluster.trial.etcd
    assert etcd is not None
    data = etcd.directory / "etcd"

    def etcd_again(prepare: Callable[[], object]) -> None:
        etcd.kill()
        prepare()
        etcd.start()
        assert etcd.process is not None
        cluster.trial.processes["etcd"] = etcd.process

    def bring_back() -> None:
        shutil.rmtree(data)
        shutil.copytree(copy, data)

    cluster.declare(queue)
    etcd_again(lambda: shutil.copytree(data, copy))
    killed = cluster.leader
    cluster.kill(killed)
    with Publisher(cluster, queue) as publisher:
        publisher.await_more(20)
    cluster.restart(killed)
    leader = cluster.whole().leader

    etcd_again(bring_back)
    wait_until(
        "it says so", lambda: "brought back from a copy; promote this" in cluster.status(leader)["why"]
    )
    assert cluster.states()[leader] == "fenced"
    cluster.must(leader, "promote")
    cluster.whole()
    with Publisher(cluster, queue) as later:
        later.await_more(10)

    cluster.kill(*cluster.names)
    etcd_again(bring_back)
    cluster.restart(*cluster.names)
    for name in cluster.names:
        wait_until("it says so", lambda name=name: "brought back" in cluster.ctl(name, "status").out)  # type: ignore[misc]
    assert "active" not in cluster.states().values()
    wait_until("the best is promoted", lambda: cluster.ctl(cluster.names[0], "promote").code == 0)
    cluster.whole()
    assert drained(cluster, queue) == [*publisher.confirmed, *later.confirmed]
