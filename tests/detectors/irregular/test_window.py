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
    # A value enters clipped at delta times the mean before it
    window, _ = fed([100.0] * 10 + [1000.0], delta=1.5)
    assert window.mean_ns == pytest.approx((10 * 100 + 150) / 11)
    # The clip uses the window before the value and not with it
    window, _ = fed([100.0] * 10 + [1000.0, 1000.0], delta=2.0)
    second = 2 * (1000 + 200) / 11
    assert window.mean_ns == pytest.approx((1000 + 200 + second) / 12)
    # The window forgets what is older than itself
    window, _ = fed([50.0] * 10 + [100.0] * 200, size=10)
    assert window.mean_ns == 100.0


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
    # A slow first iteration does not blind the window
    _, said = fed([5000.0] + [100.0 + n % 2 for n in range(60)] + [300.0])
    assert said[-1] is True
    # A fast first iteration does not make all others irregular
    _, said = fed([1.0] + [100.0 + n % 2 for n in range(60)])
    assert True not in said


@given(times=TIMES)
def test_a_restored_window_says_the_same(times: list[float]) -> None:
    window, _ = fed(times, size=20)
    twin = IterationWindow.from_state(window.state(), delta=window.delta, window=window.window)
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


@pytest.mark.parametrize("longer_ns", [120.0, 140.0, 200.0])
def test_a_change_that_stays_is_irregular_for_no_longer_than_a_window(longer_ns: float) -> None:
    _, said = fed(noisy(100.0, 60) + noisy(longer_ns, 200, seed=3), size=50)
    assert said[-140:].count(True) < 5  # by noise


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


def test_the_level_is_the_median_of_the_newest_twenty() -> None:
    window, _ = fed([1000.0 + n for n in range(40)])
    assert window.level_ns == 1029.5


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


FAULT_AT = 15
USUAL_NS = 100e6


def times(first: list[float], count: int = FAULT_AT, noise: float = 0.0, seed: int = 0) -> list[float]:
    """Iteration times, ns; the first ones are so many times as long as usual."""
    usual = USUAL_NS * (1 + noise * np.random.default_rng(seed).standard_normal(count))
    usual[: len(first)] *= first
    found: list[float] = usual.tolist()
    return found


def window_of(times_ns: list[float], delta: float = 1.1) -> IterationWindow:
    window = IterationWindow(delta=delta, window=50)
    for ns in times_ns:
        window.learn(ns, is_irregular=window.judge(ns))
    return window


def clipped_mean(first_ten: list[float], delta: float) -> float:
    """The contract's: the first ten clipped at delta times their median."""
    return float(np.mean(np.minimum(first_ten, delta * np.median(first_ten))))


@pytest.mark.parametrize("long", range(5))
def test_long_first_iterations_hide_no_fault_soon_after(long: int) -> None:
    """At δ = 1.1: of ten iterations four that are clipped at it move the mean by 4 %."""
    window = window_of(times([5.0] * long))
    assert window.judge(1.2 * USUAL_NS) is True
    assert window.judge(1.05 * USUAL_NS) is False


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("long", [1, 2, 3])
def test_nor_do_they_in_a_noisy_job(long: int, seed: int) -> None:
    noisy = times([5.0] * long, noise=0.01, seed=seed)
    assert window_of(noisy).judge(1.2 * USUAL_NS) is True


@pytest.mark.parametrize("first", [[50.0], [50.0, 8.0, 3.0], [1000.0, 1.5, 1.2, 1.1]])
def test_how_long_they_were_does_not_matter(first: list[float]) -> None:
    assert window_of(times(first)).judge(1.2 * USUAL_NS) is True


def test_a_lasting_fault_is_found_in_each_of_its_first_iterations() -> None:
    window = window_of(times([5.0, 5.0, 5.0]))
    said = []
    for _ in range(5):
        said.append(window.judge(1.2 * USUAL_NS))
        window.learn(1.2 * USUAL_NS, is_irregular=said[-1])
    assert said == [True] * 5


@given(
    first_ten=st.lists(st.floats(1, 1e12), min_size=IRREGULAR.min_iterations, max_size=IRREGULAR.min_iterations),
    delta=st.floats(1.01, 3),
)
def test_the_first_ten_are_clipped_at_delta_times_their_median(first_ten: list[float], delta: float) -> None:
    assert window_of(first_ten, delta).mean_ns == pytest.approx(clipped_mean(first_ten, delta))


@given(
    first_ten=st.lists(st.floats(1, 1e12), min_size=IRREGULAR.min_iterations, max_size=IRREGULAR.min_iterations),
    order=st.permutations(range(IRREGULAR.min_iterations)),
)
def test_the_order_of_the_first_ten_does_not_matter(first_ten: list[float], order: list[int]) -> None:
    one, two = window_of(first_ten), window_of([first_ten[at] for at in order])
    assert two.mean_ns == pytest.approx(one.mean_ns)
    assert two.limit_ns == pytest.approx(one.limit_ns)


@given(
    first_ten=st.lists(st.floats(1, 1e12), min_size=IRREGULAR.min_iterations, max_size=IRREGULAR.min_iterations),
    more=st.lists(st.floats(1, 1e12), max_size=60),
    delta=st.floats(1.01, 3),
)
def test_what_comes_after_them_is_clipped_at_delta_times_the_mean_before_it(
    first_ten: list[float], more: list[float], delta: float
) -> None:
    limit_ns = delta * float(np.median(first_ten))
    clipped = [min(ns, limit_ns) for ns in first_ten]
    for ns in more:
        own = clipped[-50:]
        clipped.append(min(ns, delta * sum(own) / len(own)))
    assert window_of([*first_ten, *more], delta).mean_ns == pytest.approx(float(np.mean(clipped[-50:])))


def test_the_first_ten_iterations() -> None:
    # The tenth iteration is clipped with the nine before it
    window = window_of([USUAL_NS] * 9 + [5 * USUAL_NS])
    assert window.mean_ns == pytest.approx(1.01 * USUAL_NS)
    # Before the tenth there is no opinion and no mean
    window = window_of(times([5.0] * 3, count=9))
    assert np.isnan(window.mean_ns)
    assert window.judge(1e12) is None


@pytest.mark.parametrize("stopped_at", range(1, FAULT_AT))
def test_a_window_restored_in_the_middle_of_warm_up_says_the_same(stopped_at: int) -> None:
    whole = times([5.0, 4.0, 3.0], noise=0.01)
    window = window_of(whole[:stopped_at])
    again = IterationWindow.from_state(stored(window.state()), delta=window.delta, window=window.window)
    for ns in whole[stopped_at:]:
        for one in (window, again):
            one.learn(ns, is_irregular=one.judge(ns))
    assert again.state() == window.state()
    assert again.mean_ns == window_of(whole).mean_ns
