"""Which rank stands out in a job's iterations, one after the other: by one iteration, or again and again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from irregulars.detectors.irregular.late_rank import (
    LASTS,
    LATEST_RANKS,
    MOST_HISTORY,
    Late,
    Latest,
    find_lasting,
    find_latest,
)

HISTORY: Final = 64
"""How far back it is known who was late."""

_STILL: Final = 0.5  # of what it exceeds again and again: so late a rank is late this time too


class LatenessWatch:
    """By how much the latest ranks were late in the iterations so far."""

    def __init__(self) -> None:
        self.history: deque[tuple[int, Late]] = deque(maxlen=HISTORY)
        self._before: list[Late] | None = None  # of an open verdict: a fault that lasts is not what is usual

    def look(self, late_ns: Late) -> Latest | None:
        """Say which rank stands out most in the next iteration, or does so again and again; None: too little history.

        Parameters
        ----------
        late_ns
            By how much the latest ranks work longer than their stage, ns; NaN: of that rank it is not known.
        """
        known = [_known(late) for _, late in self.history]
        before = known if self._before is None else [_known(late) for late in self._before]
        late_ns = _known(late_ns)
        lasting = find_lasting([*known, late_ns][-LASTS:], before)
        if lasting is not None and lasting.stands_out and late_ns.get(lasting.rank, 0.0) > _STILL * lasting.over_ns:
            return lasting
        return find_latest(late_ns, before)

    def learn(self, iteration: int, late_ns: Late, *, has_open: bool) -> None:
        """Take in an iteration; while a verdict is open, what was usual before it stays so."""
        if not has_open:
            self._before = None
        elif self._before is None:
            self._before = [_known(late) for _, late in self.history][-MOST_HISTORY:]
        latest = {rank for _, late in self.history for rank in _known(late)}
        kept = {rank: ns for rank, ns in late_ns.items() if rank in latest or not math.isnan(ns)}
        self.history.append((iteration, kept))

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values."""
        return {
            "history": [[number, _pairs(late_ns)] for number, late_ns in self.history],
            "before": None if self._before is None else [_pairs(late_ns) for late_ns in self._before],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> LatenessWatch:
        """Restore."""
        watch = cls()
        watch.history.extend((number, dict(late_ns)) for number, late_ns in state["history"])
        before = state["before"]
        watch._before = None if before is None else [dict(late_ns) for late_ns in before]
        return watch


def latest_ranks(late_ns: Late, ranks: Iterable[int] = ()) -> dict[int, float]:
    """Keep the latest `LATEST_RANKS` ranks, and note those of `ranks` of which it is not known with NaN.

    Of a rank that lost a row in an iteration it is not known how late it was, which is not to be on time.
    """
    ranked = sorted(late_ns.items(), key=lambda pair: (-pair[1], pair[0]))
    return dict(ranked[:LATEST_RANKS]) | {rank: math.nan for rank in ranks if rank not in late_ns}


def _known(late_ns: Late) -> Late:
    return {rank: ns for rank, ns in late_ns.items() if not math.isnan(ns)}


def _pairs(late_ns: Late) -> Sequence[Sequence[float]]:
    return [[rank, ns] for rank, ns in late_ns.items()]
