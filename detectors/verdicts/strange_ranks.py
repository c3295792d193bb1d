"""Which ranks detectors found strange in the newest judged iterations, and how often."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.dtypes import Flags, Floats, Ints

STRANGE: Final = 1.0  # where strange begins on the scale that all detectors are brought to
_MASK: Final = (1 << IRREGULAR.recent) - 1
_ONES: Final = np.array([mask.bit_count() for mask in range(_MASK + 1)], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RankScores:
    """Scores of the ranks of one iteration."""

    ranks: Ints  # ascending
    by_detector: Mapping[str, Floats]  # one score for each rank, by the detector's name; NaN: no opinion

    def of(self, detector: str, ranks: Sequence[int]) -> Floats:
        """Return the scores of some ranks, NaN where there is none."""
        own = self.by_detector.get(detector)
        if own is None or not len(self.ranks):
            return np.full(len(ranks), np.nan)
        at = np.minimum(np.searchsorted(self.ranks, ranks), len(self.ranks) - 1)
        return np.where(self.ranks[at] == ranks, own[at], np.nan)


@dataclass(frozen=True, slots=True)
class StrangeRanks:
    """Ranks that one detector found strange in some of the newest judged iterations."""

    ranks: NDArray[np.int64]  # ascending; who was strange in none of them is left out
    # One for each rank; bit n is for the n-th newest iteration: with ``0b101`` the rank was strange in the newest
    # and in the one two before it
    masks: NDArray[np.uint8]

    def next(self, strange: Ints) -> StrangeRanks:
        """Return the strange ranks after one more iteration, in which these were strange; ascending."""
        ranks = np.union1d(self.ranks, strange)
        masks = np.zeros(len(ranks), dtype=np.int64)
        masks[np.searchsorted(ranks, self.ranks)] = self.masks.astype(np.int64) << 1 & _MASK
        masks[np.searchsorted(ranks, strange)] |= 1
        kept = masks > 0
        return StrangeRanks(ranks[kept], masks[kept].astype(np.uint8))

    def often(self, least: int) -> dict[int, int]:
        """Return the masks of ranks that were strange in at least so many iterations."""
        is_often: Flags = _ONES[self.masks] >= least
        return dict(zip(self.ranks[is_often].tolist(), self.masks[is_often].tolist(), strict=True))


NOBODY: Final = StrangeRanks(np.empty(0, np.int64), np.empty(0, np.uint8))


class StrangeRanksWatch:
    """Follows the ranks that each detector finds strange.

    `by_detector`: the strange ranks of each detector, by its name.
    """

    def __init__(self, by_detector: Mapping[str, StrangeRanks] | None = None) -> None:
        self.by_detector: dict[str, StrangeRanks] = dict(by_detector or {})

    def look(self, scores: RankScores) -> None:
        """Take in the scores of one judged iteration."""
        for name, own in scores.by_detector.items():
            strange = scores.ranks[own >= STRANGE]  # NaN, no opinion, is not
            known = self.by_detector.get(name, NOBODY)
            # A detector that never found a rank strange has no entry in the state.
            if len(strange) or len(known.ranks):
                self.by_detector[name] = known.next(strange)

    def due(self, name: str) -> dict[int, int]:
        """Return the masks of ranks on which a detector may open a verdict: strange now, and often enough of late."""
        found = self.by_detector.get(name, NOBODY).often(JOB.often)
        return {rank: mask for rank, mask in found.items() if mask & 1}

    def testimony(
        self, witnesses: Collection[str], suspects: Sequence[Collection[int]], openers: Collection[str] = ()
    ) -> str:
        """Return which detectors find a suspect strange, as a text; empty: none of them does.

        `witnesses`: detectors that are asked. `suspects`: ranks of each suspect, best first. `openers`: those whose
        other ranks are named too, as they have no verdict of their own while this one tells of them.
        """
        text = ""
        for name in sorted(witnesses):
            found = self.by_detector.get(name, NOBODY).often(JOB.repeated)
            asked = [*suspects, found] if name in openers else suspects
            at, shared = next(((at, own) for at, one in enumerate(asked) if (own := found.keys() & one)), (0, set()))
            if shared:
                is_suspect, seen = at < len(suspects), max(found[rank].bit_count() for rank in shared)
                more = f"{len(shared)} of its ranks" if is_suspect else f"{len(shared)} ranks"
                who = f"rank {min(shared)}" if len(shared) == 1 else more
                who += f" (suspect {at + 1})" if is_suspect and at else ""
                how = "too" if is_suspect else "meanwhile"
                when = f"in {seen} of the last {IRREGULAR.recent} iterations"
                text += f"; detector {name} finds {who} strange {how}, {when}"
        return text
