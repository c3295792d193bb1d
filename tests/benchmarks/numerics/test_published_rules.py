"""Published rules of loss spikes: each is silent on a calm run, and raises an alarm where its source would."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.dtypes import Floats
from tests.benchmarks.numerics.published_rules import RULES

CALM = 150  # steps: all rules are warm


def step(number: int, factor: float = 1.0) -> Floats:
    """Loss, norm and update of a step, with two per cent of noise; `factor` times the usual."""
    return np.array([2.5, 1.0, 1e-3]) * factor * np.random.default_rng(number).normal(1.0, 0.02)


@pytest.mark.parametrize("name", RULES)
def test_a_spike_is_an_alarm_and_a_calm_step_is_none(name: str) -> None:
    rule = RULES[name]()
    for number in range(CALM):
        rule.learn(step(number))
    assert rule.score(step(CALM)) < 1
    spike = 50.0
    for number in range(4 if name == "llm_foundry" else 0):  # it wants five in a row
        assert rule.score(step(number, spike)) < 1
        rule.learn(step(number, spike))
    assert rule.score(step(CALM, spike)) >= 1
