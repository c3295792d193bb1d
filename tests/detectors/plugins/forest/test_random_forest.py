from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest

from irregulars.detectors.plugins.checks import check_detector
from irregulars.detectors.plugins.forest.random_forest import OperatorForest
from irregulars.detectors.plugins.loading import load_detector
from irregulars.detectors.plugins.protocol import MakeDetector
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.errors import PluginError


@pytest.mark.parametrize(
    "make",
    [OperatorForest, partial(OperatorForest, tuning="drift"), partial(OperatorForest, tuning="off")],
    ids=["always", "drift", "off"],
)
def test_the_promises_of_a_detector_are_kept(make: MakeDetector) -> None:
    check_detector(make)


def taught() -> OperatorForest:
    detector = OperatorForest()
    for iteration in range(60):
        detector.learn(sample_frame("operator", iteration))
    return detector


def test_slow_operators_are_called_abnormal_and_healthy_ones_are_not() -> None:
    detector = taught()
    slow = sample_frame("operator", 70, is_faulty=True)
    np.testing.assert_array_equal(detector.score(slow) > 0.5, slow["communicator"] == 2)
    healthy = np.concatenate([detector.score(sample_frame("operator", n)) for n in range(100, 200)])
    assert (healthy > 0.5).mean() < 0.001


def test_a_row_is_not_known_while_its_class_is_cold() -> None:
    frame = sample_frame("operator", 70)
    frame["peer"][frame["communicator"] == 2] = 99
    assert (np.isnan(taught().score(frame)) == (frame["communicator"] == 2)).all()


def test_the_model_is_no_part_of_what_is_pickled() -> None:
    assert len(pickle.dumps(OperatorForest())) < 10_000


def test_it_is_found_by_name_with_its_options() -> None:
    detector = load_detector(
        "irregulars.detectors.plugins.forest.random_forest:OperatorForest(tuning='drift', window=24)"
    )()
    assert isinstance(detector, OperatorForest)
    with pytest.raises(PluginError, match="tuning must be one of"):
        load_detector("irregulars.detectors.plugins.forest.random_forest:OperatorForest(tuning='on')")
    with pytest.raises(PluginError, match="forest must be a readable"):
        load_detector("irregulars.detectors.plugins.forest.random_forest:OperatorForest(model='nowhere.npz')")
