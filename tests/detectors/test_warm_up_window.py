"""The first iterations of a job compile and warm up: they hide no fault that comes soon after them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.irregular.window import IterationWindow
from tests.stored_states import stored

FAULT_AT = 15
USUAL_NS = 100e6


def times(first: list[float], count: int = FAULT_AT, noise: float = 0.0, seed: int = 0) -> list[float]:
    """Iteration times, ns; the first ones are so many times as long as usual."""
    usual = USUAL_NS * (1 + noise * np.random.default_rng(seed).standard_normal(count))
    usual[: len(first)] *= first
    found: list[float] = usual.tolist()
    return found


def fed(times_ns: list[float], delta: float = 1.1) -> IterationWindow:
    window = IterationWindow(delta=delta)
    for ns in times_ns:
        window.learn(ns, is_irregular=window.judge(ns))
    return window


def clipped_mean(first_ten: list[float], delta: float) -> float:
    """The contract's: the first ten clipped at delta times their median."""
    return float(np.mean(np.minimum(first_ten, delta * np.median(first_ten))))


@pytest.mark.parametrize("long", range(5))
def test_long_first_iterations_hide_no_fault_soon_after(long: int) -> None:
    """At δ = 1.1: of ten iterations four that are clipped at it move the mean by 4 %."""
    window = fed(times([5.0] * long))
    assert window.judge(1.2 * USUAL_NS) is True
    assert window.judge(1.05 * USUAL_NS) is False


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("long", [1, 2, 3])
def test_nor_do_they_in_a_noisy_job(long: int, seed: int) -> None:
    noisy = times([5.0] * long, noise=0.01, seed=seed)
    assert fed(noisy).judge(1.2 * USUAL_NS) is True


@pytest.mark.parametrize("first", [[50.0], [50.0, 8.0, 3.0], [1000.0, 1.5, 1.2, 1.1]])
def test_how_long_they_were_does_not_matter(first: list[float]) -> None:
    assert fed(times(first)).judge(1.2 * USUAL_NS) is True


def test_a_lasting_fault_is_found_in_each_of_its_first_iterations() -> None:
    window = fed(times([5.0, 5.0, 5.0]))
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
    assert fed(first_ten, delta).mean_ns == pytest.approx(clipped_mean(first_ten, delta))


@given(
    first_ten=st.lists(st.floats(1, 1e12), min_size=IRREGULAR.min_iterations, max_size=IRREGULAR.min_iterations),
    order=st.permutations(range(IRREGULAR.min_iterations)),
)
def test_the_order_of_the_first_ten_does_not_matter(first_ten: list[float], order: list[int]) -> None:
    one, two = fed(first_ten), fed([first_ten[at] for at in order])
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
    assert fed([*first_ten, *more], delta).mean_ns == pytest.approx(float(np.mean(clipped[-50:])))


def test_the_first_ten_iterations() -> None:
    # The tenth iteration is clipped with the nine before it
    window = fed([USUAL_NS] * 9 + [5 * USUAL_NS])
    assert window.mean_ns == pytest.approx(1.01 * USUAL_NS)
    # Before the tenth there is no opinion and no mean
    window = fed(times([5.0] * 3, count=9))
    assert np.isnan(window.mean_ns)
    assert window.judge(1e12) is None


@pytest.mark.parametrize("stopped_at", range(1, FAULT_AT))
def test_a_window_restored_in_the_middle_of_warm_up_says_the_same(stopped_at: int) -> None:
    whole = times([5.0, 4.0, 3.0], noise=0.01)
    window = fed(whole[:stopped_at])
    again = IterationWindow.from_state(stored(window.state()), delta=window.delta, window=window.window)
    for ns in whole[stopped_at:]:
        for one in (window, again):
            one.learn(ns, is_irregular=one.judge(ns))
    assert again.state() == window.state()
    assert again.mean_ns == fed(whole).mean_ns


def test_a_window_that_begins_anew_is_not_clipped_as_if_it_warmed_up() -> None:
    window = fed(times([5.0] * 3))
    window.restart([USUAL_NS] * 9 + [3 * USUAL_NS] * 3)
    window.learn(USUAL_NS, is_irregular=False)
    assert window.mean_ns == pytest.approx((9 + 9 + 1) / 13 * USUAL_NS)
