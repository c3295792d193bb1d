"""Levels keep the order of values and tell missing from quick; codes keep the order of levels."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from irregulars.infra.console.heat_map.levels import (
    LEAST_NS,
    MISSING,
    Levels,
    Scale,
    Values,
    levels_of,
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
def test_what_is_not_stored_is_no_quick_cell(values: Values) -> None:
    assert ((levels_of(values, LEAST_NS) == MISSING) == np.isnan(values)).all()


@given(times)
def test_a_longer_time_never_has_a_lower_level(values: Values) -> None:
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
