"""Which rank stands out in a job's iterations, one after the other: by one iteration, or again and again."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.detectors.irregular.late_rank import Late, Latest, find_lasting, find_latest
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.dtypes import Ints, Numbers

HISTORY: Final = 64
"""Iterations whose latest ranks are remembered; it bounds how far back a standing fault can be dated."""


@dataclass(frozen=True, slots=True)
class LatenessState:
    """What a `LatenessWatch` keeps."""

    history: tuple[tuple[int, Late], ...]
    before: tuple[Late, ...] | None


class LatenessWatch:
    """Remembers by how much the latest ranks were late in the iterations so far."""

    def __init__(self) -> None:
        self.history: deque[tuple[int, Late]] = deque(maxlen=HISTORY)
        self._known: deque[Late] = deque(maxlen=HISTORY)  # the same without ranks whose lateness is not known
        # The iterations before the open verdict. Later ones hold its fault, which must not become what is usual.
        self._before: list[Late] | None = None

    def look(self, late_ns: Late) -> Latest | None:
        """Return the rank that stands out most in the next iteration, or again and again up to it.

        Parameters
        ----------
        late_ns
            By how much the latest ranks work longer than their stage, ns; NaN where it is not known of a rank.

        Returns
        -------
        None while there is too little history.
        """
        known = list(self._known)
        before = known if self._before is None else [_known(late) for late in self._before]
        late_ns = _known(late_ns)
        lasting = find_lasting([*known, late_ns], before)
        if lasting is not None and lasting.stands_out and _is_still_late(lasting, late_ns):
            return lasting
        return find_latest(late_ns, before)

    def learn(self, iteration: int, late_ns: Late, *, has_open: bool) -> None:
        """Take in an iteration; while a verdict is open, what was usual before it stays so."""
        if not has_open:
            self._before = None
        elif self._before is None:
            self._before = list(self._known)[-IRREGULAR.level_iterations :]
        # NaN is kept only of ranks that were late before: of the others nobody will ask.
        latest = {rank for late in self._known for rank in late}
        kept = {rank: ns for rank, ns in late_ns.items() if rank in latest or not math.isnan(ns)}
        self.history.append((iteration, kept))
        self._known.append(_known(kept))

    def state(self) -> LatenessState:
        """Everything that `from_state` needs."""
        return LatenessState(tuple(self.history), None if self._before is None else tuple(self._before))

    @classmethod
    def from_state(cls, state: LatenessState) -> LatenessWatch:
        """Restore."""
        watch = cls()
        watch.history.extend(state.history)
        watch._known.extend(_known(late) for _, late in state.history)
        watch._before = None if state.before is None else list(state.before)
        return watch


def latest_ranks(rank: Ints, late_ns: Numbers, ranks: Ints) -> dict[int, float]:
    """Keep the latest `IRREGULAR.latest_ranks` ranks, and mark those of `ranks` whose lateness is unknown with NaN.

    A rank that lost a row in an iteration may have been late in it: unknown is not the same as on time.

    Parameters
    ----------
    rank, late_ns
        The ranks whose lateness is known, in any order, and by how much they are late, ns.
    ranks
        All ranks of the iteration.

    Examples
    --------
    >>> latest_ranks(np.array([4, 3]), np.array([1e6, 9e6]), np.array([3, 4, 7]))
    {3: 9000000.0, 4: 1000000.0, 7: nan}
    """
    rows = np.arange(len(rank))
    if len(rank) > IRREGULAR.latest_ranks:  # sorting all of a large job would be most of the work
        last = len(rank) - IRREGULAR.latest_ranks
        rows = np.flatnonzero(late_ns >= np.partition(late_ns, last)[last])
    rows = rows[np.lexsort((rank[rows], -late_ns[rows]))][: IRREGULAR.latest_ranks]
    latest: dict[int, float] = dict(zip(rank[rows].tolist(), late_ns[rows].tolist(), strict=True))
    unknown = ranks[~np.isin(ranks, rank)] if len(rank) < len(ranks) else ranks[:0]
    return latest | dict.fromkeys(unknown.tolist(), math.nan)


def _is_still_late(lasting: Latest, late_ns: Late) -> bool:
    """Whether a rank that is late again and again is so in this iteration too."""
    return late_ns.get(lasting.rank, 0.0) > IRREGULAR.still_share * lasting.over_ns


def _known(late_ns: Late) -> Late:
    """Leave out ranks whose lateness is not known; where all are, the same mapping: a second one took 15 KB a job."""
    known = {rank: ns for rank, ns in late_ns.items() if not math.isnan(ns)}
    return late_ns if len(known) == len(late_ns) else known
