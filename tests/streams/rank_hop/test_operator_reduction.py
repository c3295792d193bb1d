"""From operators to the sums of an iteration."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.records import SEND, UNKNOWN
from irregulars.streams.rank_hop.operator_reduction import OPERATOR_COLUMNS, Reduction, reduce_blocks

FLOATS = frozenset({"elapsed_ns", "size_bytes"})


def rows_of(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    full = [
        {"communicator": 0, "operator": 0, "sequence": at, "peer": UNKNOWN, "size_bytes": np.nan, "offset": 0, **row}
        for at, row in enumerate(rows)
    ]
    return {
        n: np.array([row[n] for row in full], dtype=np.float64 if n in FLOATS else np.int64) for n in OPERATOR_COLUMNS
    }


def op(iteration: int, start: int, elapsed: float, **values: Any) -> dict[str, Any]:
    return {"iteration": iteration, "start_ns": start, "elapsed_ns": elapsed, **values}


def reduced(*rows: dict[str, Any], numbers: tuple[int, ...] = (0,), free: tuple[int, ...] | None = None) -> Reduction:
    free_ns = np.array(free or [UNKNOWN] * len(numbers), dtype=np.int64)
    iterations, columns = np.array(numbers, dtype=np.int64), rows_of(list(rows))
    block = np.searchsorted(iterations, columns["iteration"])
    return reduce_blocks({**columns, "block": block}, np.diff(iterations, prepend=iterations[:1]) == 1, free_ns)


def test_an_iteration_after_a_hole_is_free_when_it_is_said_to_be() -> None:
    found = reduced(op(0, 10, 5), op(7, 25, 5), numbers=(0, 7), free=(10, 24))
    assert found.work_ns.tolist() == [0, 1]


def test_a_long_operator_covers_nothing_of_the_next_iteration() -> None:
    found = reduced(op(0, 0, 100), op(1, 50, 5), op(1, 60, 5), numbers=(0, 1))
    assert found.gap_ns.tolist() == [0, 0, 5]


def test_operators_of_unknown_start_have_no_gap_and_no_end() -> None:
    found = reduced(op(0, UNKNOWN, 7), op(0, 10, 5), free=(4,))
    assert (found.work_ns.tolist(), found.communication_ns.tolist()) == ([6], [12])
    assert found.first_start_ns.tolist() == [10]


def test_an_iteration_of_operators_of_unknown_start_has_no_times() -> None:
    found = reduced(op(0, UNKNOWN, 7))
    assert (found.first_start_ns.tolist(), found.last_end_ns.tolist(), found.work_ns.tolist()) == (
        [UNKNOWN],
        [UNKNOWN],
        [0],
    )


def test_classes_count_sum_and_bound_their_operators() -> None:
    found = reduced(op(0, 0, 5), op(0, 10, 9), op(0, 30, np.nan), op(0, 40, 4, operator=SEND, peer=7))
    assert found.classes.counts.tolist() == [2]
    assert found.classes["peer"].tolist() == [-1, 7]
    assert found.classes["operator"].tolist() == [0, SEND]
    assert found.classes["count"].tolist() == [3, 1]
    assert found.classes["shortest_ns"].tolist() == [5, 4]
    assert found.unended.tolist() == [1]


def test_offsets_are_distinct_and_of_their_iteration() -> None:
    found = reduced(
        op(0, 0, 1, offset=9), op(0, 5, 1, offset=4), op(0, 7, 1, offset=9), op(1, 9, 1, offset=9), numbers=(0, 1)
    )
    assert list(found.offsets.lists("offset")) == [[4, 9], [9]]


def test_years_of_iterations_at_once_do_not_overflow() -> None:
    """A source without a watermark closes all at its end: a long job, a second between two iterations."""
    second = 10**9
    numbers = range(0, 8_000, 4)
    starts = [1_800_000_000 * second + number * 25_000 * second for number in numbers]
    rows = [
        op(number, start + after * second, 5.0 * second)
        for number, start in zip(numbers, starts, strict=True)
        for after in (0, 8)
    ]
    assert set(reduced(*rows, numbers=tuple(numbers)).work_ns.tolist()) == {3 * second}


@st.composite
def any_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    size = draw(st.integers(0, 15))
    starts, lengths = st.just(UNKNOWN) | st.integers(0, 20), st.just(np.nan) | st.integers(0, 9)
    small = st.integers(0, 3)
    return [
        op(
            draw(st.integers(0, 2)),
            draw(starts),
            draw(lengths),
            sequence=at,
            offset=draw(small),
            communicator=draw(small),
        )
        for at in range(size)
    ]


def same(one: Reduction, other: Reduction) -> None:
    for name in ("first_start_ns", "last_end_ns", "operators", "work_ns", "communication_ns"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("offsets", "classes"):
        for column in getattr(one, name).columns:
            found, expected = (list(getattr(each, name).lists(column)) for each in (one, other))
            np.testing.assert_equal(found, expected, err_msg=column)


@given(rows=any_rows(), data=st.data())
def test_any_order_and_copies_of_rows_change_nothing(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    copies = data.draw(st.lists(st.sampled_from(rows), max_size=5)) if rows else []
    mixed = data.draw(st.permutations([*rows, *copies]))
    same(reduced(*rows, numbers=(0, 1, 2)), reduced(*mixed, numbers=(0, 1, 2)))


@given(rows=any_rows())
def test_iterations_reduced_one_by_one_are_the_same(rows: list[dict[str, Any]]) -> None:
    together = reduced(*rows, numbers=(0, 1, 2))
    free = UNKNOWN
    for number in range(3):
        alone = reduced(*[row for row in rows if row["iteration"] == number], numbers=(number,), free=(free,))
        for name in ("first_start_ns", "last_end_ns", "operators", "work_ns", "communication_ns"):
            assert getattr(alone, name)[0] == getattr(together, name)[number], name
        free = int(alone.last_end_ns[0])
