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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.detectors.verdicts.strange_ranks import STRANGE
from irregulars.detectors.verdicts.thresholds import VERDICTS
from irregulars.dtypes import Flags, Floats, Ints

RECENT: Final = VERDICTS.strange_recent  # newest iterations that an alarm goes by: as where a detector opens verdicts

# Strange ones among them that raise it: a single one is noise of networks and hosts
SEEN: Final = VERDICTS.strange_seen


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
        return Counts(
            self.true + other.true,
            self.alarmed + other.alarmed,
            self.right + other.right,
            self.faults + other.faults,
            self.found + other.found,
            self.delays + other.delays,
            self.false_alarms + other.false_alarms,
            self.iterations + other.iterations,
        )

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
    before[recent:] = so_far[:-recent]
    stands = so_far - before >= seen
    raised = stands.copy()
    raised[1:] &= ~stands[:-1]
    return stands, raised


def count_job(job: ScoredJob, faults: Sequence[Fault], seen: int = SEEN, recent: int = RECENT) -> Counts:
    """Score a job; see the top of this file."""
    stands, raised = alarms_of(job.scores, seen, recent)
    own = [_at_fault(job, fault, 0) for fault in faults]
    nothing = np.zeros(job.scores.shape, dtype=np.bool_)
    truth = _any(own, nothing)
    aside = _any([_at_fault(job, fault, recent) for fault in faults], nothing) & ~truth
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


def total(counts: Iterable[Counts]) -> Counts:
    """Add counts up."""
    return sum(counts, Counts())


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
