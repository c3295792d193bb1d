"""Why an iteration is suspect: each row of the table on both sides of its limit."""

from __future__ import annotations

import math

import pytest

from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.irregular.window import IterationWindow
from irregulars.detectors.judging.suspicion import Reason, Suspicion, suspicion_of

STEADY = [100.0] * 40
LATE = Latest(3, over_ns=50.0, sigmas=20.0)


def window_of(times_ns: list[float]) -> IterationWindow:
    window = IterationWindow(delta=1.1, window=50)
    for ns in times_ns:
        window.learn(ns, is_irregular=window.judge(ns))
    return window


def suspicion(
    elapsed_ns: float,
    latest: Latest | None = None,
    times_ns: list[float] = STEADY,
    *,
    limit_ns: float | None = None,
    has_open: bool = False,
    is_quiet: bool = False,
) -> Suspicion:
    window = window_of(times_ns)
    limit_ns = window.limit_ns if limit_ns is None else limit_ns
    return suspicion_of(elapsed_ns, latest, window, limit_ns, has_open=has_open, is_quiet=is_quiet)


def test_iterations_as_always_and_long_ones() -> None:
    # An iteration as always is not suspect
    found = suspicion(100.0)
    assert not found
    assert found == Suspicion(Reason.NONE, is_worth_reading=False)
    # An irregular iteration is long and worth reading
    found = suspicion(111.0)
    assert found.reasons == Reason.IRREGULAR | Reason.UNHEALTHY | Reason.LONG
    assert (found.is_long, found.is_shifted, found.is_worth_reading) == (True, False, True)


@pytest.mark.parametrize(("elapsed_ns", "reasons"), [(107.0, Reason.NONE), (108.0, Reason.LONG)])
def test_three_quarters_of_what_delta_allows_are_long_and_no_must(elapsed_ns: float, reasons: Reason) -> None:
    found = suspicion(elapsed_ns)
    assert (found.reasons, found.is_worth_reading) == (reasons, False)


def test_suspicion_while_a_fault_lasts() -> None:
    # A fault that fills the window stays unhealthy: the level from before its verdict opened was 80.
    found = suspicion(100.0, limit_ns=88.0, has_open=True)
    assert found.reasons == Reason.UNHEALTHY
    assert (found.is_long, found.is_worth_reading) == (True, True)
    # An iteration of a shift is suspect with its neighbours: nine iterations of 109 after 100: none is irregular, and
    # three quarters of what δ allows are exceeded.
    times_ns = [100.0 + n % 2 * 20 for n in range(40)]
    shifted = [*times_ns, *[124.0] * 5]
    found = suspicion(121.0, times_ns=shifted)
    assert found.reasons == Reason.SHIFTED
    assert (found.is_long, found.is_shifted, found.is_worth_reading) == (False, True, True)
    assert not suspicion(121.0, times_ns=shifted, has_open=True).is_worth_reading
    # The shift of a verdict whose cause is absent pauses
    shifted = [*[100.0 + n % 2 * 20 for n in range(40)], *[124.0] * 5]
    assert not suspicion(121.0, times_ns=shifted, has_open=True, is_quiet=True)


@pytest.mark.parametrize(("elapsed_ns", "is_suspect"), [(103.0, False), (103.5, False), (104.0, True), (104.5, True)])
def test_a_late_rank_makes_an_iteration_suspect_if_the_job_feels_it(elapsed_ns: float, is_suspect: bool) -> None:
    """By more than half of what is worth a look: 3.75 of 100."""
    found = suspicion(elapsed_ns, LATE)
    assert found.reasons == (Reason.LATE_RANK if is_suspect else Reason.NONE)
    assert (found.is_long, found.is_worth_reading) == (False, False)


@pytest.mark.parametrize(
    "latest", [None, LATE._replace(sigmas=5.0), LATE._replace(over_ns=7.0)], ids=["nobody", "by chance", "by little"]
)
def test_without_a_rank_that_stands_out_by_what_is_worth_a_look_it_is_not(latest: Latest | None) -> None:
    assert not suspicion(106.0, latest)


def test_suspicion_of_late_ranks() -> None:
    # For a rank late again and again the newest iterations must take longer
    lasting = LATE._replace(lasts=True)
    assert not suspicion(106.0, lasting)
    assert suspicion(106.0, lasting, [*STEADY, *[104.5] * 3]).reasons == Reason.LATE_RANK
    assert not suspicion(106.0, lasting, [*STEADY, *[103.0] * 3])
    # While a verdict is open its lasting rank needs no longer iterations
    assert suspicion(100.0, LATE._replace(lasts=True), has_open=True).reasons == Reason.LATE_RANK
    # Before anything is usual nothing is suspect
    assert not suspicion(1e9, LATE, [100.0] * 9)
    assert not suspicion(1e9, limit_ns=math.nan, times_ns=[100.0] * 9)
