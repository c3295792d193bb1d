"""The forest that people teach: what k words change, and what they leave alone."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from irregulars.detectors.plugins.forest.rank_features import FEATURES, rank_rows
from irregulars.detectors.plugins.forest.rank_past import RankPast
from irregulars.detectors.plugins.forest.taught_forest import TaughtForest
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.dtypes import Column, Floats
from irregulars.messages.records import UNKNOWN


def slow(iteration: int, rank: int, factor: float, tokens: float = 1.0) -> dict[str, Column]:
    """A frame of 64 ranks; one works longer, and has more tokens."""
    frame = sample_frame("rank", iteration, 64)
    frame["work_ns"][rank] *= factor
    frame["tokens"][rank] *= tokens
    frame["elapsed_ns"][:] = frame["work_ns"].max() + 3e7
    frame["communication_ns"] = frame["elapsed_ns"] - frame["work_ns"]
    return frame


def warm() -> TaughtForest:
    detector = TaughtForest()
    for iteration in range(40):
        detector.learn(sample_frame("rank", iteration, 64))
    return detector


def word(detector: TaughtForest, number: int, has_data: bool) -> Floats:
    """The rows of one verdict: one rank, one slowness, twelve iterations."""
    rng = np.random.default_rng([number, has_data])
    rank, factor = int(rng.integers(64)), float(rng.uniform(1.6, 3.0))
    frames = [slow(1000 + 20 * number + n, rank, factor, factor if has_data else 1.0) for n in range(12)]
    return np.concatenate([detector.examples(frame)[[rank]] for frame in frames])


def share_strange(detector: TaughtForest, has_data: bool) -> float:
    """Of rows of one pattern that were never taught, those above 0.5."""
    rng = np.random.default_rng(has_data)
    scores = []
    for iteration in range(300, 330):
        rank, factor = int(rng.integers(64)), float(rng.uniform(1.6, 3.0))
        scores.append(detector.score(slow(iteration, rank, factor, factor if has_data else 1.0))[rank])
    return float(np.mean(np.array(scores) > 0.5))


def teach(detector: TaughtForest, wrong: int, right: int) -> None:
    words = [*((word(detector, n, True), 0.0) for n in range(wrong)),
             *((word(detector, n, False), 1.0) for n in range(right))]  # fmt: skip
    detector.teach(
        np.concatenate([rows for rows, _ in words]), np.concatenate([[said] * len(rows) for rows, said in words])
    )


@pytest.mark.parametrize(("wrong", "right"), [(1, 0), (1, 1), (3, 0), (3, 3)])
def test_after_some_words_wrong_on_long_data_it_is_usual_and_a_slow_gpu_is_strange(wrong: int, right: int) -> None:
    detector = warm()
    assert (share_strange(detector, True), share_strange(detector, False)) == (1.0, 1.0), "by the rule"
    teach(detector, wrong, right)
    assert share_strange(detector, True) <= 0.1
    assert share_strange(detector, False) >= 0.9


def test_right_on_what_the_rule_overlooks_makes_it_strange() -> None:
    detector = warm()
    small = [slow(1000 + n, 5, 1.22) for n in range(36)]
    rows = np.concatenate([detector.examples(frame)[[5]] for frame in small])
    rows = rows[np.isfinite(rows).all(axis=1)]
    before = [detector.score(slow(400 + n, 9, 1.22))[9] for n in range(20)]
    detector.teach(rows, np.ones(len(rows)))
    after = [detector.score(slow(400 + n, 9, 1.22))[9] for n in range(20)]
    assert np.median(before) < 0.5 < np.median(after)


def test_what_does_not_stand_out_is_neither_taught_nor_asked() -> None:
    detector = warm()
    teach(detector, 2, 2)
    healthy = sample_frame("rank", 77, 64)
    assert np.isnan(detector.examples(healthy)).all(axis=1).sum() >= 62
    assert np.median(detector.score(healthy)) == 0.0


def test_of_a_large_job_the_rows_that_stand_out_most_are_asked() -> None:
    detector = TaughtForest(most_scored=4)
    teach(detector, 1, 1)
    frame = sample_frame("rank", 3, 1024)
    frame["work_ns"][::100] *= np.linspace(2.0, 4.0, 11)
    asked = np.flatnonzero(detector.score(frame))
    assert 1 < len(asked) <= 4
    assert set(asked.tolist()) <= {*range(0, 1024, 100)}


def test_taught_step_by_step_or_at_once_it_is_the_same_forest() -> None:
    steps, once = warm(), warm()
    rows = np.concatenate([word(steps, n, n % 2 == 0) for n in range(4)])
    labels = np.repeat([0.0, 1.0, 0.0, 1.0], 12)
    for past in (12, 24, 48):
        steps.teach(rows[:past], labels[:past])
    once.teach(rows, labels)
    frame = slow(500, 7, 2.0, 2.0)
    assert steps.score(frame).tolist() == once.score(frame).tolist()
    again: TaughtForest = pickle.loads(pickle.dumps(once))
    assert again.score(frame).tolist() == once.score(frame).tolist()


def test_rows_that_cannot_be_used_teach_nothing() -> None:
    detector = warm()
    frame = slow(500, 7, 2.0)
    before = detector.score(frame).tolist()
    detector.teach(np.full((3, len(FEATURES)), np.nan), np.ones(3))
    detector.teach(np.empty((0, 0)), np.empty(0))
    assert detector.score(frame).tolist() == before


def test_ranks_without_peers_are_held_against_their_own_past() -> None:
    detector = TaughtForest()
    for iteration in range(40):
        detector.learn(_alone(sample_frame("rank", iteration, 4)))
    frame = _alone(sample_frame("rank", 50, 4))
    frame["work_ns"][2] *= 3
    assert (detector.score(frame) > 0.5).tolist() == [False, False, True, False]
    assert np.isnan(TaughtForest().score(frame)).all()


def _alone(frame: dict[str, Column]) -> dict[str, Column]:
    return frame | {"stage": np.full(len(frame["rank"]), UNKNOWN)}


def test_features_have_no_units_and_know_no_names() -> None:
    frame = slow(5, 3, 2.0)
    doubled = frame | {name: 2 * frame[name] for name in ("work_ns", "elapsed_ns", "communication_ns", "tokens")}
    past = RankPast(warm_up=20, fading=0.05, forget_after=50)
    assert rank_rows(frame, past, 3.0).matrix == pytest.approx(rank_rows(doubled, past, 3.0).matrix)


def test_the_past_is_a_fading_mean_and_forgets_who_left() -> None:
    past = RankPast(warm_up=2, fading=0.25, forget_after=3)
    values = (1.0, 2.0, 4.0)
    for value in values:
        past.learn(np.array([7, 3]), np.array([[value, 0.0, 0.0], [5.0, 0.0, 0.0]]))
    mean = 1.0
    for value in values[1:]:
        mean += 0.25 * (value - mean)
    above, sigmas = past.deviations(np.array([3, 7, 8]), np.full((3, 3), 6.0))
    assert above[:, 0].tolist() == pytest.approx([1.0, 6.0 - mean, np.nan], nan_ok=True)
    assert sigmas[0] == pytest.approx(1.0 / 0.02)
    for _ in range(3):
        past.learn(np.array([3]), np.full((1, 3), 5.0))
    assert past.state()["ranks"].tolist() == [3]
