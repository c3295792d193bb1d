from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from irregulars.infra.console.heat_levels import (
    LEAST_NS,
    MISSING,
    ORDERS,
    UNKNOWN,
    Levels,
    Names,
    Places,
    Scale,
    Values,
    bin_extremes,
    levels_of,
    order_of,
    orders_of,
    peers_of,
    scale_of,
    values_of,
)

times = arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.one_of(st.just(np.nan), st.integers(-1000, 10**6).map(lambda ms: ms * 1e6)),
)
levels = arrays(np.uint16, st.integers(1, 60), elements=st.integers(0, 0xFFFF))


@given(times)
def test_a_longer_time_never_has_a_lower_level_and_one_that_is_not_stored_has_none(values: Values) -> None:
    assert ((levels_of(values, LEAST_NS) == MISSING) == np.isnan(values)).all()
    known = np.sort(values[~np.isnan(values)])
    assert (np.diff(levels_of(known, LEAST_NS).astype(np.int64)) >= 0).all()


@given(arrays(np.float32, 20, elements=st.floats(float(np.float32(1.1e3)), float(np.float32(9e12)), width=32)))
def test_a_level_is_its_value_within_a_thousandth(values: Values) -> None:
    np.testing.assert_allclose(values_of(levels_of(values, LEAST_NS), LEAST_NS), values, rtol=1e-3)


@given(levels, st.integers(1, 0xFFFE), st.integers(1, 0xFFFF))
def test_codes_keep_order_and_ends(cells: Levels, low: int, span: int) -> None:
    scale = Scale(low, min(0xFFFF, low + span), LEAST_NS)
    codes = scale.codes_of(cells)
    assert ((codes == 0) == (cells == MISSING)).all()
    known = cells > MISSING
    assert (codes[known & (cells <= low)] == 1).all()
    assert (codes[cells > low] > 1).all()
    assert (codes[cells >= scale.high] == 255).all()
    assert (np.diff(codes[np.argsort(cells, kind="stable")].astype(np.int64)) >= 0).all()


@given(levels, st.floats(1, 1e13))
def test_a_scale_ends_at_the_largest_level_or_beyond(cells: Levels, low: float) -> None:
    scale = scale_of(cells, low, LEAST_NS)
    assert scale.low < scale.high
    if int(cells.max()) > scale.low:
        assert scale.high >= int(cells.max())


cells_of_any_size = arrays(np.uint16, array_shapes(min_dims=2, max_dims=2, max_side=17), elements=st.integers(0, 9))
per_bin = st.sampled_from([1, 2, 4, 8, 32])


@given(cells_of_any_size, per_bin, per_bin)
def test_a_bin_is_the_largest_of_its_cells_missing_only_where_all_are_and_says_which(
    cells: Levels, rows: int, columns: int
) -> None:
    bins = bin_extremes(cells, rows, columns)
    assert bins.levels.shape == (-(-cells.shape[1] // rows), -(-cells.shape[0] // columns))
    for (up, across), level in np.ndenumerate(bins.levels):
        own = cells[across * columns : (across + 1) * columns, up * rows : (up + 1) * rows]
        assert level == own.max()
        if level != MISSING:
            assert own[bins.column[up, across], bins.row[up, across]] == level


@pytest.mark.parametrize("per_bin", [(1, 1), (16, 2), (1024, 1), (8192, 1024)])
def test_one_cell_among_eight_million_is_seen_at_every_zoom(per_bin: tuple[int, int]) -> None:
    cells = np.full((1_000, 8_192), 100, dtype=np.uint16)
    cells[617, 5_635] = 60_000
    bins = bin_extremes(cells, *per_bin)
    assert bins.levels.max() == 60_000
    (up,), (across,) = np.nonzero(bins.levels == 60_000)
    assert (up * per_bin[0] + bins.row[up, across], across * per_bin[1] + bins.column[up, across]) == (5_635, 617)


def test_bins_that_are_larger_than_all_cells_take_no_memory_for_those_that_are_not_there() -> None:
    cells = np.random.default_rng(1).integers(0, 0xFFFF, (30, 50), dtype=np.uint16)
    tracemalloc.start()
    try:
        bins = bin_extremes(cells, 1 << 14, 1 << 14)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 1 << 20
    assert bins.levels.tolist() == [[cells.max()]]
    assert cells[bins.column[0, 0], bins.row[0, 0]] == cells.max()


NONE = Names((), np.full(16, UNKNOWN))


def names(*texts: str) -> Names:
    known = sorted(set(texts))
    return Names(known, np.array([known.index(text) for text in texts]))


def places(**groups: Names) -> Places:
    """16 ranks on four hosts."""
    host = names(*(f"node-{9 + rank // 4}" for rank in range(16)))
    return Places(np.arange(16), np.arange(16) % 4, host, NONE, NONE, groups)


PP = names(*(f"pp-{rank % 8}" for rank in range(16)))
TP = names(*(f"tp-{rank // 2}" for rank in range(16)))


@given(st.sampled_from(sorted(ORDERS)))
def test_each_order_has_every_rank_once(name: str) -> None:
    order = order_of(places(pp=PP, tp=TP), name, np.arange(16) % 5)
    assert sorted(order.rows.tolist()) == list(range(16))
    assert len(order.borders) == len(order.labels)


def test_hosts_stand_by_their_numbers_stages_by_their_place_and_the_strangest_on_top() -> None:
    assert list(order_of(places(), "host").labels) == ["node-9", "node-10", "node-11", "node-12"]
    assert list(order_of(places(), "host").borders) == [0, 4, 8, 12]
    order = order_of(places(pp=PP), "stage")
    assert list(order.labels) == ["stage 0", "stage 1"]
    assert peers_of(places(pp=PP)).tolist() == [1] * 8 + [2] * 8
    assert order_of(places(), "strange", np.arange(16)).rows[0] == 15


def test_only_orders_that_the_job_knows_of_are_offered_and_unannounced_ranks_come_last() -> None:
    assert orders_of(places()) == ["rank", "host", "strange"]
    assert orders_of(places(pp=PP, tp=TP)) == ["rank", "host", "stage", "tp", "strange"]
    unsure = Names(["node-1"], np.array([UNKNOWN, 0] + [UNKNOWN] * 14))
    order = order_of(Places(np.arange(16), np.arange(16), unsure, NONE, NONE, {}), "host")
    assert order.rows[0] == 1
    assert list(order.labels) == ["node-1", "not announced"]
