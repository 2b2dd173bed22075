"""The figures of Spark are judged as ratios of medians, and every case runs on a real Spark and a real broker."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyspark")

from bench.measure import RunFailedError
from bench.results import Results, read_json
from bench.spark import batches, cases, plot, report
from bench.spark import setting as settings
from bench.spark.__main__ import main, run_case
from bench.spark.cases import CASES, Case, Kind, Scale, select
from bench.spark.postgres import PostgresUnavailableError, binaries, binary_copy, rows_of_orders
from bench.spark.processes import Reading, family_clock, in_turn, measured
from bench.spark.rows import KEY_BYTES, Rows

TINY = Scale(share=1e-6, rounds=1, warmups=0, batches=3, pump_s=0.1)


def results_of(case: str, metric: str, **values: list[float]) -> Results:
    results = Results()
    for contestant, figures in values.items():
        for value in figures:
            results.add(case, contestant, {metric: value})
    return results


# Judging -------------------------------------------------------------------------------------------


def test_every_bar_names_contestants_of_its_case_and_a_figure_that_its_table_shows() -> None:
    for case, bar in cases.bars():
        assert {bar.ours, bar.against} <= set(case.contestants)
        assert bar.metric in [metric for metric, _ in report._COLUMNS[case.kind]]


@pytest.mark.parametrize(("ours", "met"), [(69.0, False), (70.0, True), (71.0, True)])
def test_a_scan_is_good_enough_at_seventy_percent_of_parquet(ours: float, met: bool) -> None:
    results = results_of("scan-100b", "rows_per_s", tidemark=[ours] * 3, parquet=[90.0, 100.0, 130.0])

    [verdict] = report.verdicts(results)

    assert verdict.met is met
    assert verdict.ratio.median == pytest.approx(ours / 100)
    assert (verdict.ratio.low, verdict.ratio.high) == (pytest.approx(ours / 130), pytest.approx(ours / 90))


@pytest.mark.parametrize(("ours", "met"), [(119.0, True), (121.0, False)])
def test_a_micro_batch_may_take_a_fifth_longer_than_the_empty_source(ours: float, met: bool) -> None:
    results = results_of("micro-batch", "trigger_ms", tidemark=[ours], floor=[100.0])

    [verdict] = report.verdicts(results)

    assert verdict.met is met
    assert verdict.margin == pytest.approx(120 / ours)


def test_cases_are_chosen_by_pattern_in_their_usual_order() -> None:
    assert [case.name for case in select(["pin", "scan-*"])] == ["scan-100b", "scan-1kb", "pin"]
    with pytest.raises(ValueError, match="no case is called 'nothing'"):
        select(["nothing"])


def test_everybody_has_his_turn_in_every_round_and_nobody_is_always_first() -> None:
    assert list(in_turn("ab", 2)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


# Reporting -----------------------------------------------------------------------------------------


def some_results() -> Results:
    results = results_of("scan-100b", "rows_per_s", tidemark=[8e5, 9e5], parquet=[1e6, 1e6])
    for figures in results.runs["scan-100b"]["tidemark"]:
        figures |= {"cpu_s_per_million": 1.5, "cpu_jvm_s_per_million": 1.0, "cpu_broker_s_per_million": 0.5}
    results.failures.append("pin: it fell")
    return results


def test_the_page_has_a_table_for_each_case_its_bars_and_what_failed() -> None:
    page = report.markdown(some_results(), {"cpu": "x"}, {"date": "today", "rounds": 2, "quick": True}, [])

    assert "| rows/s | 850,000 [800,000–900,000] | – | 1,000,000 | – |" in page
    assert (
        "- met: at least 70 % of reading the same rows from Parquet: 0.85 [0.8–0.9] (1.21× the bar)" in page
    )
    assert "- pin: it fell" in page
    assert "### micro-batch" not in page


def test_results_survive_their_file_and_are_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"date": "today", "rounds": 2, "quick": False}
    report.write_json(some_results(), {"cpu": "x"}, settings, tmp_path / "r.json")

    assert read_json(tmp_path / "r.json") == (some_results(), {"cpu": "x"}, settings)
    assert main(["--from-json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]) == 0
    assert "at least 70 %" in capsys.readouterr().out
    assert "850,000" in (tmp_path / "r.md").read_text()


def test_only_what_is_between_the_markers_of_the_page_is_replaced(tmp_path: Path) -> None:
    part = dataclasses.replace(report.PART, page=tmp_path / "page.md")
    part.page.write_text(f"before\n{part.begin}\nold\n{part.end}\nafter\n")

    part.write("new\n")

    assert part.page.read_text() == f"before\n{part.begin}\nnew\n{part.end}\nafter\n"
    with pytest.raises(ValueError, match="has no markers"):
        dataclasses.replace(part, page=tmp_path / "other.md").write("new\n")


def test_a_plot_is_drawn_of_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    [path] = plot.draw(some_results(), tmp_path)

    assert path.read_text().count("<svg") == 1
    assert plot.draw(Results(), tmp_path) == []


# Measuring -----------------------------------------------------------------------------------------


def test_the_cpu_of_a_process_and_of_its_children_is_counted() -> None:
    busy = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {busy!r}])\nsys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE)
    try:
        with measured({"child": family_clock(process.pid)}) as reading:
            while family_clock(process.pid)() < 0.2:
                pass
    finally:
        process.communicate(b"")

    assert reading["cpu_child_s"] >= 0.1
    assert reading["seconds"] > 0


def test_cpu_is_shown_for_a_million_rows_in_all_and_by_whose_it_was() -> None:
    reading = Reading(seconds=9.0, cpu_jvm_s=1.0, cpu_broker_s=0.5)

    assert reading.per_million(500_000) == {
        "cpu_s_per_million": 3.0,
        "cpu_jvm_s_per_million": 2.0,
        "cpu_broker_s_per_million": 1.0,
    }


def test_rows_have_different_keys_and_values_that_begin_with_them() -> None:
    tables = list(Rows(100).tables(5, 250_005))
    table = tables[0]

    assert sum(each.num_rows for each in tables) == 250_000
    assert table["key"][0].as_py() == (5).to_bytes(KEY_BYTES, "big")
    assert all(
        value.as_py()[:KEY_BYTES] == key.as_py() and len(value.as_py()) == 100
        for key, value in zip(table["key"][:100], table["value"][:100], strict=True)
    )
    assert len(set(table["value"].slice(0, 1_000).to_pylist())) == 1_000


def test_rows_for_copy_are_rendered_as_postgresql_wants_them() -> None:
    data = binary_copy(rows_of_orders(np.array([7]), 42))

    assert data.startswith(
        b"PGCOPY\n\xff\r\n\x00" + bytes(8) + b"\x00\x07" + b"\x00\x00\x00\x10order-0000000007"
    )
    assert b"\x00\x00\x00\x08" + (42).to_bytes(8, "big") in data
    assert data.endswith(b"\xff\xff")


def test_micro_batches_with_other_rows_than_expected_have_no_figures() -> None:
    times = {"triggerExecution": 100, "addBatch": 60}
    good = {"numInputRows": batches.ROWS, "durationMs": times}

    assert batches.figures_of([good, good])["trigger_ms"] == 100
    with pytest.raises(RunFailedError, match=r"had \[7, 100\] rows"):
        batches.figures_of([good, {"numInputRows": 7, "durationMs": times}])


# With everything -----------------------------------------------------------------------------------


def _ends_of(case: Case) -> Case:
    """Of a stream that grows only the smallest and the largest; queries take long to start."""
    if not case.sizes:
        return case
    return dataclasses.replace(case, sizes=case.sizes[::2], contestants=case.contestants[::2])


@pytest.mark.timeout(300)
def test_every_case_runs_on_a_real_spark_and_everybody_has_the_figures_of_the_bars(tmp_path: Path) -> None:
    results = Results()
    chosen = [_ends_of(case) for case in CASES if case.kind is not Kind.POSTGRES and case.name != "scan-1kb"]

    with settings.session(tmp_path, fast_start=True) as spark:
        setting = settings.setting(spark, tmp_path, TINY, lambda _: None)
        for case in chosen:
            run_case(case, setting, results, TINY)

    for case in chosen:
        assert set(results.runs[case.name]) == set(case.contestants)
        for bar in case.bars:
            assert results.median(case.name, bar.ours, bar.metric)
            assert results.median(case.name, bar.against, bar.metric)


def _postgres_is_missing() -> bool:
    try:
        binaries()
    except PostgresUnavailableError:
        return True
    return False


@pytest.mark.skipif(_postgres_is_missing(), reason="PostgreSQL is not installed")
def test_the_sink_and_copy_write_the_same_rows_into_postgresql() -> None:
    [case] = select(["postgres"])
    results = Results()

    run_case(case, None, results, TINY)

    assert set(results.runs["postgres"]) == set(case.contestants)
    assert len(list(report.verdicts(results))) == 2
