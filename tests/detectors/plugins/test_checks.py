from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.plugins.baseline import RobustBaseline
from irregulars.detectors.plugins.checks import CHECKS, check_detector
from irregulars.detectors.plugins.peers import PeerDeviation
from irregulars.detectors.plugins.river_gaussian import RiverGaussian
from irregulars.errors import PluginError
from tests.detectors.bad_detectors import BAD_DETECTORS, LogWork


@pytest.mark.parametrize("make", [RobustBaseline, PeerDeviation, RiverGaussian, LogWork])
@pytest.mark.filterwarnings("ignore:invalid value encountered in log")
def test_a_good_detector_passes_all_checks(make: Callable[[], Any]) -> None:
    check_detector(make)


@pytest.mark.parametrize(
    ("check", "make", "message"), BAD_DETECTORS, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_check_rejects_its_bad_detector(check: str, make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PluginError, match=rf"{message}.*\(check {check}\)") as caught:
        check_detector(make)
    assert "\n" not in str(caught.value)


def test_the_checks_themselves() -> None:
    # Every check has a bad detector
    assert {check for check, _, _ in BAD_DETECTORS} == set(CHECKS)
    # The budget is the callers
    with pytest.raises(PluginError, match=r"must take at most 0\.001 ms"):
        check_detector(PeerDeviation, budget_s=1e-6)
    # Checks leave the global random state alone
    random.seed(5)
    np.random.seed(5)
    wanted = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    check_detector(PeerDeviation)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == wanted  # type: ignore[index]
