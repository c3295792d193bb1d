"""What each rank's work, communication and iterations took of late, with a fading memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from irregulars.dtypes import Floats, Ints

MEASURES: Final = ("work_ns", "communication_ns", "elapsed_ns")
"""Columns of a frame that are followed, as logarithms."""

_FLOOR: Final = 0.02
"""Least spread that counts as noise, as a ratio: that of `detectors.plugins.peers`."""


class RankPast:
    """Fading mean of each measure of each rank, and fading variance of its work.

    Parameters
    ----------
    warm_up
        Frames that a rank must have been in before its past is known.
    fading
        Weight of the newest frame, 0 to 1.
    forget_after
        Frames after which a rank that is not seen any more is forgotten.
    """

    def __init__(self, *, warm_up: int, fading: float, forget_after: int) -> None:
        self.warm_up = warm_up
        self.fading = fading
        self.forget_after = forget_after
        self._frames = 0
        self._ranks: Ints = np.empty(0, np.int64)
        self._seen: Ints = np.empty((0, 2), np.int64)  # frames with the rank, and the newest of them
        self._means: Floats = np.empty((0, len(MEASURES)))
        self._variance: Floats = np.empty(0)

    def deviations(self, ranks: Ints, logs: Floats) -> tuple[Floats, Floats]:
        """Say how far measures lie above a rank's own past; NaN where that is not known.

        Parameters
        ----------
        ranks, logs
            Rows of a frame: rank, and the logarithms of `MEASURES`.

        Returns
        -------
        of each row the differences of logarithms, and that of work in standard deviations
        """
        at, is_known = self._places(ranks)
        above = np.full(logs.shape, np.nan)
        sigmas = np.full(len(ranks), np.nan)
        found = np.flatnonzero(is_known)
        found = found[self._seen[at[found], 0] >= self.warm_up]
        above[found] = logs[found] - self._means[at[found]]
        spread = np.maximum(np.sqrt(np.maximum(self._variance[at[found]], 0.0)), _FLOOR)
        sigmas[found] = above[found, 0] / spread
        return above, sigmas

    def learn(self, ranks: Ints, logs: Floats) -> None:
        """Take in rows whose measures are all known; each rank once."""
        self._frames += 1
        self._make_room(ranks)
        at, _ = self._places(ranks)
        is_new = self._seen[at, 0] == 0
        step = np.where(is_new[:, None], 1.0, self.fading)
        difference = logs - self._means[at]
        self._means[at] += step * difference
        grown = (1 - self.fading) * (self._variance[at] + self.fading * difference[:, 0] ** 2)
        self._variance[at] = np.where(is_new, 0.0, grown)
        self._seen[at, 0] += 1
        self._seen[at, 1] = self._frames
        self._keep(self._frames - self._seen[:, 1] < self.forget_after)

    def state(self) -> dict[str, Any]:
        """Return all that `restore` needs."""
        return {
            "frames": self._frames, "ranks": self._ranks, "seen": self._seen, "means": self._means,
            "variance": self._variance,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._frames = int(state["frames"])
        self._ranks, self._seen = state["ranks"], state["seen"]
        self._means, self._variance = state["means"], state["variance"]

    def _places(self, ranks: Ints) -> tuple[Ints, np.ndarray]:
        at = np.searchsorted(self._ranks, ranks)
        at = np.minimum(at, max(len(self._ranks) - 1, 0))
        is_known = self._ranks[at] == ranks if len(self._ranks) else np.zeros(len(ranks), dtype=bool)
        return at, is_known

    def _make_room(self, ranks: Ints) -> None:
        new = np.setdiff1d(ranks, self._ranks)
        if not len(new):
            return
        order = np.argsort(np.concatenate([self._ranks, new]), kind="stable")
        self._ranks = np.concatenate([self._ranks, new])[order]
        self._seen = np.concatenate([self._seen, np.zeros((len(new), 2), np.int64)])[order]
        self._means = np.concatenate([self._means, np.zeros((len(new), len(MEASURES)))])[order]
        self._variance = np.concatenate([self._variance, np.zeros(len(new))])[order]

    def _keep(self, is_kept: np.ndarray) -> None:
        if not is_kept.all():
            self._ranks, self._seen = self._ranks[is_kept], self._seen[is_kept]
            self._means, self._variance = self._means[is_kept], self._variance[is_kept]
