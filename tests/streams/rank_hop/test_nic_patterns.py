"""Behaviour patterns of many iterations at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from irregulars.messages.evidence import PATTERN_COLUMNS, Evidence, concatenate
from irregulars.messages.records import UNKNOWN
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.rank_hop.nic_samples import Samples
from tests.streams.rank_hop.test_evidence_reduction import closing as untimed_closing
from tests.streams.rank_hop.test_evidence_reduction import cut_of

MS = 1_000_000


def rows_of(*rows: tuple[int, int, int, float, float]) -> dict[str, np.ndarray]:
    """Iteration, communicator, operator, start and elapsed in ms."""
    columns = np.array(rows, dtype=np.float64).T
    values: dict[str, Any] = {
        "iteration": columns[0], "communicator": columns[1], "operator": columns[2], "start_ns": columns[3] * MS,
        "sequence": np.arange(len(rows)), "peer": UNKNOWN, "offset": 0,
    }  # fmt: skip
    found = {name: np.broadcast_to(values[name], len(rows)).astype(np.int64) for name in values}
    return found | {"elapsed_ns": columns[4] * MS, "size_bytes": np.full(len(rows), 8.0)}


def samples_of(tx: list[float], first_ms: int = 0, period_ms: int = 1) -> Samples:
    begin = (first_ms + np.arange(len(tx)) * period_ms) * MS
    sent = np.array(tx, dtype=float)
    return Samples(begin, begin + period_ms * MS, sent, sent * 2)


def closing(
    rank: int, rows: dict[str, np.ndarray], iterations: dict[int, tuple[int, int]], **changes: Any
) -> Closing:
    """Iterations: number, start and length in ms."""
    start, elapsed = (np.array(column, dtype=np.int64) * MS for column in zip(*iterations.values(), strict=True))
    times = {"start_ns": start.tolist(), "elapsed_ns": elapsed.tolist()}
    return untimed_closing(rank, list(iterations), rows, cuts=[cut_of(rows, ("dp", "tp"))], **times, **changes)


def reduced(*closings: Closing) -> Evidence:
    return concatenate([row for row in reduce_closings("j", closings) if isinstance(row, Evidence)])


def patterns(evidence: Evidence) -> list[tuple[Any, ...]]:
    """Block, communicator's name, operator, share, and mean and deviation of what was sent."""
    block = evidence.patterns.of_entries(np.arange(len(evidence))).tolist()
    names = [None if code < 0 else evidence.names[code] for code in evidence.patterns["communicator"].tolist()]
    columns = [evidence.patterns[name].tolist() for name in ("operator", "share", "tx_mean", "tx_deviation")]
    return sorted(zip(block, names, *columns, strict=True), key=str)


def test_each_class_of_operators_has_a_pattern_and_so_has_the_whole_iteration() -> None:
    rows = rows_of((3, 0, 0, 102, 8), (3, 1, 1, 110, 5), (3, 0, 0, 116, 2))
    tx = [0, 0, *[4] * 8, *[2, 6, 2, 6, 4], 0, 4, 4, 0, 0]
    found = patterns(reduced(closing(0, rows, {3: (100, 20)}, samples=[samples_of(tx, 100)])))
    assert [row[:3] for row in found] == [(0, "dp", 0), (0, "tp", 1), (0, None, -1)]
    assert [row[3] for row in found] == pytest.approx([0.5, 0.25, 1.0], rel=1.6e-2)
    assert found[0][4:] == pytest.approx((4.0, 0.0), rel=1.6e-2)
    assert found[1][4:] == pytest.approx((4.0, np.sqrt(16 / 5)), rel=1.6e-2)


def test_what_rests_on_under_five_samples_or_takes_a_hundredth_does_not_travel() -> None:
    rows = rows_of((0, 0, 0, 0, 40), (0, 0, 1, 40, 0.9), (0, 1, 0, 50, 4))
    found = patterns(reduced(closing(0, rows, {0: (0, 100)}, samples=[samples_of([1.0] * 100)])))
    assert [row[1:3] for row in found] == [("dp", 0), (None, -1)]
    coarse = closing(0, rows, {0: (0, 100)}, samples=[samples_of([1.0] * 4, period_ms=25)])
    assert patterns(reduced(coarse)) == []


def test_what_takes_a_little_more_than_a_hundredth_travels() -> None:
    rows = rows_of((0, 0, 0, 0, 9), (0, 1, 0, 500, 12))
    found = patterns(reduced(closing(0, rows, {0: (0, 1000)}, samples=[samples_of([1.0] * 1000)])))
    assert [row[1:3] for row in found] == [("tp", 0), (None, -1)]


def test_operators_without_a_start_leave_the_pattern_of_the_whole_iteration() -> None:
    rows = rows_of((0, 0, 0, 0, 50))
    untimed = {**rows, "start_ns": np.array([UNKNOWN])}
    found = patterns(reduced(closing(0, untimed, {0: (0, 100)}, samples=[samples_of([1.0] * 100)])))
    assert [row[1:4] for row in found] == [(None, -1, 1.0)]


def test_ranks_reduced_together_and_iterations_closed_apart_give_the_same() -> None:
    def of_rank(rank: int, numbers: list[int]) -> Closing:
        rows = rows_of(*[(n, 0, 0, 100 * n + 10 * rank, 40 + n) for n in numbers])
        tx = [float((at * 7 + rank) % 5) for at in range(30 * len(numbers))]
        own = samples_of(tx, 100 * numbers[0], 10 // 3)
        return closing(rank, rows, {n: (100 * n, 90) for n in numbers}, samples=[own])

    ranks = [of_rank(rank, [1, 2, 3]) for rank in range(3)] + [of_rank(3, [1, 2, 3])._replace(samples=[])]
    together, apart = reduced(*ranks), concatenate([reduced(one) for one in ranks])
    assert patterns(together) == patterns(apart)
    assert together.patterns.counts.tolist()[9:] == [0, 0, 0]
    assert len(patterns(together)) == 18


def test_a_sample_belongs_to_the_iteration_that_holds_its_middle_and_ends_at_its_border() -> None:
    iterations = {0: (0, 52), 1: (52, 60)}
    own = samples_of([1.0] * 5 + [9.0] + [3.0] * 5, period_ms=10)  # the sixth lies from 50 to 60
    found = patterns(reduced(closing(0, rows_of((0, 0, 0, 0, 1)), iterations, samples=[own])))
    assert [(row[0], row[1]) for row in found] == [(0, None), (1, None)]
    assert found[0][4] == 1.0
    assert found[1][4] == pytest.approx((8 * 9 + 50 * 3) / 58, rel=1.6e-2)


def test_an_iteration_with_few_samples_does_not_show_in_the_next_one() -> None:
    iterations = {0: (0, 30), 1: (30, 60)}
    rows = rows_of((0, 0, 0, 0, 25), (1, 0, 0, 30, 60))
    own = samples_of([9.0] * 3 + [3.0] * 6, period_ms=10)
    found = patterns(reduced(closing(0, rows, iterations, samples=[own])))
    assert found == [(1, "dp", 0, 1.0, 3.0, 0.0), (1, None, -1, 1.0, 3.0, 0.0)]


def test_what_began_before_its_iteration_counts_from_there_on() -> None:
    rows = rows_of((0, 0, 0, 80, 40))
    found = patterns(reduced(closing(0, rows, {0: (100, 100)}, samples=[samples_of([2.0] * 100, 100)])))
    assert found[0][3] == pytest.approx(0.2, rel=1.6e-2)


def test_samples_of_two_nics_of_which_nobody_knows_the_operators_nic_give_no_pattern() -> None:
    one, other = samples_of([4.0] * 20), samples_of([9.0] * 20)
    both = Samples(*(np.stack(pair, axis=1).ravel() for pair in zip(one, other, strict=True)))
    found = reduced(closing(0, rows_of((0, 0, 0, 0, 20)), {0: (0, 20)}, samples=[both]))
    assert patterns(found) == []


def test_rates_that_nobody_knows_give_no_pattern() -> None:
    unknown = samples_of([np.nan] * 20)
    assert patterns(reduced(closing(0, rows_of((0, 0, 0, 0, 20)), {0: (0, 20)}, samples=[unknown]))) == []


def test_times_that_can_not_be_true_give_no_pattern() -> None:
    for begin, length in ((0, 2**60 // MS), (0, 0)):
        one = closing(0, rows_of((0, 0, 0, 0, 1)), {0: (begin, length)}, samples=[samples_of([1.0] * 9)])
        found = reduced(one)
        assert patterns(found) == []
        assert set(found.patterns.columns) == set(PATTERN_COLUMNS)
