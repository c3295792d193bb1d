from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from irregulars.detectors.plugins.checks import check_detector
from irregulars.detectors.plugins.forest.features import FEATURES, OperatorFeatures
from irregulars.detectors.plugins.forest.random_forest import (
    MODEL,
    VERSION,
    OperatorForest,
    Trees,
    load_trees,
    save_trees,
)
from irregulars.detectors.plugins.loading import load_detector
from irregulars.detectors.plugins.protocol import MakeDetector
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.errors import PluginError
from tests.benchmarks.train_operator_forest import export_trees, gather_examples, train_forest
from tests.detectors.known_operators import read_operators

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("make", [OperatorForest, partial(OperatorForest, tuning="drift")], ids=["always", "drift"])
def test_the_promises_of_a_detector_are_kept(make: MakeDetector) -> None:
    check_detector(make)


def taught() -> OperatorForest:
    detector = OperatorForest()
    for iteration in range(60):
        detector.learn(sample_frame("operator", iteration))
    return detector


def test_the_forest_calls_slow_operators_abnormal() -> None:
    # Slow operators are called abnormal and healthy ones are not
    detector = taught()
    slow = sample_frame("operator", 70, is_faulty=True)
    np.testing.assert_array_equal(detector.score(slow) > 0.5, slow["communicator"] == 2)
    healthy = np.concatenate([detector.score(sample_frame("operator", n)) for n in range(100, 200)])
    assert (healthy > 0.5).mean() < 0.001
    # A row is not known while its class is cold
    frame = sample_frame("operator", 70)
    frame["peer"][frame["communicator"] == 2] = 99
    assert (np.isnan(taught().score(frame)) == (frame["communicator"] == 2)).all()
    # The model is no part of what is pickled
    assert len(pickle.dumps(OperatorForest())) < 10_000
    # It is found by name with its options
    detector = load_detector(
        "irregulars.detectors.plugins.forest.random_forest:OperatorForest(tuning='drift', window=24)"
    )()
    assert isinstance(detector, OperatorForest)
    with pytest.raises(PluginError, match="tuning must be one of"):
        load_detector("irregulars.detectors.plugins.forest.random_forest:OperatorForest(tuning='on')")
    with pytest.raises(PluginError, match="forest must be a readable"):
        load_detector("irregulars.detectors.plugins.forest.random_forest:OperatorForest(model='nowhere.npz')")


NAMES = ("a", "b", "c")


def examples(rows: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(rows, 3)).astype(np.float32)
    return matrix, (matrix[:, 0] * matrix[:, 1] + 0.3 * rng.normal(size=rows) > 0.4)


@pytest.fixture(scope="module")
def forest() -> object:
    matrix, labels = examples()
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(15, max_depth=8, min_samples_leaf=3, random_state=1).fit(matrix, labels)


def test_our_trees_say_what_scikit_learn_says(forest: object) -> None:
    matrix = np.concatenate([examples(seed=5)[0], examples()[0]])
    wanted = forest.predict_proba(matrix)[:, 1]  # type: ignore[attr-defined]
    np.testing.assert_allclose(export_trees(forest, NAMES).predict(matrix), wanted, atol=1e-6)


def test_values_on_a_threshold_go_the_same_way(forest: object) -> None:
    trees = export_trees(forest, NAMES)
    matrix = np.resize(trees.threshold[trees.feature >= 0], (4000, 3))
    for values in (matrix, np.nextafter(matrix, np.float32(9)), np.nextafter(matrix, np.float32(-9))):
        wanted = forest.predict_proba(values)[:, 1]  # type: ignore[attr-defined]
        np.testing.assert_allclose(trees.predict(values), wanted, atol=1e-6)


def test_a_file_gives_back_the_same_trees(forest: object, tmp_path: Path) -> None:
    trees = export_trees(forest, NAMES)
    save_trees(trees, tmp_path / "trees.npz")
    loaded = load_trees(tmp_path / "trees.npz", NAMES)
    matrix = examples(seed=9)[0]
    assert loaded.depth == trees.depth <= 8
    np.testing.assert_array_equal(loaded.predict(matrix), trees.predict(matrix))
    assert load_trees(tmp_path / "trees.npz", NAMES) is loaded


def test_no_rows_and_one_leaf_are_no_special_case(forest: object) -> None:
    assert export_trees(forest, NAMES).predict(np.zeros((0, 3))).shape == (0,)
    own = np.zeros(1, dtype=np.int32)
    leaf = Trees(NAMES, own, np.array([-1], dtype=np.int8), np.zeros(1, np.float32), own, own, np.array([0.25]), 0)
    assert leaf.predict(np.ones((2, 3))).tolist() == [0.25, 0.25]


def test_a_file_that_does_not_fit_is_refused_in_words(forest: object, tmp_path: Path) -> None:
    path = tmp_path / "trees.npz"
    save_trees(export_trees(forest, NAMES), path)
    with pytest.raises(PluginError, match=r"must be trained on today's features; got \['c', 'd'\]"):
        load_trees(path, ("a", "b", "d"))
    with np.load(path) as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "other.npz", **{**arrays, "version": np.asarray(VERSION + 1)})
    with pytest.raises(PluginError, match="must be of version 1; got array"):
        load_trees(tmp_path / "other.npz", NAMES)
    (tmp_path / "text.npz").write_text("no archive")
    for name in ("text.npz", "missing.npz"):
        with pytest.raises(PluginError, match=r"must be a readable \.npz file"):
            load_trees(tmp_path / name, NAMES)


def test_the_forest_that_ships_is_small_and_fits_the_features() -> None:
    assert MODEL.stat().st_size < 600_000
    trees = load_trees(MODEL, FEATURES)
    assert trees.depth <= 10
    assert len(trees.roots) == 40


def test_training_takes_frames_and_their_truth_and_is_repeatable() -> None:
    features = OperatorFeatures(window=32, warm_up=20, tuning="always", most_slots=4096)
    for iteration in range(40):
        features.learn(sample_frame("operator", iteration))
    frames = [sample_frame("operator", n, is_faulty=n % 2 == 0) for n in range(50, 80)]
    labelled = [(features.rows(one), (one["communicator"] == 2) & (n % 2 == 0)) for n, one in enumerate(frames)]
    matrix, labels = gather_examples(labelled)
    assert labels.sum() > 100
    assert len(labels) < 30 * 48
    first, second = (export_trees(train_forest(matrix, labels, trees=3, depth=4)) for _ in range(2))
    np.testing.assert_array_equal(first.predict(matrix), second.predict(matrix))
    assert ((first.predict(matrix) > 0.5) == labels).mean() > 0.9


FAULTY = range(60, 80)
RANKS = range(4)


def called_abnormal(recording: str, rank: int) -> tuple[float, float]:
    """Parts of the operators called abnormal: in healthy iterations, and in faulty ones, which teach nothing."""
    detector, parts = OperatorForest(), ([0.0], [0.0])
    rows = read_rank(recording, rank)
    for iteration in np.unique(rows["iteration"]).tolist():
        frame = {name: column[rows["iteration"] == iteration] for name, column in rows.items()}
        is_faulty = iteration in FAULTY and recording != "gloo-clean"
        if iteration >= 40:
            parts[is_faulty].append(float(np.nanmean(detector.score(frame) > 0.5)))
        if not is_faulty:
            detector.learn(frame)
    return float(np.mean(parts[0])), float(np.mean(parts[1]))


def read_rank(recording: str, rank: int) -> dict[str, np.ndarray]:
    """Operators of one rank in the order of their starts, with the gaps before them, as an `operator` frame."""
    columns = read_operators(recording)
    own = {name: column[columns["rank"] == rank] for name, column in columns.items() if name != "rank"}
    start_ns = own.pop("start_ns").astype(np.float64)
    ends_ns = np.maximum.accumulate(start_ns + own["elapsed_ns"])
    return {
        **own,
        "operator": own["operator"].astype(np.uint8),
        "gap_ns": np.maximum(start_ns - np.r_[np.nan, ends_ns[:-1]], 0.0),
    }


@pytest.mark.parametrize("rank", RANKS)
def test_a_healthy_job_is_left_alone(rank: int) -> None:
    assert called_abnormal("gloo-clean", rank)[0] < 0.04


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("recording", ["gloo-slow-nic", "gloo-slow-link"])
def test_slow_transfers_show_on_all_ranks_that_wait_for_them(recording: str, rank: int) -> None:
    healthy, faulty = called_abnormal(recording, rank)
    assert healthy < 0.1
    assert faulty > 3 * healthy


def test_who_waits_for_a_late_rank_is_abnormal_and_the_late_rank_is_not() -> None:
    faulty = {rank: called_abnormal("gloo-slow-rank", rank)[1] for rank in RANKS}
    assert min(faulty, key=faulty.__getitem__) == 2
    assert faulty[2] < min(faulty[rank] for rank in RANKS if rank != 2) / 3
