"""What a log's times are worth: gloo's calls, a thread's starts, and a watchdog that looks at the GPU."""

from __future__ import annotations

import pytest

from irregulars.producers.importers.clog_lines import CALL, START, UNCLEAR, LogParser, TimeCounts
from tests.producers.importers.clog_lines import event, header, new_comm, signature, steady


def looks_of(lines: list[str]) -> TimeCounts:
    parser = LogParser()
    for line in lines:
        parser.parse(line.encode())
    assert not parser.skipped
    return parser.times


def test_where_calls_return_at_the_end_the_call_is_the_start() -> None:
    for has_starts in (True, False):  # older versions write no start of such calls
        assert looks_of(steady(0, has_starts=has_starts)).trusted() == CALL


def test_where_a_thread_writes_start_and_end_both_are_true() -> None:
    lines = [header(), new_comm(0, 2), signature(1, is_async=True)]
    for n in range(60):
        lines += [event(1, "Q", 10 * n, n + 1), event(1, "S", 10 * n + 1), event(1, "E", 10 * n + 8)]
    assert looks_of(lines).trusted() == START


@pytest.mark.parametrize("is_async", [False, True])
def test_where_somebody_looks_at_each_call_no_start_is_known(is_async: bool) -> None:
    """On a GPU the caller is ahead: what was called before is seen to have run when the next call comes."""
    lines = [header(), new_comm(0, 2), signature(1, is_async=is_async)]
    for n in range(60):
        lines.append(event(1, "Q", 10 * n, n + 1))
        lines += [event(1, kind, 10 * n) for kind in "SE"] if n else []
    assert looks_of(lines).trusted() == UNCLEAR


def test_one_rank_does_not_decide_for_the_job() -> None:
    """A rank that made one call which blocks, and no other, says nothing of whether calls block."""
    few = TimeCounts(followed=1, ended_apart=140, hollow_apart=20, at_calls=92)
    many = TimeCounts(71, 50, 72, 20, 70, 0, 95)
    assert few.trusted() == UNCLEAR
    assert TimeCounts.of_all([few, many]).trusted() == UNCLEAR


def test_short_operators_and_none_at_all_say_nothing() -> None:
    assert TimeCounts().trusted() == START
    looks = TimeCounts()
    for _ in range(50):
        looks.add_end(0, 1, 1, None, is_async=False)
    assert looks == TimeCounts()
