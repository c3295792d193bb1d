from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from irregulars.detectors.plugins.forest.features import FEATURES, OperatorFeatures, Tuning, log_times
from irregulars.detectors.plugins.forest.past import OperatorPast, Places, Slots, pack_slots
from irregulars.detectors.plugins.sample_frames import rename, sample_frame, take
from irregulars.errors import PluginError
from irregulars.messages.records import UNKNOWN

pytestmark = pytest.mark.slow


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


def frame(
    iteration: int, first: int, length: int = 6, *, communicator: int = 3, lost: tuple[int, ...] = ()
) -> dict[str, np.ndarray]:
    """One series of operators, some of its rows lost."""
    sequence = np.array([first + n for n in range(length) if n not in lost], dtype=np.int64)
    size = len(sequence)
    return {
        "communicator": np.full(size, communicator, dtype=np.int64),
        "operator": np.full(size, 2, dtype=np.uint8),
        "peer": np.full(size, UNKNOWN, dtype=np.int64),
        "sequence": sequence,
        "size_bytes": np.full(size, 1e6),
        "iteration": np.full(size, iteration, dtype=np.int64),
    }


def taught_places() -> Places:
    places = Places()
    places.learn(frame(0, 1))
    places.learn(frame(1, 7))
    return places


def test_places_count_from_the_first_of_the_iteration() -> None:
    assert taught_places().number(frame(5, 31)).tolist() == [0, 1, 2, 3, 4, 5]


@given(st.sets(st.integers(0, 4)))
def test_lost_rows_do_not_move_the_others(lost: set[int]) -> None:
    kept = [n for n in range(6) if n not in lost]
    assert taught_places().number(frame(4, 25, lost=tuple(lost))).tolist() == kept


def test_places_of_operators() -> None:
    # An operator more than usual starts the series anew
    places = taught_places()
    places.learn(frame(2, 13, 7))
    assert places.number(frame(3, 20)).tolist() == [0, 1, 2, 3, 4, 5]
    # A sequence that is not known has no place and moves nobody
    rows = frame(2, 13)
    rows["sequence"][2] = UNKNOWN
    assert taught_places().number(rows).tolist() == [0, 1, -1, 3, 4, 5]
    rows["sequence"][:] = UNKNOWN
    places = taught_places()
    places.learn(rows)
    assert places.number(rows).tolist() == [-1] * 6
    # The number of series is bounded
    places = Places(most_series=3)
    for number in range(10):
        places.learn(frame(number, 1, communicator=number))
    assert len(places._series) == 3


@pytest.mark.parametrize("change", ["communicator", "operator", "peer", "size_bytes"])
def test_other_operators_have_other_slots_and_classes(change: str) -> None:
    one, other = frame(0, 1), frame(0, 1)
    other[change] = (other[change] if change != "peer" else np.zeros(6, dtype=np.int64)) + (
        np.uint8(1) if change == "operator" else np.int64(5) if change != "size_bytes" else 9e6
    )
    places = np.arange(6)
    first, second = pack_slots(one, places), pack_slots(other, places)
    assert not np.isin(first.slot, second.slot).any()
    assert not np.isin(first.class_, second.class_).any()
    assert len(np.unique(first.slot)) == 6
    assert len(np.unique(first.class_)) == 1


def slots(*codes: int) -> Slots:
    code = np.array(codes, dtype=np.uint64)
    return Slots(code, code // np.uint64(10))


def past(window: int = 8, warm_up: int = 4, most_slots: int = 100) -> OperatorPast:
    return OperatorPast(window=window, warm_up=warm_up, most_slots=most_slots)


@given(arrays(np.float64, st.tuples(st.integers(4, 20), st.just(3)), elements=st.floats(0, 40, width=32)))
def test_statistics_are_those_of_numpy_over_the_window(values: np.ndarray) -> None:
    ring = past()
    for row in values:
        ring.learn(slots(11, 12, 25), row, np.abs(row))
    usual, kept = ring.usual(), values[-8:]
    close = {"rtol": 1e-4, "atol": 1e-4}
    assert usual.slots.tolist() == [11, 12, 25]
    quartiles = {0.25: usual.of_slot.low_quartile, 0.5: usual.of_slot.median, 0.75: usual.of_slot.high_quartile}
    for share, found in quartiles.items():
        np.testing.assert_allclose(found, np.quantile(kept, share, axis=0), **close)
    np.testing.assert_allclose(usual.of_slot.mean, kept.mean(axis=0), **close)
    np.testing.assert_allclose(usual.of_slot.deviation, kept.std(axis=0), **close)
    np.testing.assert_allclose(usual.gap_ns, np.median(kept, axis=0), **close)
    assert usual.classes.tolist() == [1, 2]
    np.testing.assert_allclose(usual.of_class.median[0], np.median(kept[:, :2]), **close)
    np.testing.assert_allclose(usual.of_class.deviation[0], kept[:, :2].std(), **close)


def test_slots() -> None:
    # A slot is known when it has taught_places enough
    ring = past()
    told = [ring.learn(slots(11), np.array([1.0]), np.array([1.0])) for _ in range(6)]
    assert told == [False, False, False, True, False, False]
    ring.learn(slots(12), np.array([1.0]), np.array([1.0]))
    assert ring.usual().slots.tolist() == [11]
    # Gaps that are not known are left out
    ring = past()
    for gap_ns in (5.0, np.nan, 7.0, np.nan):
        ring.learn(slots(11, 12), np.ones(2), np.array([gap_ns, np.nan]))
    np.testing.assert_equal(ring.usual().gap_ns, [6.0, np.nan])
    # Of a slot that occurs twice the last row counts
    ring = past()
    for _ in range(4):
        ring.learn(slots(11, 11), np.array([1.0, 3.0]), np.zeros(2))
    assert ring.usual().of_slot.median.tolist() == [3.0]
    # The slots not seen for longest go first
    ring = past(most_slots=2)
    for code in (11, 12, 13):
        for _ in range(4):
            ring.learn(slots(code), np.array([1.0]), np.zeros(1))
    assert ring.usual().slots.tolist() == [12, 13]


@pytest.mark.parametrize("count", [0, 3])
def test_a_cold_past_knows_nothing(count: int) -> None:
    ring = past()
    for _ in range(count):
        ring.learn(slots(11), np.array([1.0]), np.zeros(1))
    usual = ring.usual()
    assert len(usual.slots) == len(usual.classes) == 0
