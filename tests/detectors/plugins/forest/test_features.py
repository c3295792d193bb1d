from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.detectors.plugins.forest.features import FEATURES, OperatorFeatures, Tuning, log_times
from irregulars.detectors.plugins.sample_frames import rename, sample_frame, take
from irregulars.errors import PluginError


def made(tuning: Tuning = "always", **more: int) -> OperatorFeatures:
    return OperatorFeatures(**{"window": 32, "warm_up": 20, "most_slots": 4096, "tuning": tuning, **more})  # type: ignore[arg-type]


def taught(tuning: Tuning = "always", frames: int = 40, factor: float = 1.0, speed: float = 1.0) -> OperatorFeatures:
    """Taught frames that get slower by `factor` in all, on a machine of `speed`."""
    features = made(tuning)
    for iteration in range(frames):
        features.learn(scale(sample_frame("operator", iteration), speed * factor ** (iteration / frames)))
    return features


def scale(frame: dict[str, np.ndarray], factor: float) -> dict[str, np.ndarray]:
    return {**frame, "elapsed_ns": frame["elapsed_ns"] * factor, "gap_ns": frame["gap_ns"] * factor}


def test_rows_that_have_features() -> None:
    # There are no features before the warm up
    for frames, known in ((0, 0), (19, 0), (24, 48)):
        assert len(taught(frames=frames).rows(sample_frame("operator", 50)).rows) == known
    # Features are finite even where gaps and sizes are not known
    frame = sample_frame("operator", 50)
    frame["gap_ns"][:] = np.nan
    found = taught().rows(frame)
    assert found.matrix.shape == (48, len(FEATURES))
    assert np.isfinite(found.matrix).all()
    # An operator that did not end has no features
    frame = sample_frame("operator", 50)
    frame["elapsed_ns"][[3, 9]] = np.nan
    assert set(range(48)) - set(taught().rows(frame).rows.tolist()) == {3, 9}


@settings(max_examples=20)
@given(st.floats(0.01, 100))
def test_a_faster_machine_has_the_same_features(speed: float) -> None:
    frame = sample_frame("operator", 50, is_faulty=True)
    here, there = taught().rows(frame), taught(speed=speed).rows(scale(frame, speed))
    np.testing.assert_allclose(here.matrix, there.matrix, rtol=1e-3, atol=1e-3)


def test_names_places_and_first_test() -> None:
    # Other names have the same features
    features = made()
    for iteration in range(40):
        features.learn(rename(sample_frame("operator", iteration), 700))
    frame = sample_frame("operator", 50, is_faulty=True)
    np.testing.assert_allclose(features.rows(rename(frame, 700)).matrix, taught().rows(frame).matrix)
    # A place that is new is compared with its class
    frame = sample_frame("operator", 50)
    frame["sequence"] += 1000 * np.arange(48) ** 2
    found = taught().rows(frame)
    assert len(found.rows) == 48
    np.testing.assert_array_equal(found.column("slot_ratio")[6:], found.column("class_ratio")[6:])
    # The first test passes slow operators of slow iterations alone
    features = taught()
    slow = sample_frame("operator", 50, is_faulty=True)
    found = features.rows(slow)
    assert found.is_suspicious()[slow["communicator"][found.rows] == 2].all()
    healthy = [features.rows(sample_frame("operator", n)).is_suspicious() for n in range(60, 80)]
    assert np.concatenate(healthy).mean() < 0.02


@pytest.mark.parametrize(("tuning", "follows"), [("always", True), ("drift", True), ("off", False)])
def test_what_is_usual_follows_a_slow_drift_unless_switched_off(tuning: Tuning, follows: bool) -> None:
    features = taught(tuning, frames=300, factor=1.5)
    ratio = features.rows(scale(sample_frame("operator", 500), 1.5)).column("slot_ratio")
    assert (abs(np.median(ratio)) < 0.12) == follows


def test_tuning_follows_drift_alone() -> None:
    # Drift detection moves nothing while a job does not drift
    features = taught("drift", frames=60)
    before = features._usual
    for iteration in range(60, 200):
        features.learn(sample_frame("operator", iteration))
    assert features._usual is before
    # A fault that teaches nothing stays visible
    features = taught()
    first = features.rows(sample_frame("operator", 50, is_faulty=True)).matrix
    for _ in range(50):
        features.rows(sample_frame("operator", 50, is_faulty=True))
    np.testing.assert_array_equal(features.rows(sample_frame("operator", 50, is_faulty=True)).matrix, first)
    # Batched operators count once in the time of an iteration
    frame = {"elapsed_ns": np.array([10.0, 30.0, 30.0, 5.0]), "gap_ns": np.array([np.nan, 2.0, 0.0, 3.0])}
    np.testing.assert_allclose(np.exp(log_times(frame)), [10 + 2 + 30 + 3 + 5, 75 / 4])
    assert np.isnan(log_times(take(frame, np.zeros(0, dtype=np.int64)))).all()


@pytest.mark.parametrize(("options", "text"), [
    ({"warm_up": 3}, "warm_up must be 4 to window = 32; got 3"), ({"warm_up": 33}, "warm_up must be"),
    ({"tuning": "sometimes"}, "tuning must be one of always, drift, off; got 'sometimes'"),
])  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(PluginError, match=text):
        made(**options)  # type: ignore[arg-type]


def test_in_a_job_whose_iterations_differ_anyway_nothing_stands_out_by_a_little() -> None:
    rng = np.random.default_rng(4)
    features = made()
    for iteration in range(60):
        features.learn(scale(sample_frame("operator", iteration), rng.lognormal(0, 0.2)))
    slower = scale(sample_frame("operator", 70), 1.25)
    assert not features.rows(slower).is_suspicious().any()
    assert taught().rows(slower).is_suspicious().all()
    assert features.rows(scale(sample_frame("operator", 70), 3.0)).is_suspicious().all()
