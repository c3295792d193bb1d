"""Alarms and right alarms: scores and truth of one job, by iteration and rank.

* **An alarm** stands on a rank that scored 1 or more in 4 of the newest 6 iterations, and is raised where it begins
  to. That is the rule by which a monitor lets a detector open a verdict. No opinion counts as not strange.
* **True** are the ranks of the faulty device in the iterations of the fault: both of a link, all below a switch.
* **Precision**: of the ranks and iterations in which an alarm stands, the share that is true. **Recall**: of those
  that are true, the share in which an alarm stands; the iterations that it takes to raise one count as missed.
* **Found** is a fault if an alarm stands on one of its ranks while it lasts; **delay** is the number of iterations
  from its first to the one that raises it.
* **False alarms** are those raised where nothing is true, per 1,000 iterations of the job (not of each rank).
* Left aside, neither right nor wrong, are the 6 iterations after a fault, for its ranks: the alarm may still stand,
  and the end of a fault is known to an iteration or two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.plugins.protocol import COLUMNS, Against, Detector, Frame, Level, MakeDetector, Scores
from irregulars.detectors.plugins.sample_frames import copy_frame
from irregulars.detectors.verdicts.strange_ranks import STRANGE
from irregulars.dtypes import Flags, Floats, Ints
from irregulars.errors import PluginError
from irregulars.validation import first_line

RECENT: Final = IRREGULAR.recent  # newest iterations that an alarm goes by: as where a detector opens verdicts

# Strange ones among them that raise it: a single one is noise of networks and hosts
SEEN: Final = JOB.often


@dataclass(frozen=True, slots=True)
class Fault:
    """One true fault of a job: the ranks of one device, and the stretches in which they were at fault (half-open)."""

    ranks: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ScoredJob:
    """A detector's scores of a job, shape (iterations, ranks); NaN where there was no row or no opinion."""

    iterations: Ints
    ranks: Ints
    scores: Floats


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts over some jobs; those of several add up."""

    # true, alarmed, right: pairs of iteration and rank: at fault, under an alarm, and both
    true: int = 0
    alarmed: int = 0
    right: int = 0
    # faults, found: faults that have rows, and those that were found
    faults: int = 0
    found: int = 0
    delays: tuple[int, ...] = ()  # iterations, of each fault that was found
    false_alarms: int = 0  # alarms raised where nothing is true
    iterations: int = 0  # of the jobs

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def precision(self) -> float:
        """NaN without an alarm."""
        return _ratio(self.right, self.alarmed)

    @property
    def recall(self) -> float:
        """NaN without a fault."""
        return _ratio(self.right, self.true)

    @property
    def delay(self) -> float:
        """Median, iterations; NaN: no fault was found."""
        return float(np.median(self.delays)) if self.delays else math.nan

    @property
    def false_per_1000(self) -> float:
        """False alarms per 1,000 iterations."""
        return 1000 * _ratio(self.false_alarms, self.iterations)


def alarms_of(scores: Floats, seen: int = SEEN, recent: int = RECENT) -> tuple[Flags, Flags]:
    """Return where alarms stand and where they are raised, of scores of shape (iterations, ranks).

    >>> stands, raised = alarms_of(np.array([[2.0], [0.5], [1.5], [1.0], [0.9]]), seen=2, recent=3)
    >>> stands.ravel().tolist(), raised.ravel().tolist()
    ([False, False, True, True, True], [False, False, True, False, False])
    """
    is_strange = np.nan_to_num(scores, nan=-np.inf) >= STRANGE
    so_far = np.cumsum(is_strange, axis=0)
    before = np.zeros(scores.shape, dtype=np.int64)
    # A running sum less the one of `recent` iterations ago counts the newest `recent`.
    before[recent:] = so_far[:-recent]
    stands = so_far - before >= seen
    raised = stands.copy()
    raised[1:] &= ~stands[:-1]
    return stands, raised


def count_job(job: ScoredJob, faults: Sequence[Fault]) -> Counts:
    """Score a job; see the top of this file."""
    stands, raised = alarms_of(job.scores)
    own = [_at_fault(job, fault, 0) for fault in faults]
    nothing = np.zeros(job.scores.shape, dtype=np.bool_)
    truth = _any(own, nothing)
    aside = _any([_at_fault(job, fault, RECENT) for fault in faults], nothing) & ~truth
    found = [is_true & stands for is_true in own]
    pairs = [(is_true, one) for is_true, one in zip(own, found, strict=True) if one.any()]
    return Counts(
        true=int(truth.sum()),
        alarmed=int((stands & ~aside).sum()),
        right=int((stands & truth).sum()),
        faults=sum(bool(is_true.any()) for is_true in own),
        found=len(pairs),
        delays=tuple(_first(job, one) - _first(job, is_true) for is_true, one in pairs),
        false_alarms=int((raised & ~truth & ~aside).sum()),
        iterations=len(job.iterations),
    )


def _at_fault(job: ScoredJob, fault: Fault, longer: int) -> Flags:
    """Return the ranks and iterations of a fault, each of whose stretches lasts some iterations longer."""
    numbers = job.iterations
    is_in = np.zeros(len(numbers), dtype=np.bool_)
    for first, past in fault.spans:
        is_in |= (numbers >= first) & (numbers < past + longer)
    return np.asarray(is_in[:, None] & np.isin(job.ranks, fault.ranks)[None, :])


def _any(parts: Sequence[Flags], nothing: Flags) -> Flags:
    return np.logical_or.reduce([nothing, *parts])


def _first(job: ScoredJob, flags: Flags) -> int:
    return int(job.iterations[flags.any(axis=1)].min())


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


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
        """Mark the frame as taught."""
        # `score` has kept no empty frame.
        if len(frame["iteration"]):
            self.frames[-1].is_taught = True


def replay(job: JobFrames, make: MakeDetector) -> tuple[ScoredJob, float]:
    """Score and teach all frames of a job, as a monitor does; return the scores and the seconds of one core.

    Detectors are fresh, one of each stream. One of operators scores a rank in an iteration by the largest score of
    its operators.
    """
    said: dict[tuple[int, int], float] = {}
    took_s = 0.0
    for stream, rank in zip(job.streams, job.rank_of, strict=True):
        detector = make()
        for one in stream:
            # Time of this thread alone: other work on the machine does not count.
            started_s = time.thread_time()
            scores = _asked(detector, one)
            took_s += time.thread_time() - started_s
            if rank is None:
                own = zip(one.frame["rank"].tolist(), scores.tolist(), strict=True)
                said |= {(one.iteration, int(number)): score for number, score in own}
            else:
                # fmax: an operator without an opinion, NaN, does not hide one with a score.
                said[one.iteration, rank] = float(np.fmax.reduce(scores, initial=np.nan))
    iterations = np.unique(np.array([iteration for iteration, _ in said], dtype=np.int64))
    ranks = np.unique(np.array([number for _, number in said], dtype=np.int64))
    matrix = np.full((len(iterations), len(ranks)), np.nan)
    for (iteration, number), score in said.items():
        matrix[np.searchsorted(iterations, iteration), np.searchsorted(ranks, number)] = score
    return ScoredJob(iterations, ranks, matrix), took_s


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
