"""Models of River and scikit-learn by one line of settings: which lines are read, and which keep the promises."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from irregulars.detectors.plugins.adapters.drifts import DriftAdapter
from irregulars.detectors.plugins.adapters.outliers import OutlierAdapter, PastScores
from irregulars.detectors.plugins.adapters.series import SeriesPast
from irregulars.detectors.plugins.loading import DetectorName, load_detector, load_detectors, parse_detector
from irregulars.detectors.plugins.protocol import Detector
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.errors import PluginError


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    "river:anomaly.HalfSpaceTrees(n_trees=4)",
    "river:drift.ADWIN(delta=0.01)",
    "river:drift.ADWIN(delta=0.01) with level='operator'",
    "sklearn:svm.OneClassSVM(nu=0.05) with columns='work_ns, communication_ns', refit=20",
])  # fmt: skip
def test_a_line_of_settings_makes_a_detector_that_keeps_the_promises(text: str) -> None:
    load_detector(text, is_checked=True)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "name"), [
    ("river:drift.ADWIN", DetectorName("river:drift.ADWIN")),
    (
        "river:anomaly.HalfSpaceTrees(n_trees=5) with level='operator', warm_up=30",
        DetectorName("river:anomaly.HalfSpaceTrees", {"n_trees": 5}, {"level": "operator", "warm_up": 30}),
    ),
    ("river:drift.ADWIN  with  hold=5", DetectorName("river:drift.ADWIN", {}, {"hold": 5})),
    (
        "river:drift.ADWIN() with (hold=5, warm_up=9)",
        DetectorName("river:drift.ADWIN", {}, {"hold": 5, "warm_up": 9}),
    ),
])  # fmt: skip
def test_options_of_the_model_and_of_the_adapter_are_told_apart(text: str, name: DetectorName) -> None:
    assert parse_detector(text) == name


@pytest.mark.slow
@pytest.mark.parametrize(("text", "message"), [
    (
        "river:anomaly.HalfSpaceTree()",
        r"must be an outlier or drift detector of river; did you mean HalfSpaceTrees\?",
    ),
    ("river:stats.Mean()", r"must be an outlier or drift detector of river; there is none in this module"),
    ("river:nowhere.Thing", r"must be in river; got no module river.nowhere"),
    ("river:ADWIN", r"detector must be river:module.Class; got 'river:ADWIN'"),
    ("river:_hidden.Thing", r"detector must be river:module.Class"),
    ("sklearn:ensemble.RandomForestClassifier", r"must be an outlier or drift detector of sklearn; "),
    ("sklearn:base.OutlierMixin", r"must be an outlier or drift detector of sklearn"),
    ("river:drift.ADWIN(speed=3)", r"must be constructible; got TypeError: .*speed"),
    ("river:anomaly.ThresholdFilter()", r"must be an outlier or drift detector of river|must be constructible"),
    ("river:drift.ADWIN with speed=3", r"adapter options must be of level, .*; got 'speed'"),
    ("river:drift.ADWIN with level='job'", r"level must be operator or rank; got 'job'"),
    ("river:drift.ADWIN with columns='smell'", r"columns must be of elapsed_ns, .*; got 'smell'"),
    ("river:drift.ADWIN with warm_up=1", r"warm_up must be 2 to 64"),
    ("river:drift.ADWIN with warm_up='20'", r"warm_up must be int; got '20'"),
    ("river:drift.ADWIN with shared=1", r"shared must be bool; got 1"),
    ("river:drift.ADWIN with hold=x", r"options must be \(name=value, …\) with plain values"),
    ("peers with hold=3", r"options behind 'with' must be those of river or sklearn models"),
])  # fmt: skip
def test_what_cannot_be_used_is_one_line(text: str, message: str) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        load_detector(text, is_checked=False)()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_modules_checks_and_settings_of_adapters() -> None:
    # No module outside of the library is imported: a class that a library's module merely imports is not its own.
    with pytest.raises(PluginError, match=r"must be an outlier or drift detector of river"):
        load_detector("river:anomaly.hst.collections", is_checked=False)
    # What keeps no promise is refused by its check
    with pytest.raises(PluginError, match=r"detector river:drift.NoDrift\(\): healthy frames .*\(check quiet_on_"):
        load_detector("river:drift.NoDrift()")
    # Adapters stand beside others in the settings
    made = load_detectors(["peers", "river:drift.ADWIN with level='operator'"], is_checked=False)
    assert [len(made["rank"]), len(made["operator"])] == [1, 1]
    assert pickle.loads(pickle.dumps(made["operator"][0]))().level == "operator"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["river:drift.ADWIN", "river:anomaly.GaussianScorer"])
def test_a_strange_row_is_explained(text: str) -> None:
    detector = load_detector(text, is_checked=False)()
    for iteration in range(60):
        detector.learn(sample_frame("rank", iteration, 16))
    assert isinstance(detector, DriftAdapter | OutlierAdapter)
    assert detector.name == text.rpartition(".")[2]
    frame = sample_frame("rank", 100, 16, is_faulty=True)
    assert re.fullmatch(r"work_ns 2\.\d+e\+08, \d\d\.\d spreads above its own past", detector.explain(frame, 1))
    assert detector.explain(sample_frame("rank", 1, 99), 98) == "", "a rank that was never seen"


@pytest.mark.slow
def test_outliers_and_drifts_have_their_adapters() -> None:
    assert isinstance(load_detector("river:drift.binary.DDM", is_checked=False)(), DriftAdapter)
    assert isinstance(load_detector("sklearn:neighbors.LocalOutlierFactor", is_checked=False)(), OutlierAdapter)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_a_model_for_all_ranks_or_for_each_finds_the_slow_one(shared: bool) -> None:
    detector = load_detector(
        f"river:anomaly.GaussianScorer(grace_period=20) with shared={shared}", is_checked=False
    )()
    for iteration in range(150):
        detector.learn(sample_frame("rank", iteration, 16))
    scores = detector.score(sample_frame("rank", 200, 16, is_faulty=True))
    assert np.flatnonzero(scores >= 1).tolist() == [1]


def filled(scores: np.ndarray, kept: int = 500) -> PastScores:
    past = PastScores(kept=kept, strange_share=0.05)
    for score in scores.tolist():
        past.add(score)
    return past


def test_the_scale_of_past_scores() -> None:
    # One is where the strange share of past scores was as high
    past = filled(np.arange(999.0), kept=999)
    assert past.scaled(np.array([950.0]))[0] == pytest.approx(1.0)
    assert past.scaled(np.array([-1.0]))[0] == pytest.approx(0.0)
    assert past.scaled(np.array([1e9]))[0] == pytest.approx(np.log(1000) / np.log(20))
    # The scale does not depend on the models own
    scores, asked = np.random.default_rng(1).normal(size=300), np.array([0.0, 1.0, 2.0])
    assert filled(scores).scaled(asked).tolist() == filled(7 * scores - 100).scaled(7 * asked - 100).tolist()
    # Of few scores nothing is said
    assert np.isnan(filled(np.arange(49.0)).scaled(np.array([100.0]))).all()
    # What a cold model says of all does not count: `HalfSpaceTrees` says 0 until its first window is full; against
    # those its first scores would be strange.
    past = filled(np.zeros(250))
    assert np.isnan(past.scaled(np.array([0.7]))).all()
    for score in np.random.default_rng(2).uniform(0.6, 0.9, 60).tolist():
        past.add(score)
    assert past.scaled(np.array([0.7]))[0] < 0.5
    # Scores that are no numbers are left out
    past = filled(np.array([np.nan, np.inf, *range(60)]))
    assert np.isfinite(past.scaled(np.array([3.0]))).all()
    assert np.isnan(past.scaled(np.array([np.nan]))).all()
    # Old scores are forgotten
    past = filled(np.concatenate([np.full(500, 9.0) + np.arange(500), np.arange(100.0) / 100]), kept=100)
    assert past.scaled(np.array([5.0]))[0] > 1


def warm(text: str = "river:drift.ADWIN(delta=0.01)", frames: int = 60) -> Detector:
    detector = load_detector(text, is_checked=False)()
    for iteration in range(frames):
        detector.learn(sample_frame("rank", iteration, 16))
    return detector


@pytest.mark.slow
def test_drifts() -> None:
    # A row that would be a drift if it stayed is strange
    scores = warm().score(sample_frame("rank", 100, 16, is_faulty=True))
    assert np.flatnonzero(scores >= 1).tolist() == [1]
    # A slow drift that no row shows is strange when the detector tells of it
    detector, strange = warm(), []
    for step in range(120):
        frame = sample_frame("rank", 100 + step, 16)
        frame["work_ns"][3] *= 1.0 + 0.004 * step  # 0.4 % an iteration: never five spreads at once
        strange += [step] * int(detector.score(frame)[3] >= 1)
        detector.learn(frame)
    assert strange
    assert strange[0] < 80
    # A drift downwards is nobodys fault
    detector = warm()
    for step in range(60):
        frame = sample_frame("rank", 100 + step, 16)
        frame["work_ns"][3] *= 0.7
        assert not (detector.score(frame)[3] >= 1)
        detector.learn(frame)
    # A drift is held for some frames and then over
    detector = warm("river:drift.ADWIN(delta=0.01) with hold=4")
    for step in range(200):
        frame = sample_frame("rank", 100 + step, 16)
        frame["work_ns"][3] *= 2.0
        detector.learn(frame)
    assert detector.score(frame)[3] == 0.0, "twice the work has long been usual"


def taught(frames: int, ranks: int = 3) -> SeriesPast:
    past, rng = SeriesPast(1, warm_up=20), np.random.default_rng(1)
    for _ in range(frames):
        past.learn(np.arange(ranks), rng.normal(5.0, 0.1, (ranks, 1)))
    return past


def test_deviations_of_series() -> None:
    # Deviations are in spreads of the series own past
    found = taught(60).deviations(np.array([1]), np.array([[6.0]]))[0, 0]
    assert 7 < found < 14, "1.0 above a median of 5, with a spread of about 0.1"
    # Median and spread are those of numpy however many values there are
    rng = np.random.default_rng(3)
    for count in (2, 3, 5, 64, 90):
        past, values = SeriesPast(1, warm_up=2, floor=0.0), rng.normal(5.0, 1.0, count)
        for value in values.tolist():
            past.learn(np.array([4]), np.array([[value]]))
        newest = values[-64:]
        middle = np.median(newest)
        assert past.usual(4) == pytest.approx((middle, 1.4826 * np.median(np.abs(newest - middle))), rel=1e-4)
    # A cold series and one never seen have no opinion
    assert np.isnan(taught(19).deviations(np.array([1]), np.array([[6.0]]))).all()
    assert np.isnan(taught(60).deviations(np.array([9]), np.array([[6.0]]))).all()
    # Unknown values are neither taught nor judged
    past = taught(60)
    before = past.deviations(np.array([0]), np.array([[6.0]]))
    past.learn(np.array([0]), np.array([[np.nan]]))
    assert past.deviations(np.array([0]), np.array([[6.0]])).tolist() == before.tolist()
    assert np.isnan(past.deviations(np.array([0]), np.array([[np.nan]]))).all()
    # A series that is gone is forgotten
    past = taught(60)
    for _ in range(101):
        past.learn(np.array([0]), np.array([[5.0]]))
    assert np.isnan(past.deviations(np.array([1]), np.array([[6.0]]))).all()


def test_rows_and_warm_up_of_a_series() -> None:
    # Several rows of a series teach one after the other
    past = SeriesPast(1, warm_up=2, kept=4)
    for _ in range(4):
        past.learn(np.zeros(4, dtype=np.int64), np.array([[1.0], [2.0], [3.0], [4.0]]))
    assert past.usual(0)[0] == pytest.approx(2.5)
    # A warm up beyond what is kept is refused
    with pytest.raises(PluginError, match=r"warm_up must be 2 to 64"):
        SeriesPast(1, warm_up=65)
