"""Published rules of loss spikes: each is silent on a calm run, and raises an alarm where its source would."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.plugins.checks import check_detector
from irregulars.detectors.plugins.published_rules import RULES, PublishedRule
from irregulars.detectors.plugins.stored_state import decode_detector, encode_detector
from irregulars.dtypes import Column
from irregulars.errors import PluginError

CALM = 150  # steps: all rules are warm


def step(number: int, factor: float = 1.0) -> dict[str, Column]:
    """A step of four ranks with two per cent of noise; loss, norm and update are `factor` times the usual."""
    noise = np.random.default_rng(number).normal(1.0, 0.02)
    values = {"loss": 2.5 * factor, "grad_norm": factor, "update_rms": 1e-3 * factor}
    return {"rank": np.arange(4), **{name: np.full(4, value * noise) for name, value in values.items()}}


def warm(rule: str) -> PublishedRule:
    detector = PublishedRule(rule=rule)
    for number in range(CALM):
        detector.learn(step(number))
    return detector


@pytest.mark.parametrize("rule", RULES)
def test_a_spike_is_an_alarm_and_a_calm_step_is_none(rule: str) -> None:
    detector = warm(rule)
    assert detector.score(step(CALM)).max() < 1
    spike = 50.0
    for number in range(4 if rule == "llm_foundry" else 0):  # it wants five in a row
        assert detector.score(step(number, spike)).max() < 1
        detector.learn(step(number, spike))
    assert detector.score(step(CALM, spike)).min() >= 1


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_goes_on_from_its_state(rule: str) -> None:
    detector, other = warm(rule), PublishedRule(rule=rule)
    other.restore(decode_detector(encode_detector(detector.state())))
    for factor in (1.0, 50.0):
        assert np.array_equal(other.score(step(CALM, factor)), detector.score(step(CALM, factor)))


@pytest.mark.slow
def test_the_rules_that_are_warm_after_60_steps_keep_the_promises_of_detectors() -> None:
    for rule in ("zclip", "byte_robust"):
        check_detector(lambda rule=rule: PublishedRule(rule=rule))  # type: ignore[misc]  # a default binds the name


def test_another_rule_is_refused() -> None:
    with pytest.raises(PluginError, match="rule must be one of megatron"):
        PublishedRule(rule="zclop")
