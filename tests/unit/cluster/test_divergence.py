"""Where two logs part. LM1, H-70, H-31, X-20, X-21."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from unit.cluster.bench import CLUSTER, takeover

from tidemark.cluster import divergence
from tidemark.model.peers import Ends, Hello, Log, Offer, Takeover

A, B, C, D = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)
NEWEST_C = (takeover(C, 6, 40), takeover(A, 1, 1))


def offer(
    durable: Ends,
    *table: Takeover,
    source: tuple[Takeover, ...] = NEWEST_C,
    ends: Ends = Ends(9, 60),  # noqa: B008
    start: Ends = Ends(),  # noqa: B008
    cluster: str = CLUSTER,
) -> Offer:
    hello = Hello("r", 3, cluster, durable, table)
    return divergence.answer(
        hello, cluster=CLUSTER, epoch=3, table=source, ends=ends, log_start=lambda log: start[log]
    )


def test_a_reader_on_the_same_line_resumes_where_it_is() -> None:
    """H-31, K-65 (the same), K-67: what it holds is not sent again."""
    answer = offer(Ends(7, 45), *NEWEST_C)
    assert (answer.verdict, answer.to, answer.ends) == ("resume", Ends(7, 45), Ends(9, 60))


def test_a_reader_that_missed_a_takeover_resumes_if_it_had_no_more_than_the_new_leader() -> None:
    """K-65 (behind), K-67: it has no newer entry: no branch, no rollback."""
    assert offer(Ends(5, 39), takeover(A, 1, 1)).verdict == "resume"
    assert offer(Ends(3, 20), takeover(A, 1, 1)).verdict == "resume"


def test_a_reader_ahead_of_the_new_leader_rewinds_to_where_the_leader_took_over() -> None:
    """LM1, H-70, K-65 (ahead), K-66, K-86: a replica that is ahead of its source's high sequence."""
    answer = offer(Ends(5, 44), takeover(A, 1, 1))
    assert (answer.verdict, answer.to) == ("rewind", Ends(5, 39))


def test_each_log_is_cut_on_its_own() -> None:
    answer = offer(Ends(8, 20), takeover(A, 1, 1))
    assert (answer.verdict, answer.to) == ("rewind", Ends(5, 20))


def test_an_old_leader_loses_what_only_it_wrote() -> None:
    """K-65 (branched), K-66, K-86: the next newer entry is the replica's own. It took over at 30 as B; the others chose C,
    at 40, from A's line that went on to 39."""
    answer = offer(Ends(5, 33), takeover(B, 5, 30), takeover(A, 1, 1))
    assert (answer.verdict, answer.to) == ("rewind", Ends(4, 29))


def test_a_history_is_told_by_its_id_and_not_by_its_numbers() -> None:
    """X-20: the same sequences of another leader are other records."""
    answer = offer(Ends(6, 45), takeover(D, 6, 40), takeover(A, 1, 1))
    assert (answer.verdict, answer.to) == ("rewind", Ends(5, 39))


def test_an_empty_reader_is_sent_everything() -> None:
    """H-69, X-5: from scratch is the case of the empty store."""
    answer = offer(Ends(), cluster="", start=Ends(5, 30))
    assert (answer.verdict, answer.to) == ("resume", Ends())


def test_half_a_takeover_counts_in_the_log_that_has_it() -> None:
    """The catalog's record came, the journal's did not; both ways of writing that down mean the same."""
    for missing in (0, 40):
        half = (takeover(C, 6, missing), takeover(A, 1, 1))
        assert offer(Ends(6, 39), *half).verdict == "resume"
        assert offer(Ends(6, 41), *half, ends=Ends(9, 39)).to.journal <= 39


def test_a_takeover_that_a_crash_cut_in_two_is_not_taken_for_a_whole_one() -> None:
    """B's record is in the source's catalog only; D took over behind it, with the sequence that B has in the reader's
    journal."""
    source = (takeover(D, 16, 8), takeover(B, 15, 8), takeover(A, 1, 1))
    answer = offer(Ends(15, 8), takeover(B, 15, 8), takeover(A, 1, 1), source=source, ends=Ends(16, 8))
    assert (answer.verdict, answer.to) == ("rewind", Ends(15, 7))


def test_a_reader_with_nothing_in_common_starts_over() -> None:
    """K-65 (unrelated), K-68: a full reset."""
    assert offer(Ends(3, 9), takeover(D, 1, 1)).verdict == "reset"


def test_a_reader_for_which_the_log_is_no_longer_kept_starts_over() -> None:
    assert offer(Ends(5, 20), takeover(A, 1, 1), start=Ends(0, 21)).verdict == "reset"
    assert offer(Ends(5, 20), takeover(A, 1, 1), start=Ends(0, 20)).verdict == "resume"
    assert offer(Ends(5, 44), takeover(A, 1, 1), start=Ends(0, 40)).verdict == "reset"


def test_a_store_of_another_cluster_is_refused_and_told_what_to_do() -> None:
    """H-58, H-68, Q-79"""
    answer = offer(Ends(5, 20), takeover(A, 1, 1), cluster="ee" * 16)
    assert answer.verdict == "refuse" and "data directory" in answer.reason


def test_what_a_broker_confirmed_while_it_stood_alone_is_never_thrown_away() -> None:
    """Its messages were acknowledged to somebody: neither a rewind nor a reset may take them."""
    assert offer(Ends(3, 9), takeover(D, 1, 1), cluster="").verdict == "refuse"
    assert offer(Ends(5, 44), takeover(A, 1, 1), cluster="").verdict == "refuse"
    assert offer(Ends(5, 30), takeover(A, 1, 1), cluster="").verdict == "resume"


@given(st.data())
def test_what_a_reader_may_keep_is_a_prefix_of_the_source_whatever_the_two_have_been_through(
    data: st.DataObject,
) -> None:
    """K-65, K-86: two logs grow from one root: a leader at a time writes, and either log may miss its end."""
    lines: list[list[str]] = [[A], [A]]
    for history in (A, B, C, D):
        writer = data.draw(st.integers(0, 1), label="writer")
        if history != A:
            lines[writer].append(history)
        lines[writer] += [history] * data.draw(st.integers(0, 3), label="records")
        if data.draw(st.booleans(), label="copied"):
            lines[1 - writer] = lines[writer][: data.draw(st.integers(1, len(lines[writer])), label="up to")]

    def table(line: list[str]) -> tuple[Takeover, ...]:
        firsts = {history: line.index(history) + 1 for history in line}
        return tuple(takeover(history, first, first) for history, first in reversed(firsts.items()))

    source, reader = lines
    found = divergence.common(table(reader), len(reader), table(source), len(source), Log.JOURNAL)
    alike = 0
    while alike < min(len(source), len(reader)) and source[alike] == reader[alike]:
        alike += 1
    assert found == alike
