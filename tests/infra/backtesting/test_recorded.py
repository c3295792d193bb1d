from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from irregulars.detectors.plugins.loading import load_detector, load_detectors
from irregulars.detectors.plugins.protocol import COLUMNS
from irregulars.errors import InputError
from irregulars.infra.runs.analysis import judge_whole
from irregulars.infra.runs.backtest import backtest, find_recordings, read_faults, read_recording, shipped_detectors
from irregulars.infra.runs.scoring import Fault, replay
from irregulars.producers.trace.directory import read_trace
from irregulars.settings import JudgeSettings
from irregulars.streams.local_pipeline import LocalPipeline
from tests.conftest import RECORDINGS

pytestmark = pytest.mark.slow

SLOW_RANK = RECORDINGS / "gloo-slow-rank"


def test_the_frames_of_ranks_are_those_of_the_monitor() -> None:
    job = read_recording(SLOW_RANK, "rank", JudgeSettings())
    (frames,) = job.streams
    assert [one.iteration for one in frames] == list(range(160))
    assert all(set(one.frame) >= set(COLUMNS["rank"]) for one in frames)
    untaught = [one.iteration for one in frames if not one.is_taught]
    assert set(range(60, 80)) <= set(untaught), "irregular iterations are not taught"
    assert len(untaught) < 60


def test_each_rank_has_its_own_frames_of_operators() -> None:
    job = read_recording(SLOW_RANK, "operator", JudgeSettings())
    assert job.rank_of == (0, 1, 2, 3)
    assert all(set(one.frame) >= set(COLUMNS["operator"]) for stream in job.streams for one in stream)
    assert job.rows == sum(len(batch) for batch in read_trace(SLOW_RANK).commops.values()) - _without_iteration()


def _without_iteration() -> int:
    """Operators outside of any iteration: set-up, and the last barrier."""
    return sum(int((batch.columns["iteration"] < 0).sum()) for batch in read_trace(SLOW_RANK).commops.values())


def test_a_replay_scores_what_a_monitor_would_store() -> None:
    (make,) = load_detectors(["peers"])["rank"]
    found, _ = replay(read_recording(SLOW_RANK, "rank", JudgeSettings()), make)
    stored = _stored_scores(JudgeSettings(rank_detectors=(make,)))
    for number, iteration in enumerate(found.iterations.tolist()):
        assert found.scores[number].tolist() == pytest.approx(stored[iteration], nan_ok=True)


def _stored_scores(settings: JudgeSettings) -> Mapping[int, list[float]]:
    trace = read_trace(SLOW_RANK)
    columns = judge_whole(LocalPipeline(trace.job, settings), trace).rank_iterations
    order = np.lexsort((columns["rank"], columns["iteration"]))
    by_iteration: dict[int, list[float]] = {}
    for iteration, score in zip(columns["iteration"][order].tolist(), columns["score"][order].tolist(), strict=True):
        by_iteration.setdefault(iteration, []).append(score)
    return by_iteration


def test_the_culprit_of_a_recording_is_found_by_what_ships() -> None:
    detectors = shipped_detectors("rank")
    assert set(detectors) == {"peers", "river_gaussian"}
    results = {one.detector: one for one in backtest(detectors, [read_recording(SLOW_RANK, "rank", JudgeSettings())])}
    counts = results["river_gaussian"].counts
    assert (counts.faults, counts.found) == (1, 1)
    assert counts.precision > 0.9
    assert results["river_gaussian"].us_per_row > 0


def test_a_detector_that_is_never_strange_finds_nothing() -> None:
    quiet = load_detector("peers(floor_ratio=1000.0)", is_checked=False)
    (result,) = backtest({"quiet": quiet}, [read_recording(SLOW_RANK, "rank", JudgeSettings())])
    assert (result.counts.found, result.counts.false_alarms) == (0, 0)
    assert result.to_json()["precision"] is None


@pytest.mark.parametrize(("name", "faults"), [
    ("gloo-clean", ()),
    ("gloo-slow-link", (Fault((1, 3), ((60, 80),)),)),
    ("bench/tp2pp2dp2-nic-spikes", (Fault((4,), ((28, 30), (39, 40), (51, 53))),)),
    ("bench/ddp8-imbalance", ()),
    ("bench/ddp8-pauses", ()),
    ("causes/clean", ()),
])  # fmt: skip
def test_the_truth_is_that_of_the_label(name: str, faults: tuple[Fault, ...]) -> None:
    assert read_faults(RECORDINGS / name) == faults


def test_the_folder_that_the_page_names_has_usable_labels_alone() -> None:
    assert len([*map(read_faults, find_recordings([RECORDINGS / "bench"]))]) == 69


def test_all_faults_of_a_simulated_job_count(tmp_path: Path) -> None:
    one = {"kind": "slow_rank", "ranks": [1], "iterations": [5, 9]}
    other = {"kind": "slow_nic", "ranks": [2], "iterations": [15, 19]}
    (tmp_path / "label.json").write_text(json.dumps(one | {"faults": [one, other]}))
    assert [fault.ranks for fault in read_faults(tmp_path)] == [(1,), (2,)]


@pytest.mark.parametrize(("text", "message"), [
    (None, r"recording must have its truth in label.json; got none"),
    ("{", r"label.json must be JSON; got"),
    ("[]", r"label.json must be an object with kind, ranks and iterations"),
    ('{"kind": "slow_rank"}', r"label.json must be an object with kind, ranks and iterations; got KeyError"),
    ('{"kind": "slow_rank", "ranks": [1], "iterations": 3}', r"got TypeError"),
])  # fmt: skip
def test_a_label_that_cannot_be_used_is_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "label.json").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_faults(tmp_path)
    assert "\n" not in str(caught.value)


def test_recordings_are_found_below_a_folder_once(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").write_text("{}")
    assert [path.name for path in find_recordings([tmp_path, tmp_path / "a"])] == ["a", "b"]


def test_a_folder_without_recordings_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"folder must hold recordings, each with a job.json; got none"):
        find_recordings([tmp_path])
    with pytest.raises(InputError, match=r"recording must be a folder; got none"):
        find_recordings([tmp_path / "nowhere"])
