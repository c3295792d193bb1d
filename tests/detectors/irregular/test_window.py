"""The δ window against the contract's words, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.irregular.window import IterationWindow
from tests.stored_states import stored

TIMES = st.lists(st.floats(1, 1e12), min_size=1, max_size=120)


def fed(times: list[float], *, delta: float = 1.1, size: int = 50) -> tuple[IterationWindow, list[bool | None]]:
    window = IterationWindow(delta=delta, window=size)
    said = []
    for time in times:
        said.append(window.judge(time))
        window.learn(time, is_irregular=said[-1])
    return window, said


def contract_means(times: list[float], delta: float, size: int) -> list[float]:
    """Mean of the window before each iteration, each value clipped at delta times the mean of its own window.

    The first ten, which have none, are clipped at delta times their median.
    """
    first = times[: IRREGULAR.min_iterations]
    clipped = [min(time, delta * float(np.median(first))) for time in first]
    means = [math.nan] * len(first)
    for time in times[len(first) :]:
        own = clipped[-size:]
        means.append(math.fsum(own) / len(own))
        clipped.append(min(time, delta * means[-1]))
    return means


def test_limit_and_clip_of_the_window() -> None:
    # Nothing is judged before ten iterations
    _, said = fed([100.0] * 9 + [1e9, 1e9])
    assert said[:10] == [None] * 10
    assert said[10] is True
    assert IRREGULAR.min_iterations == 10
    # An iteration of exactly delta times the mean is regular
    window, _ = fed([100.0] * 10, delta=1.5)
    assert window.judge(150.0) is False
    assert window.judge(math.nextafter(150.0, 200)) is True


@given(times=TIMES, delta=st.floats(1.01, 3), size=st.integers(10, 60))
def test_the_mean_is_the_contracts(times: list[float], delta: float, size: int) -> None:
    expected = contract_means(times, delta, size)
    window = IterationWindow(delta=delta, window=size)
    for at, time in enumerate(times):
        if at >= IRREGULAR.min_iterations:
            assert window.mean_ns == pytest.approx(expected[at], rel=1e-9)
        else:
            assert math.isnan(window.mean_ns)
        window.learn(time, is_irregular=window.judge(time))


@given(times=TIMES, size=st.integers(10, 60))
def test_irregular_is_above_both_delta_and_the_noise(times: list[float], size: int) -> None:
    expected = contract_means(times, 1.1, size)
    _, said = fed(times, size=size)
    for at, is_irregular in enumerate(said):
        if is_irregular:
            assert times[at] > 1.1 * expected[at] * (1 - 1e-12)
            regular = [t for t, s in zip(times[:at], said, strict=False) if not s][-size:]
            assert times[at] > np.median(regular)


def test_noise_and_lasting_faults() -> None:
    # What lies inside the noise is regular
    noisy = [80.0, 120.0, 100.0, 70.0, 130.0] * 6
    window, _ = fed(noisy)
    assert 1.1 * window.mean_ns < 150
    assert window.judge(150.0) is False
    assert window.judge(300.0) is True
    # A fault that lasts does not hide itself at once
    _, said = fed([100.0 + n % 3 for n in range(50)] + [300.0] * 30)
    assert said[50:] == [True] * 30
    # A fast first iteration does not make all others irregular
    _, said = fed([1.0] + [100.0 + n % 2 for n in range(60)])
    assert True not in said


@given(times=TIMES)
def test_a_restored_window_says_the_same(times: list[float]) -> None:
    window, _ = fed(times, size=20)
    twin = IterationWindow.from_state(stored(window.state()), delta=window.delta, window=window.window)
    for time in times:
        assert twin.judge(time) == window.judge(time)
        assert twin.mean_ns == window.mean_ns or math.isnan(window.mean_ns)
        for one in (window, twin):
            one.learn(time, is_irregular=one.judge(time))
    assert twin.state() == window.state()


def noisy(level: float, count: int, seed: int = 0) -> list[float]:
    """Iteration times with a noise of 9 %."""
    return (level * (1 + 0.09 * np.random.default_rng(seed).standard_normal(count))).tolist()


def test_shifts() -> None:
    # A shift shows in a job whose single iterations are too noisy
    before, after = noisy(100.0, 40), noisy(115.0, 12, seed=3)
    window, said = fed(before + after)
    assert sum(map(bool, said[40:])) <= 3
    assert 100.0 < window.shifted_ns < 110.0
    assert math.isinf(fed(before)[0].shifted_ns)
    # Warm up is no slow phase that a shift must exceed
    warm_up = [440.0, 700.0, 330.0]
    window, said = fed(warm_up + [100.0 + n % 3 for n in range(13)] + [109.0 + n % 3 for n in range(3)])
    assert not any(said)
    assert window.has_shift
    assert 100.0 < window.shifted_ns < 109.0
    # A shift ends with the iterations that were longer
    window, _ = fed(noisy(100.0, 40) + noisy(115.0, 12, seed=3) + [100.0] * 5)
    assert math.isinf(window.shifted_ns)
    # A job with slow phases of its own has no shift in the next one
    phase = [100.0 + n % 3 for n in range(8)] + [115.0 + n % 3 for n in range(6)]
    window, _ = fed(phase * 2 + phase[:13], size=50)
    assert math.isinf(window.shifted_ns)
    # A shift that stays is the new level when the window is full
    window, _ = fed(noisy(100.0, 40) + noisy(115.0, 60, seed=3))
    assert math.isinf(window.shifted_ns)
    assert window.mean_ns == pytest.approx(115.0, abs=1.0)
    # While a verdict is open it is that fault's, and no new level, however long it stays
    window, _ = fed(noisy(100.0, 40))
    for time in noisy(115.0, 120, seed=3):
        window.learn(time, is_irregular=False, has_open=True)
    assert 100.0 < window.shifted_ns < 110.0


@pytest.mark.parametrize("longer_ns", [120.0, 140.0, 200.0])
def test_a_change_that_stays_is_irregular_for_no_longer_than_a_window(longer_ns: float) -> None:
    _, said = fed(noisy(100.0, 60) + noisy(longer_ns, 200, seed=3), size=50)
    assert said[-140:].count(True) < 5  # by noise
    # Nor is it a shift a second time
    window, _ = fed(noisy(100.0, 60) + noisy(longer_ns, 70, seed=3), size=50)
    assert window.usual_ns == window._now().usual_ns == pytest.approx(longer_ns, rel=0.04)
    assert not window.has_shift


@pytest.mark.parametrize("delta", [1.0, 0.0, -1.0, math.nan])
def test_delta_must_be_above_one(delta: float) -> None:
    with pytest.raises(ValueError, match="delta must be above 1; got"):
        IterationWindow(delta=delta, window=50)


def test_a_window_must_hold_what_a_judgement_needs() -> None:
    with pytest.raises(ValueError, match="window must be at least 10; got 9"):
        IterationWindow(delta=1.1, window=9)


@pytest.mark.parametrize("time", [0.0, -5.0])
def test_times_of_nothing_or_less_are_judged_without_an_error(time: float) -> None:
    window, said = fed([time] * 20)
    assert said[-1] in (False, True)
    assert window.judge(1.0) is True


# --- thresholds, each on both sides ---------------------------------------------------------------------------------


def test_the_usual_time_is_that_from_before_a_shift() -> None:
    window, _ = fed([100.0] * 20 + [109.0] * 10)
    assert window.has_shift
    assert window.healthy_ns == 100 < window.mean_ns


def test_the_level_is_the_median_of_the_newest_twenty() -> None:
    window, _ = fed([1000.0 + n for n in range(40)])
    assert window.level_ns == 1029.5
    # Whole ns, whose squares are beyond int64: of 39 steps two are of 8 s
    slow = IterationWindow(delta=1.1, window=50)
    for time in [10**10] * 20 + [18 * 10**9] + [10**10] * 19:
        slow.learn(time, is_irregular=False)
    assert slow.spread_ns(1e10) == pytest.approx(8e9 / 39**0.5)
    # A long iteration is little noise beside a small excess
    assert slow.spread_ns(1e9) == pytest.approx(1e9 / 39**0.5)


@pytest.mark.parametrize(("time", "is_irregular"), [(170.0, False), (185.0, False), (195.0, True), (205.0, True)])
def test_three_standard_deviations_above_the_median_are_outside_of_the_noise(time: float, is_irregular: bool) -> None:
    """Thirds at 80, 100 and 120: the median is 100, and a robust standard deviation is 29.7."""
    window, _ = fed([80.0, 100.0, 120.0] * 10)
    assert window.judge(time) is is_irregular


def test_levels_of_suspect_iterations() -> None:
    # A suspect iteration exceeds three quarters of what delta allows
    window, _ = fed([100.0] * 30)
    assert window.suspect_ns == pytest.approx(107.5)
    # A suspect iteration lies four standard deviations above the level: steps of 10 up and down have a robust
    # standard deviation of 14.8, and each time one of 10.5.
    window, _ = fed([95.0, 105.0] * 15)
    assert window.suspect_ns == pytest.approx(100 + 4 * 10.48, abs=0.1)


@pytest.mark.parametrize("time", [115.0, 120.0])
def test_a_shift_begins_when_most_of_the_newest_five_are_longer(time: float) -> None:
    shifts = [math.isfinite(fed([100.0] * 40 + [time] * count)[0].shifted_ns) for count in range(1, 5)]
    assert shifts == [False, False, True, True]


def test_thresholds_of_shift() -> None:
    # Half of what made a shift is still a shift
    window, _ = fed([100.0] * 40 + [115.0] * 5)
    assert window.shifted_ns == pytest.approx(103.75)
    # It follows a δ that is changed meanwhile
    window.delta = 1.4
    assert window.shifted_ns == pytest.approx(115.0)
    # The newest five say by how much the job takes longer
    assert [fed([100.0] * 40 + [109.0] * count)[0].rise_ns for count in (2, 3, 5)] == [0.0, 9.0, 9.0]
    # Above the newest level, where the job became quicker before
    assert [fed([100.0] * 40 + [90.0] * 8 + [99.0] * count)[0].rise_ns for count in (2, 3, 5)] == [0.0, 9.0, 9.0]


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("first", [
    [], [5.0], [5.0] * 2, [5.0] * 3, [5.0] * 4, [50.0], [50.0, 8.0, 3.0], [1000.0, 1.5, 1.2, 1.1],
])  # fmt: skip
def test_long_first_iterations_hide_no_fault_soon_after(first: list[float], noise: float) -> None:
    """At δ = 1.1: of ten iterations four that are clipped at it move the mean by 4 %, however long they were."""
    times_ns = 100e6 * (1 + noise * np.random.default_rng(0).standard_normal(15))
    times_ns[: len(first)] *= first
    window, _ = fed(times_ns.tolist())
    assert window.judge(120e6) is True
    assert noise > 0 or window.judge(105e6) is False


FIRST_TEN = st.lists(st.floats(1, 1e12), min_size=IRREGULAR.min_iterations, max_size=IRREGULAR.min_iterations)


@given(first_ten=FIRST_TEN, order=st.permutations(range(IRREGULAR.min_iterations)))
def test_the_order_of_the_first_ten_does_not_matter(first_ten: list[float], order: list[int]) -> None:
    one, two = fed(first_ten)[0], fed([first_ten[at] for at in order])[0]
    assert two.mean_ns == pytest.approx(one.mean_ns)
    assert two.limit_ns == pytest.approx(one.limit_ns)
