"""Figures of clusters are judged as they should be, and every case runs on real nodes, small and short."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import proc, rabbitmq
from bench.build import build
from bench.cluster import cases, plot, quota, report, slopes, wire
from bench.cluster.__main__ import _groups, _steps, campaign, main
from bench.cluster.cases import CHAIN, FLOOR, NATS, RABBITMQ, STANDBY, Scale, Step, select
from bench.cluster.catchup import Watch, bulk_copy, journal_bytes, states_told
from bench.cluster.contestants import Cluster
from bench.cluster.failover import Publisher
from bench.cluster.floor import FloorCluster
from bench.cluster.rabbitmq import RabbitCluster
from bench.results import Results, read_json
from bench.streams import nats

TINY = Scale(
    rounds=1,
    seconds=0.3,
    warmup_s=0.1,
    kills=1,
    freezes=1,
    messages=5_000,
    grow_s=0.4,
    capacity_s=1,
    sizes_max=9,
)
CASE = "publish-100b-w100-x1"


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    build()


def results_of(case: str, metric: str, **found: list[float]) -> Results:
    results = Results()
    for contestant, figures in found.items():
        for value in figures:
            results.add(case, contestant.replace("_", "-"), {metric: value})
    return results


# Judging -------------------------------------------------------------------------------------------


def test_every_bar_is_about_contestants_of_its_case() -> None:
    for case, bar in cases.bars():
        assert bar.ours in case.contestants
        assert not bar.against or bar.against in case.contestants


@pytest.mark.parametrize(("ours", "met"), [(299.0, False), (300.0, True)])
def test_three_times_as_many_confirmed_a_cpu_second_as_rabbitmq_are_enough(ours: float, met: bool) -> None:
    results = results_of(
        CASE, "confirmed_per_cpu_s", tidemark_standby=[ours] * 3, rabbitmq=[90.0, 100.0, 120.0]
    )

    [verdict] = report.verdicts(results)

    assert verdict.met is met
    assert verdict.value.median == pytest.approx(ours / 100)
    assert verdict.value.low == pytest.approx(ours / 120)
    assert verdict.value.high == pytest.approx(ours / 90)


@pytest.mark.parametrize(("slowest", "met"), [(1.9, True), (2.1, False)])
def test_one_failover_in_a_hundred_may_take_two_seconds_and_half_of_them_one(
    slowest: float, met: bool
) -> None:
    results = results_of("failover-kill", "next_confirm_s", tidemark_chain=[0.3] * 98 + [slowest] * 2)

    half, most = report.verdicts(results)

    assert (half.value.median, half.met) == (0.3, True)
    assert (most.value.median, most.met) == (slowest, met)


def test_a_single_confirmed_message_lost_in_any_round_is_a_bar_missed() -> None:
    results = results_of("failover-kill", "lost", tidemark_standby=[0.0, 0.0, 1.0])

    [verdict] = report.verdicts(results)

    assert not verdict.met


def test_cases_are_chosen_by_pattern_and_those_of_publishing_share_a_cluster() -> None:
    chosen = select(["catch-up", "publish-1kb-*", "cost-100b"])

    assert [len(group) for group in _groups(chosen, STANDBY)] == [7, 1]
    assert [len(group) for group in _groups(chosen, RABBITMQ)] == [6]
    with pytest.raises(ValueError, match="no case is called 'nothing'"):
        select(["nothing"])


def test_a_case_that_grows_has_clusters_of_its_own_and_as_many_sizes_as_the_scale_wants() -> None:
    [case] = select(["grow-nodes"])

    assert _groups([case], STANDBY) == []
    assert [step.name for step in _steps(case, CHAIN, TINY)] == ["chain-1", "chain-2", "chain-3", "chain-5"]
    few = dataclasses.replace(TINY, sizes_max=2)
    assert [step.name for step in _steps(case, STANDBY, few)] == ["standby-1", "standby-2"]
    assert _steps(case, RABBITMQ, TINY) == []


# Slopes --------------------------------------------------------------------------------------------


def grown_results() -> Results:
    """Two rounds, in which a chain's head pays for its successor only, and a leader of a standby for each follower."""
    results = Results()
    for base in (1.0, 2.0):
        for size in (1, 2, 3, 5):
            results.add("grow-nodes", f"chain-{size}", {"leader_cpu": base + (size > 1)})
            results.add("grow-nodes", f"standby-{size}", {"leader_cpu": base + base * (size - 1)})
    return results


def test_a_slope_is_what_one_more_costs_in_each_round() -> None:
    found = {
        (line, slope.label): (spread.low, spread.high)
        for _, line, slope, spread in slopes.told(grown_results())
    }

    first, further = "the leader: the first follower", "the leader: a further follower"
    assert found["chain", first] == pytest.approx((1, 1))
    assert found["chain", further] == pytest.approx((0, 0))
    assert found["standby", first] == pytest.approx((1, 2))
    assert found["standby", further] == pytest.approx((1, 2))


def test_one_size_alone_has_no_slope() -> None:
    results = Results()
    results.add("grow-groups", "chains-1", {"leaders_cpu": 1.0})

    assert list(slopes.told(results)) == []
    assert "slopes" not in report.markdown(results, {"cpu": "x"}, SETTINGS, [])


def test_growth_is_in_the_page_in_the_file_and_drawn(tmp_path: Path) -> None:
    page = report.markdown(grown_results(), {"cpu": "x"}, SETTINGS, [])
    report.write_json(grown_results(), {"cpu": "x"}, SETTINGS, tmp_path / "r.json")

    assert "| the leader | 1.5 [1–2] | 3 [2–4] | 4.5 [3–6] | 7.5 [5–10] | 1.5 [1–2] |" in page
    assert "| the leader: a further follower | +1.5 [+1–+2] | 0 |" in page
    told = json.loads((tmp_path / "r.json").read_text())["slopes"]
    assert {(each["line"], each["text"]) for each in told} >= {("chain", "the leader: a further follower")}
    pytest.importorskip("matplotlib")
    assert [path.name for path in plot.draw(grown_results(), tmp_path)] == ["bench-cluster-growth.svg"]


def grown_capacity() -> Results:
    """Two rounds, the second on a faster machine: three groups do three times as much in the first, twice in the second."""
    results = Results()
    for rates in ({1: 1000.0, 3: 3000.0}, {1: 2000.0, 3: 4000.0}):
        for size, rate in rates.items():
            figures = {"confirmed_per_s": rate, "leaders_used": 0.99}
            results.add("grow-capacity", f"queues-{size}", figures)
    return results


def test_capacity_is_told_as_how_many_times_that_of_one_group_in_the_same_round(tmp_path: Path) -> None:
    page = report.markdown(grown_capacity(), {"cpu": "x"}, SETTINGS, [])
    report.write_json(grown_capacity(), {"cpu": "x"}, SETTINGS, tmp_path / "r.json")

    assert "| confirmed a second | 1,500 [1,000–2,000] | 3,500 [3,000–4,000] |" in page
    assert "| times that of one group | 1.00× | 2.50× [2.00×–3.00×] |" in page
    assert "| of its CPU, the leader that uses least | 99% | 99% |" in page
    assert "| confirmed a second: a further group | +1,000 |" in page
    one, three = json.loads((tmp_path / "r.json").read_text())["ratios"]
    assert (one["size"], one["ratio"]["median"]) == (1, 1)
    assert three["ratio"] == {"median": 2.5, "low": 2, "high": 3}
    pytest.importorskip("matplotlib")
    assert [path.name for path in plot.draw(grown_capacity(), tmp_path)] == ["bench-cluster-growth.svg"]


def test_every_case_that_grows_is_told() -> None:
    for case in cases.CASES:
        assert bool(case.steps) == (case.kind in slopes.GROWTH)
        assert {step.contestant for step in case.steps} <= {*case.contestants}


# Reporting -----------------------------------------------------------------------------------------


def some_results() -> Results:
    results = results_of(CASE, "confirmed_per_cpu_s", tidemark_standby=[8e5, 9e5], rabbitmq=[1e5, 1e5])
    for took in (0.2, 0.4, 1.2):
        results.add("failover-kill", CHAIN, {"next_confirm_s": took})
    results.add("failover-kill", CHAIN, {"confirmed": 12_345.0, "lost": 0.0})
    results.add("catch-up", CHAIN, {"share_of_bulk": 0.4})
    results.failures.append("catch-up, tidemark-standby: it fell")
    return results


SETTINGS = {"date": "today", "rounds": 2, "quick": True}


def test_the_page_has_tables_bars_missed_first_and_what_failed() -> None:
    page = report.markdown(some_results(), {"cpu": "x"}, SETTINGS, [])

    assert "| 100b-w100-x1 | 850,000 [800,000–900,000] | – | 100,000 | – | 8.5× | – | – | – |" in page
    assert "| Tidemark chain | 3 | 0.4 | 1.2 | 1.2 | 12,345 | 0 |" in page
    assert "| share of the bulk copy | – | 40% |" in page
    assert page.index("- missed: catch-up") < page.index("- met: publish-100b-w100-x1")
    assert "- catch-up, tidemark-standby: it fell" in page


def test_the_floor_has_a_column_where_it_was_measured() -> None:
    results = results_of("publish-100b-w1-x1", "cpu_s_per_million", tidemark_standby=[900.0], floor=[150.0])

    page = report.markdown(results, {"cpu": "x"}, SETTINGS, [])

    assert "| 100b-w1-x1 | 900 | – | – | – | 150 |" in page
    assert cases.NAMES[FLOOR] not in report.markdown(some_results(), {"cpu": "x"}, SETTINGS, [])


def test_results_survive_their_file_and_are_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.write_json(some_results(), {"cpu": "x"}, SETTINGS, tmp_path / "r.json")

    assert read_json(tmp_path / "r.json") == (some_results(), {"cpu": "x"}, SETTINGS)
    assert main(["--from-json", str(tmp_path / "r.json")]) == 0
    assert "850,000" in capsys.readouterr().out


def test_only_what_is_between_the_markers_of_the_page_is_replaced(tmp_path: Path) -> None:
    part = dataclasses.replace(report.PART, page=tmp_path / "page.md")
    part.page.write_text(f"before\n{part.begin}\nold\n{part.end}\nafter\n")

    part.write("new\n")

    assert part.page.read_text() == f"before\n{part.begin}\nnew\n{part.end}\nafter\n"
    with pytest.raises(ValueError, match="has no markers"):
        dataclasses.replace(part, page=tmp_path / "other.md").write("new\n")


def test_plots_are_drawn_of_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    drawn = plot.draw(some_results(), tmp_path)

    assert [path.name for path in drawn] == ["bench-cluster-cpu.svg", "bench-cluster-failover.svg"]
    assert plot.draw(Results(), tmp_path) == []


# Clients -------------------------------------------------------------------------------------------


class Answering:
    """As much of a NATS server as a publisher sees: it answers what is published, or says nothing."""

    def __init__(self, *, silent: bool = False) -> None:
        self.listener = socket.create_server((proc.HOST, 0))
        self.port = int(self.listener.getsockname()[1])
        self.silent = silent
        self.got: list[int] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self.listener.accept()
            except OSError:
                return
            self._open.append(taken)
            threading.Thread(target=self._serve, args=(taken,), daemon=True).start()

    def _serve(self, taken: socket.socket) -> None:
        try:
            taken.sendall(b"INFO {}\r\n")
            data = b""
            while more := taken.recv(65536):
                data += more
                if b"PING\r\n" in data:
                    taken.sendall(b"PONG\r\n")
                wanted = re.findall(rb"PUB \S+ (\S+)\.(\d+) 100\r\n", data)
                data = b""
                self.got += [int(number) for _, number in wanted]
                if not self.silent:
                    for inbox, number in wanted:  # in two pieces, as a network may do
                        taken.sendall(b"MSG %s.%s 1 27\r\n" % (inbox, number))
                        taken.sendall(b'{"stream":"x", "seq":%s}\r\n' % number)
        except OSError:
            return

    def die(self) -> None:
        # Closing alone leaves a thread that waits in accept or recv with a socket that still takes.
        for each in (self.listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class TwoNodes:
    """Where a `Publisher` finds the two servers below."""

    protocol = "nats"
    vhost = "/"

    def __init__(self, *nodes: Answering) -> None:
        self.ports = {f"n{number}": node.port for number, node in enumerate(nodes, 1)}


@pytest.fixture
def second() -> Iterator[Answering]:
    node = Answering()
    yield node
    node.die()


def test_a_client_whose_node_dies_goes_on_at_the_next_and_sends_again_what_was_not_confirmed(
    second: Answering,
) -> None:
    first = Answering(silent=True)
    publisher = Publisher(TwoNodes(first, second))  # type: ignore[arg-type]
    publisher.connect("n1")
    publisher.run(0.05)
    assert first.got and not publisher.confirmed

    first.die()
    publisher.run_to_confirm(0)
    publisher.settle()
    publisher.close()

    assert set(first.got) <= publisher.confirmed == set(second.got)


def test_a_client_gives_up_a_node_that_is_silent(second: Answering) -> None:
    first = Answering(silent=True)
    publisher = Publisher(TwoNodes(first, second))  # type: ignore[arg-type]
    publisher.connect("n1")

    publisher.run_to_confirm(0)
    publisher.settle()
    publisher.close()
    first.die()

    assert publisher.confirmed == set(second.got)


def test_a_message_that_is_answered_by_an_error_is_not_confirmed() -> None:
    found = [
        (match[1], match[2])
        for match in wire._ANSWER.finditer(
            b'MSG _Ra.7 1 60\r\n{"error":{"code":503}}\r\nHMSG _Ra.8 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n'
        )
    ]

    assert found == [(b"7", b'{"error":{"code":503}}'), (b"8", b"NATS/1.0 503")]


# Measuring -----------------------------------------------------------------------------------------


def test_zeros_at_the_end_of_a_segment_are_not_counted_as_journal(tmp_path: Path) -> None:
    (tmp_path / "seg-1.log").write_bytes(b"records" + bytes(3 << 20))
    (tmp_path / "seg-2.log").write_bytes(bytes(10))
    (tmp_path / "reserve").write_bytes(b"x" * 100)

    assert journal_bytes(tmp_path) == 7


def test_a_time_shorter_than_that_between_two_answers_has_a_rate() -> None:
    watch = Watch("nobody", [(10.0, 0), (11.0, 500), (12.0, 2500)])

    assert watch.rate(10.2, 10.4) == pytest.approx(500)
    assert watch.rate(10.5, 11.5) == pytest.approx(1250)


def test_when_a_member_was_in_a_state_is_in_its_log() -> None:
    now, at = time.monotonic(), time.time() - 2
    lines = [
        f"{time.strftime('%H:%M:%S', time.localtime(when))}.{int(when % 1 * 1000):03d} info    TM-4001 state of the member  {words}"
        for when, words in (
            (at, 'state=catch-up why="n1 has answered"'),
            (at + 1.5, "state=ready moved_bytes=5"),
        )
    ]

    (caught, began), (ready, ended) = states_told("\n".join(["something else state=ready", *lines]))

    assert (caught, ready) == ("catch-up", "ready")
    assert began == pytest.approx(now - 2, abs=0.1)
    assert ended - began == pytest.approx(1.5, abs=0.01)


def test_the_bulk_copy_moves_all_bytes_and_leaves_no_file(tmp_path: Path) -> None:
    assert bulk_copy(tmp_path, (2 << 20) + 1) > 0
    assert not list(tmp_path.iterdir())


def test_what_the_floor_confirms_is_on_three_disks(tmp_path: Path) -> None:
    results = _run(FLOOR, ["publish-100b-w1-x1", "publish-1kb-w1-x4"], tmp_path)
    assert min(report.values(results, "publish-100b-w1-x1", FLOOR, "confirmed_per_s")) > 0

    with FloorCluster(tmp_path / "nodes") as cluster, wire.AmqpLink(cluster.ports["n1"]) as link:
        link.publish(range(1, 4))
        got: list[int] = []
        while len(got) < 3:
            got += link.confirmed()
        disks = [(tmp_path / "nodes" / name / "null.bin").read_bytes() for name in cluster.ports]

    assert got == [1, 2, 3]
    assert len(disks) == 3 and disks[0].strip(b"\0")
    assert disks.count(disks[0]) == 3


# With everything -----------------------------------------------------------------------------------

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")


def _run(contestant: str, names: list[str], folder: Path) -> Results:
    results = Results()
    chosen = [dataclasses.replace(case, window=min(case.window, 100)) for case in select(names)]

    campaign(chosen, [contestant], TINY, folder, results, lambda _: None)

    assert results.failures == []
    for case in chosen:
        assert contestant in results.runs[case.name]
    return results


def _lost(results: Results, contestant: str, case: str) -> float:
    assert sum(report.values(results, case, contestant, "confirmed")) > 0
    assert min(report.values(results, case, contestant, "next_confirm_s")) > 0
    return sum(report.values(results, case, contestant, "lost"))


@needs_etcd
@pytest.mark.timeout(300)
def test_every_case_of_ours_runs_on_three_real_members(tmp_path: Path) -> None:
    """H-85: among them what a member costs beside a broker that stands alone."""
    names = ["idle", CASE, "publish-1kb-w1-x4", "cost-100b", "failover-kill", "catch-up"]

    results = _run(STANDBY, names, tmp_path)

    assert _lost(results, STANDBY, "failover-kill") == 0
    assert cases.ALONE in results.runs["cost-100b"]
    [figures] = results.runs["catch-up"][STANDBY]
    assert figures["messages"] >= TINY.messages
    assert figures["journal_bytes"] > 100 * TINY.messages
    assert not list(tmp_path.iterdir())


@needs_etcd
@pytest.mark.timeout(300)
def test_a_chain_runs_the_same_cases(tmp_path: Path) -> None:
    results = _run(CHAIN, [CASE, "failover-freeze"], tmp_path)

    assert _lost(results, CHAIN, "failover-freeze") == 0


@needs_etcd
@pytest.mark.timeout(300)
def test_cases_that_grow_run_on_clusters_of_their_sizes(tmp_path: Path) -> None:
    """A step of members, of partitions behind fronts, and of followers; each checks what was stored and what came."""
    sizes = {
        "grow-nodes": Step("chain", 2, CHAIN),
        "grow-partitions": Step("chains", 2, CHAIN, nodes=1),
        "grow-consumers": Step("tail", 2, STANDBY, nodes=2),
    }
    results = Results()
    chosen = [dataclasses.replace(case, steps=(sizes[case.name],)) for case in select(list(sizes))]

    campaign(chosen, [STANDBY, CHAIN], TINY, tmp_path, results, lambda _: None)

    assert results.failures == []
    [members], [partitions], [followers] = (results.runs[name][sizes[name].name] for name in sizes)
    assert members["leader_cpu"] + members["follower_cpu"] <= members["all_cpu"] + 1e-6
    assert members["leader_feeds"] == 1
    assert members["leader_writes"] > 0 and members["leader_wakeups"] > 0
    assert partitions["leaders_cpu"] > 0 and partitions["fronts_cpu"] > 0
    assert followers["delivered_per_s"] == pytest.approx(2 * followers["rows_per_s"])
    assert not list(tmp_path.iterdir())


@needs_etcd
def test_a_group_of_small_cpus_is_bound_by_its_leader(tmp_path: Path) -> None:
    """K-51: so that what a further leader adds is what `grow-capacity` measures."""
    try:
        quota.controller()
    except quota.NoQuotasError as reason:
        pytest.skip(str(reason))
    [case] = select(["grow-capacity"])
    case = dataclasses.replace(case, steps=(Step("queues", 1, CHAIN, nodes=1),))
    results = Results()

    campaign([case], [CHAIN], TINY, tmp_path, results, lambda _: None)

    assert results.failures == []
    [figures] = results.runs["grow-capacity"]["queues-1"]
    assert 0.5 < figures["leaders_used"] < 1.5
    assert figures["leaders_still"] > 0.5 > figures["main_used"]
    assert figures["fronts_used"] < figures["leaders_used"]


@needs_etcd
def test_where_nobody_may_set_quotas_the_case_is_skipped_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "_MOUNTS", tmp_path / "mounts")
    (tmp_path / "mounts").write_text("proc /proc proc rw 0 0\n")

    words = ["--quick", "--case", "grow-capacity", "--contestants", CHAIN, "--folder", str(tmp_path)]
    assert main(words) == 1

    said = capsys.readouterr().out
    assert "grow-capacity is skipped: no cgroups are mounted that limit CPU" in said
    assert "nothing was measured" in said


@pytest.mark.skipif(
    nats.server_program() is None or importlib.util.find_spec("nats") is None, reason="NATS is not installed"
)
@pytest.mark.timeout(300)
def test_three_servers_of_nats_run_the_same_cases(tmp_path: Path) -> None:
    results = _run(NATS, [CASE, "publish-1kb-w1-x4", "failover-kill"], tmp_path)

    assert _lost(results, NATS, "failover-kill") == 0


@pytest.mark.skipif(rabbitmq.server_script() is None, reason="RabbitMQ is not installed")
@pytest.mark.timeout(600)
def test_three_nodes_of_rabbitmq_run_the_same_cases_and_leave_no_process_behind(tmp_path: Path) -> None:
    with RabbitCluster(tmp_path / "nodes") as cluster:
        started = cluster.pids()
        [figures] = _measured(CASE, cluster, tmp_path)
        took, all_of_it = _measured("failover-kill", cluster, tmp_path)

    assert figures["confirmed_per_s"] > 0
    assert took["next_confirm_s"] > 0
    assert all_of_it["lost"] == 0
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def _measured(name: str, cluster: Cluster, folder: Path) -> list[dict[str, float]]:
    from bench.cluster.__main__ import measure

    [case] = select([name])
    return measure(case, cluster, TINY, folder, lambda _: None)
