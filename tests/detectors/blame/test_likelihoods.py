"""What is promised of a first suspect."""

from __future__ import annotations

import pytest

from irregulars.detectors.blame.likelihoods import calibrated
from irregulars.detectors.job.topology import Device


@pytest.mark.parametrize("raw", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_calibration_keeps_the_order_and_never_promises_more_than_everything(raw: float) -> None:
    suspects = [(Device("nic", (0,)), raw), (Device("link", (0, 1)), (1 - raw) * 0.6), (Device("nic", (1,)), 0.0)]
    said = [probability for _, probability in calibrated(suspects)]
    assert said[0] >= raw
    assert sum(said) <= 1 + 1e-9
    assert (said[0] == raw) == (raw in (0.0, 1.0))


def test_nobody_to_calibrate() -> None:
    assert calibrated([]) == ()


@pytest.mark.parametrize(("raw", "promised"), [(0.5, 3 / 4), (0.9, 27 / 28), (0.25, 1 / 2)])
def test_the_first_suspect_s_odds_are_tripled(raw: float, promised: float) -> None:
    assert calibrated([(Device("nic", (0,)), raw)])[0][1] == pytest.approx(promised)
