"""The forest on real jobs, trained on simulated ones: four ranks, gloo, faults in iterations 60 to 80."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.detectors.plugins.forest.random_forest import OperatorForest
from tests.detectors.recorded_operators import read_operators

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
