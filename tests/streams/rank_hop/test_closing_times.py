"""When iterations close."""

from __future__ import annotations

import pytest

from irregulars.streams.rank_hop.closing_times import (
    closing_time_ns,
    closing_times_by_operators,
    newest_closed,
)
from irregulars.streams.rank_hop.rows.message_rows import IterationTimes

S = 1_000_000_000


@pytest.mark.parametrize(("elapsed_ns", "margin_ns"), [(0, 0), (100, 50), (2 * S, S), (60 * S, S)])
def test_an_iteration_closes_half_its_length_after_its_end_but_a_second_at_most(
    elapsed_ns: int, margin_ns: int
) -> None:
    closes_ns = closing_time_ns(IterationTimes(1000, elapsed_ns, 0, 1.0))
    assert closes_ns == 1000 + elapsed_ns + margin_ns


def test_by_its_operators_an_iteration_ends_where_the_next_begins() -> None:
    assert list(closing_times_by_operators({3: 500, 2: 400, 9: 520})) == [(2, 550), (3, 530)]
    assert list(closing_times_by_operators({3: 500})) == []


def test_the_newest_iteration_that_a_watermark_has_passed() -> None:
    times = [(1, 10), (2, 20), (3, 15)]
    assert [newest_closed(times, watermark_ns) for watermark_ns in (9, 10, 15, 20)] == [None, 1, 3, 3]
