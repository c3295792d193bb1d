"""Which rank works longer than it and everybody else always do, by the evidence of all ranks alone.

An iteration's time holds the noise of everything on its critical path. A rank's lateness against its own stage does
not, so a fault shows there that the iteration's time alone would leave in doubt.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA, robust_sigma, row_medians
from irregulars.detectors.irregular.thresholds import IRREGULAR, LATE_SIGMAS
from irregulars.detectors.job.thresholds import JOB
from irregulars.dtypes import Floats, Ints, Numbers

Late = Mapping[int, float]  # by how much each of the latest ranks of one iteration worked longer than its stage, ns


class Latest(NamedTuple):
    """The rank that stands out most."""

    rank: int
    over_ns: float  # by how much it is later than it usually is, ns
    # How far that lies above the usual lateness of the latest rank of an iteration, in standard deviations
    sigmas: float
    lasts: bool = False  # whether it is late again and again, rather than in this iteration alone

    @property
    def stands_out(self) -> bool:
        """Whether it is later than chance explains."""
        return self.sigmas >= LATE_SIGMAS


def find_latest(late_ns: Late, history: Sequence[Late]) -> Latest | None:
    """Find the rank that exceeds its usual lateness most in one iteration.

    `late_ns`: by how much ranks work longer than their stage in this iteration, ns; the latest ranks suffice.
    `history`: the same of the iterations before, oldest first. Returns None while the history is shorter than
    `IRREGULAR.min_iterations`, or if no lateness is known.
    """
    history = history[-IRREGULAR.level_iterations :]
    if len(history) < IRREGULAR.min_iterations or not late_ns:
        return None
    ranks = sorted({*late_ns, *_ranks(history)})
    usual_ns = dict(zip(ranks, row_medians(_table(history, ranks)).tolist(), strict=True))
    # Sorted: of equally late ranks it is the lowest, in whichever order they came.
    rank = max(sorted(late_ns), key=lambda one: late_ns[one] - usual_ns[one])
    over_ns = late_ns[rank] - usual_ns[rank]
    past = [max((ns - usual_ns[one] for one, ns in late.items()), default=0.0) for late in history]
    typical_ns = statistics.median(past)
    sigma_ns = MAD_TO_SIGMA * statistics.median(abs(ns - typical_ns) for ns in past)
    sigma_ns = max(sigma_ns, JOB.least_share * typical_ns, 1.0)
    return Latest(rank, over_ns, (over_ns - typical_ns) / sigma_ns)


def find_lasting(recent: Sequence[Late], before: Sequence[Late]) -> Latest | None:
    """Find the rank that exceeds its usual lateness most, again and again.

    A job whose single iterations are too uneven to tell shows such a rank all the same.

    `recent`: by how much ranks work longer than their stage in the newest iterations, ns, oldest first. `before`: the
    same of iterations before any known fault, oldest first; they may reach into the newest. Returns None while there
    are too few iterations (`IRREGULAR.recent`, `min_iterations`) or no lateness is known.
    """
    recent = recent[-IRREGULAR.recent :]
    before = before[-IRREGULAR.level_iterations :]
    if len(recent) < IRREGULAR.recent or len(before) < IRREGULAR.min_iterations:
        return None
    ranks = sorted({*_ranks(before), *_ranks(recent)})
    if not ranks:
        return None
    past_ns, now_ns = _table(before, ranks), _table(recent, ranks)
    usual_ns = row_medians(past_ns)[:, None]
    over_ns = lasting_ns(now_ns - usual_ns)[:, 0]
    # How late the latest rank was again and again in each window before, though nothing was wrong. Of 1,000 ranks
    # hardly one is among the latest 16 three times, but many nearly are. Their lateness was not kept; it was at most
    # that of the last of the 16, which therefore counts as one more rank (0 where all were kept).
    others_ns = np.array(
        [[(max(min(late.values()), 0.0) if len(late) >= IRREGULAR.most_ranks else 0.0) for late in before]]
    )
    by_chance_ns = np.maximum(lasting_ns(past_ns - usual_ns).max(axis=0), lasting_ns(others_ns)[0])
    typical_ns = statistics.median(by_chance_ns)
    sigma_ns = robust_sigma(by_chance_ns - typical_ns)
    sigma_ns = max(sigma_ns, IRREGULAR.least_lasting_sigma_ratio * typical_ns, 1.0)
    latest = int(np.argmax(over_ns))
    sigmas = (float(over_ns[latest]) - typical_ns) / sigma_ns
    return Latest(ranks[latest], float(over_ns[latest]), sigmas, lasts=True)


def lasting_ns(over_ns: Floats) -> Floats:
    """Return the lateness that each rank reached in three of six iterations, for every six in a row.

    Three and six are `JOB.repeated` and `recent`. In three of six iterations a rank was as late as
    the third largest value of the six.

    `over_ns`: lateness over the usual, ns: a row for each rank, a column for each iteration. Returns a row for each
    rank, a column for each window; the first window begins with the first iteration.

    One rank in seven iterations, which make two windows. The first holds 9, 8 and 7 besides zeros: in three of its
    iterations the rank was late by 7 or more. The second holds 8, 7 and 1.

    >>> lasting_ns(np.array([[9.0, 0.0, 7.0, 0.0, 8.0, 0.0, 1.0]]))
    array([[7., 1.]])
    """
    # Rows picked by index are a copy, so that the sort in place leaves `over_ns` alone.
    windows: Floats = over_ns[:, _windows(over_ns.shape[1], IRREGULAR.recent)]
    windows.sort(axis=-1)
    return windows[..., -JOB.repeated]


# The array is shared by all who ask: they index with it, and must not write to it.
@cache
def _windows(iterations: int, width: int) -> Ints:
    """Return the places of each window of `width` iterations in a row, a row for each; they are asked for often."""
    return np.arange(iterations - width + 1)[:, None] + np.arange(width)


def _table(iterations: Sequence[Late], ranks: Sequence[int]) -> Floats:
    """Return a row for each rank and a column for each iteration; 0 where a rank was not among the latest.

    The ranks ascend, and are all that there are in these iterations, at least.
    """
    table = np.zeros((len(ranks), len(iterations)))
    counts = [len(late) for late in iterations]
    rank = np.fromiter(chain.from_iterable(iterations), np.int64, sum(counts))
    late_ns = np.fromiter(chain.from_iterable(late.values() for late in iterations), np.float64, sum(counts))
    own = np.searchsorted(np.array(ranks, dtype=np.int64), rank)
    table[own, np.repeat(np.arange(len(counts)), counts)] = late_ns
    return table


def _ranks(history: Sequence[Late]) -> set[int]:
    return {rank for late in history for rank in late}


# --------------------------------------------------------------------------------------------------------------------
# Which rank stands out in a job's iterations, one after the other: by one iteration, or again and again.


HISTORY: Final = 64
"""Iterations whose times and latest ranks are remembered; it bounds how far back a fault can be dated."""


@dataclass(frozen=True, slots=True)
class LatenessState:
    """The state of a `LatenessWatch`."""

    history: tuple[tuple[int, Late], ...]
    before: tuple[Late, ...] | None


class LatenessWatch:
    """Remembers by how much the latest ranks were late in the iterations so far."""

    def __init__(self) -> None:
        self.history: deque[tuple[int, Late]] = deque(maxlen=HISTORY)
        self._known: deque[Late] = deque(maxlen=HISTORY)  # the same without ranks whose lateness is not known
        # The iterations before the open verdict. Later ones hold its fault, which must not become usual.
        self._before: list[Late] | None = None

    def look(self, late_ns: Late) -> Latest | None:
        """Return the rank that stands out most in the next iteration, or again and again up to it.

        `late_ns`: by how much the latest ranks work longer than their stage, ns; NaN where it is not known of a rank.
        Returns None while there is too little history.
        """
        known = list(self._known)
        before = known if self._before is None else [_known(late) for late in self._before]
        late_ns = _known(late_ns)
        lasting = find_lasting([*known, late_ns], before)
        if lasting is not None and lasting.stands_out and _is_still_late(lasting, late_ns):
            return lasting
        return find_latest(late_ns, before)

    def learn(self, iteration: int, late_ns: Late, *, has_open: bool) -> None:
        """Take in an iteration; while a verdict is open, the usual lateness from before it is kept."""
        if not has_open:
            self._before = None
        elif self._before is None:
            self._before = list(self._known)[-IRREGULAR.level_iterations :]
        # NaN is kept only of ranks that were late before: that of the others is never asked for.
        latest = {rank for late in self._known for rank in late}
        kept = {rank: ns for rank, ns in late_ns.items() if rank in latest or not math.isnan(ns)}
        self.history.append((iteration, kept))
        self._known.append(_known(kept))

    def state(self) -> LatenessState:
        """Everything that `from_state` needs."""
        before = None if self._before is None else tuple(self._before)
        return LatenessState(tuple(self.history), before)

    @classmethod
    def from_state(cls, state: LatenessState) -> LatenessWatch:
        """Restore."""
        watch = cls()
        watch.history.extend(state.history)
        watch._known.extend(_known(late) for _, late in state.history)
        watch._before = None if state.before is None else list(state.before)
        return watch


def latest_ranks(rank: Ints, late_ns: Numbers, ranks: Ints) -> dict[int, float]:
    """Keep the latest `IRREGULAR.most_ranks` ranks, and mark those of `ranks` whose lateness is unknown with NaN.

    A rank that lost a row in an iteration may have been late in it: unknown is not the same as on time.

    `rank`, `late_ns`: the ranks whose lateness is known, in any order, and by how much they are late, ns. `ranks`:
    all ranks of the iteration.

    >>> latest_ranks(np.array([4, 3]), np.array([1e6, 9e6]), np.array([3, 4, 7]))
    {3: 9000000.0, 4: 1000000.0, 7: nan}
    """
    rows = np.arange(len(rank))
    if len(rank) > IRREGULAR.most_ranks:  # sorting all of a large job would be most of the work
        last = len(rank) - IRREGULAR.most_ranks
        rows = np.flatnonzero(late_ns >= np.partition(late_ns, last)[last])
    # Again cut, since several may be as late as the last one; of those the lowest ranks stay.
    rows = rows[np.lexsort((rank[rows], -late_ns[rows]))][: IRREGULAR.most_ranks]
    latest: dict[int, float] = dict(zip(rank[rows].tolist(), late_ns[rows].tolist(), strict=True))
    unknown = ranks[~np.isin(ranks, rank)] if len(rank) < len(ranks) else ranks[:0]
    return latest | dict.fromkeys(unknown.tolist(), math.nan)


def _is_still_late(lasting: Latest, late_ns: Late) -> bool:
    """Whether a rank that is late again and again is so in this iteration too."""
    return late_ns.get(lasting.rank, 0.0) > JOB.most * lasting.over_ns


def _known(late_ns: Late) -> Late:
    """Leave out ranks whose lateness is not known; where all are, the same mapping: a second one took 15 KB a job."""
    known = {rank: ns for rank, ns in late_ns.items() if not math.isnan(ns)}
    return late_ns if len(known) == len(late_ns) else known
