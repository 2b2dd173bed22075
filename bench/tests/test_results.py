"""Bars are judged on medians, and a page keeps its prose."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench import report
from bench.cases import CASES, bars, select
from bench.results import Results, read_json, verdicts


def results_of(case: str, metric: str, **values: list[float]) -> Results:
    results = Results()
    for broker, figures in values.items():
        for value in figures:
            results.add(case, broker, {metric: value})
    return results


def test_every_bar_belongs_to_a_case_and_a_figure_is_held_against_one_bar_at_most() -> None:
    keys = [(bar.case, bar.metric) for bar in bars()]

    assert len(keys) == len(set(keys))
    assert {case for case, _ in keys} <= {case.name for case in CASES}


@pytest.mark.parametrize(("ours", "met"), [(0.99, True), (1.0, True), (1.01, False)])
def test_cpu_is_met_at_a_twentieth_of_rabbitmq(ours: float, met: bool) -> None:
    results = results_of("transient-100b", "cpu_s_per_million", tidemark=[ours, ours, 99.0], rabbitmq=[20.0])

    [verdict] = verdicts(results)

    assert verdict.met is met
    assert verdict.margin == pytest.approx(1 / ours)


@pytest.mark.parametrize(("ours", "met"), [(99.9, True), (100.0, False), (101.0, False)])
def test_a_latency_that_equals_rabbitmqs_is_not_below_it(ours: float, met: bool) -> None:
    results = results_of("latency-transient-5k", "p50_us", tidemark=[ours], rabbitmq=[100.0])

    [verdict] = verdicts(results)

    assert verdict.met is met


def test_the_share_of_the_disk_needs_no_other_broker() -> None:
    results = results_of("durable-window-1000-100b", "share_of_disk", tidemark=[0.7])

    [verdict] = verdicts(results)

    assert verdict.met


def test_a_bar_without_the_other_brokers_figure_is_not_judged() -> None:
    results = results_of("transient-16kb", "cpu_s_per_million", tidemark=[9.0], rabbitmq=[30.0])

    assert list(verdicts(results)) == []


def test_a_missed_rate_says_when_the_generator_was_the_limit() -> None:
    results = Results()
    results.add("transient-100b", "tidemark", {"messages_per_s": 5e5, "generator_busy": 0.99})
    results.add("transient-100b", "rabbitmq", {"messages_per_s": 1e5, "generator_busy": 0.2})

    [verdict] = verdicts(results)

    assert not verdict.met
    assert verdict.note == "the generator's core is 99% busy"


def test_cases_are_chosen_by_pattern_in_their_usual_order() -> None:
    assert [case.name for case in select(["transient-1k*", "transient-16b"])] == [
        "transient-16b",
        "transient-1kb",
    ]
    with pytest.raises(ValueError, match="no case is called 'nothing'"):
        select(["nothing"])


def test_results_survive_their_file(tmp_path: Path) -> None:
    results = results_of("transient-100b", "messages_per_s", tidemark=[1.0, 2.0], rabbitmq=[3.0])
    results.failures.append("a reason")

    report.write_json(results, {"cpu": "x"}, {"repeat": 2}, tmp_path / "r.json")

    assert read_json(tmp_path / "r.json") == (results, {"cpu": "x"}, {"repeat": 2})


def test_only_what_is_between_the_markers_of_the_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    first, second = (dataclasses.replace(section, page=page) for section in report.SECTIONS)
    page.write_text(f"before\n{first.begin}\nold\n{first.end}\n{second.begin}\nkept\n{second.end}\nafter\n")

    first.write("new\n")

    assert page.read_text() == (
        f"before\n{first.begin}\nnew\n{first.end}\n{second.begin}\nkept\n{second.end}\nafter\n"
    )


def test_the_page_in_the_docs_has_its_markers() -> None:
    text = report.PAGE.read_text()

    for section in report.SECTIONS:
        assert text.count(section.begin) == text.count(section.end) == 1
