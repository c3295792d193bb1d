"""Models of River and scikit-learn by one line of settings: which lines are read, and which keep the promises."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from irregulars.detectors.plugins.adapters.drifts import DriftAdapter
from irregulars.detectors.plugins.adapters.outliers import OutlierAdapter
from irregulars.detectors.plugins.loading import DetectorName, load_detector, load_detectors, parse_detector
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.errors import PluginError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "text",
    [
        "river:anomaly.HalfSpaceTrees(n_trees=10)",
        "river:drift.ADWIN(delta=0.01)",
        "sklearn:ensemble.IsolationForest(n_estimators=50)",
        "river:anomaly.GaussianScorer()",
        "river:drift.ADWIN(delta=0.01) with level='operator'",
        "sklearn:svm.OneClassSVM(nu=0.05) with columns='work_ns, communication_ns', refit=20",
    ],
)
def test_a_line_of_settings_makes_a_detector_that_keeps_the_promises(text: str) -> None:
    load_detector(text, is_checked=True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
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
    ],
)
def test_options_of_the_model_and_of_the_adapter_are_told_apart(text: str, name: DetectorName) -> None:
    assert parse_detector(text) == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
    ],
)
def test_what_cannot_be_used_is_one_line(text: str, message: str) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        load_detector(text, is_checked=False)()
    assert "\n" not in str(caught.value)


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


def test_outliers_and_drifts_have_their_adapters() -> None:
    assert isinstance(load_detector("river:drift.binary.DDM", is_checked=False)(), DriftAdapter)
    assert isinstance(load_detector("sklearn:neighbors.LocalOutlierFactor", is_checked=False)(), OutlierAdapter)


@pytest.mark.parametrize("shared", [True, False])
def test_a_model_for_all_ranks_or_for_each_finds_the_slow_one(shared: bool) -> None:
    detector = load_detector(
        f"river:anomaly.GaussianScorer(grace_period=20) with shared={shared}", is_checked=False
    )()
    for iteration in range(150):
        detector.learn(sample_frame("rank", iteration, 16))
    scores = detector.score(sample_frame("rank", 200, 16, is_faulty=True))
    assert np.flatnonzero(scores >= 1).tolist() == [1]
