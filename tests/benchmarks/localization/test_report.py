from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.localization.report import calibration_error, reliability, wilson


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [  # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0), (0, 0, 0.0, 1.0),
    ],
)  # fmt: skip
def test_wilson_gives_the_intervals_of_the_literature(hits: int, total: int, low: float, high: float) -> None:
    assert wilson(hits, total) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_calibration_error_by_hand() -> None:
    found = reliability([0.95, 0.91, 0.55, 0.45], [True, False, True, False])
    assert [(one.count, one.promised, one.right) for one in found] == [
        (1, pytest.approx(0.45), 0.0), (1, pytest.approx(0.55), 1.0), (2, pytest.approx(0.93), 0.5),
    ]  # fmt: skip
    assert calibration_error(found) == pytest.approx((0.45 + 0.45 + 2 * 0.43) / 4)
    assert math.isnan(calibration_error(reliability([], [])))
    assert [(one.low, one.high) for one in reliability([0.0, 1.0], [False, True])] == [(0.0, 0.1), (0.9, 1.0)]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_bins_hold_every_answer_and_the_error_is_a_share(pairs: list[tuple[float, bool]]) -> None:
    found = reliability(*zip(*pairs, strict=True))
    assert sum(one.count for one in found) == len(pairs)
    assert all(one.low - 1e-9 <= one.promised <= one.high + 1e-9 for one in found)
    assert 0 <= calibration_error(found) <= 1
