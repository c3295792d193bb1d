"""Frames of one job, as its monitors give them to detectors, and a detector's scores of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from irregulars.detectors.plugins.protocol import COLUMNS, Against, Detector, Frame, Level, MakeDetector, Scores
from irregulars.detectors.plugins.sample_frames import copy_frame
from irregulars.errors import PluginError
from irregulars.infra.backtesting.scoring import Fault, ScoredJob
from irregulars.validation import first_line


@dataclass(slots=True)
class TaughtFrame:
    """A frame, and whether a detector learns it after it has scored it."""

    frame: Frame
    is_taught: bool = False

    @property
    def iteration(self) -> int:
        """Its iteration."""
        return int(self.frame["iteration"][0])

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return len(self.frame["iteration"])


@dataclass(frozen=True, slots=True)
class JobFrames:
    """Frames of a job, and its true faults."""

    name: str
    faults: tuple[Fault, ...]
    # Frames for one detector each, in order: level ``rank``, one stream; level ``operator``, one of each rank
    streams: tuple[Sequence[TaughtFrame], ...]
    rank_of: tuple[int | None, ...]  # of each stream: whose it is; None: its frames have a row for each rank

    @property
    def rows(self) -> int:
        """How many rows a detector scores."""
        return sum(one.rows for stream in self.streams for one in stream)


class FrameTap:
    """Stands in a monitor as a detector, has no opinion, and keeps the frames that it is given."""

    against: Against = "past"

    def __init__(self, level: Level) -> None:
        self.level = level
        self.reads = tuple(COLUMNS[level])
        self.frames: list[TaughtFrame] = []

    def score(self, frame: Frame) -> Scores:
        """Keep a copy of the frame."""
        rows = len(frame["iteration"])
        if rows:
            self.frames.append(TaughtFrame(copy_frame(frame)))
        return np.full(rows, np.nan)

    def learn(self, frame: Frame) -> None:
        """Note that the frame is taught."""
        if len(frame["iteration"]):
            self.frames[-1].is_taught = True


@dataclass(slots=True)
class Replay:
    """Scores of a detector for a job, and their cost. `took_s`: of one core, to score and learn."""

    job: ScoredJob
    rows: int
    took_s: float = field(default=0.0)


def replay(job: JobFrames, make: MakeDetector) -> Replay:
    """Score and teach all frames of a job with fresh detectors, one of each stream, as a monitor does.

    A detector of operators scores a rank in an iteration by the largest score of its operators.
    """
    said: dict[tuple[int, int], float] = {}
    took_s = 0.0
    for stream, rank in zip(job.streams, job.rank_of, strict=True):
        detector = make()
        for one in stream:
            started_s = time.thread_time()
            scores = _asked(detector, one)
            took_s += time.thread_time() - started_s
            if rank is None:
                own = zip(one.frame["rank"].tolist(), scores.tolist(), strict=True)
                said |= {(one.iteration, int(number)): score for number, score in own}
            else:
                said[one.iteration, rank] = float(np.fmax.reduce(scores, initial=np.nan))
    return Replay(_matrix(said), job.rows, took_s)


def _asked(detector: Detector, one: TaughtFrame) -> Scores:
    """Let a detector score a frame, and learn it where it is taught."""
    try:
        scores = detector.score(one.frame)
        if one.is_taught:
            detector.learn(one.frame)
    except (Exception, SystemExit) as error:  # a stranger's code: whatever it raises is the finding
        raise PluginError(f"detector must not raise; got {first_line(error)} (iteration {one.iteration})") from error
    if np.shape(scores) != (one.rows,):
        raise PluginError(
            f"score must give one float64 per row; got shape {np.shape(scores)} for {one.rows} rows "
            f"(iteration {one.iteration})"
        )
    return scores


def _matrix(said: dict[tuple[int, int], float]) -> ScoredJob:
    iterations = np.unique(np.array([iteration for iteration, _ in said], dtype=np.int64))
    ranks = np.unique(np.array([rank for _, rank in said], dtype=np.int64))
    scores = np.full((len(iterations), len(ranks)), np.nan)
    for (iteration, rank), score in said.items():
        scores[np.searchsorted(iterations, iteration), np.searchsorted(ranks, rank)] = score
    return ScoredJob(iterations, ranks, scores)
