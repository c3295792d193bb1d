from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.plugins.baseline import RobustBaseline
from irregulars.detectors.plugins.protocol import name_of
from irregulars.detectors.plugins.river_gaussian import RiverGaussian
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.detectors.plugins.stored_state import (
    decode_detector,
    encode_detector,
    restore_detectors,
    stored_detectors,
)
from irregulars.errors import PluginError, RecordError
from tests.detectors.strange_tokens import FewTokens


class RefusesItsState(RobustBaseline):
    def restore(self, state: Any) -> None:
        super().restore(state)
        raise KeyError("another version")


def taught(make: Callable[[], Any]) -> Any:
    detector = make()
    for iteration in range(40):
        detector.learn(sample_frame(detector.level, iteration))
    return detector


@pytest.mark.parametrize("make", [RobustBaseline, RiverGaussian])
def test_a_restored_detector_goes_on_as_the_one_that_was_stored(make: Callable[[], Any]) -> None:
    original = taught(make)
    ((_, restored),), cold = restore_detectors([make], stored_detectors([(name_of(original), original)], 10_000))
    assert cold == ()
    for iteration in range(40, 50):
        frame = sample_frame(original.level, iteration)
        np.testing.assert_allclose(restored.score(frame), original.score(frame), rtol=1e-6)
        original.learn(frame)
        restored.learn(frame)


def test_arrays_and_plain_values_come_back_as_they_were() -> None:
    state = {"n": 3, "x": 0.5, "words": ["a", None, True], "raw": b"\x00", "deep": {"a": np.arange(6).reshape(2, 3)}}
    found = decode_detector(encode_detector(state))
    np.testing.assert_array_equal(found["deep"].pop("a"), state["deep"].pop("a"))  # type: ignore[attr-defined]
    assert found == state


@pytest.mark.parametrize("value", [object(), np.array([object()]), 2**70])
def test_what_is_no_plain_value_is_refused(value: Any) -> None:
    with pytest.raises(PluginError, match="state of a detector must be a mapping of plain values"):
        encode_detector({"value": value})


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x93\x01\x02\x03", encode_detector({"a": np.zeros(4)})[:-3]])
def test_bytes_that_are_no_state_are_refused(value: bytes) -> None:
    with pytest.raises(RecordError, match="state of a detector must be a mapping; got another one"):
        decode_detector(value)


def test_states_that_are_not_taken() -> None:
    # A state above its bound is left out and the detector counted as cold
    states = stored_detectors([("few_tokens", FewTokens()), ("river_gaussian", taught(RiverGaussian))], 100)
    assert [bool(one.state) for one in states] == [True, False]
    assert restore_detectors([FewTokens, RiverGaussian], states).cold == ("river_gaussian",)
    # Who does not take its state begins cold and whole
    states = stored_detectors([("refuses_its_state", taught(RefusesItsState))], 100_000)
    ((_, detector),), cold = restore_detectors([RefusesItsState], states)
    assert cold == ("refuses_its_state",)
    assert np.isnan(detector.score(sample_frame("operator", 50))).all()


@pytest.mark.parametrize("state", [{"made": object()}, None])
def test_who_has_no_state_to_give_costs_its_job_no_snapshot(state: dict[str, Any] | None) -> None:
    class GivesNone(RobustBaseline):
        def state(self) -> dict[str, Any]:
            if state is None:
                raise RuntimeError("not today")
            return state

    states = stored_detectors([("gives_none", GivesNone()), ("baseline", taught(RobustBaseline))], 100_000)
    assert [bool(one.state) for one in states] == [False, True]
