"""Peers against each other: who works longer than the ranks that do the same work in the same iteration."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from irregulars.detectors.arrays.grouped_medians import robust_sigma
from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores
from irregulars.messages.records import UNKNOWN


class PeerDeviation:
    """Robust z-score of a rank's work within its stage, on a logarithmic scale.

    Needs no past, so it sees a fault that is older than the log. A rank alone in its stage, or of unknown stage, has
    no peers and gets NaN.

    Parameters
    ----------
    least_peers
        Ranks with known work that a stage must have. 3: of two ranks nobody knows which one is the odd one.
    floor_ratio
        Least spread that counts as noise, as a ratio of work: where peers agree to the microsecond, nobody
        is strange.

    >>> work_ns = np.array([100.0, 101.0, 99.0, 130.0, 100.0])
    >>> frame = {"work_ns": work_ns, "stage": np.zeros(5, dtype=np.int64)}
    >>> PeerDeviation().score(frame).argmax()
    np.int64(3)
    """

    level: ClassVar[Level] = "rank"
    against: ClassVar[Against] = "peers"
    reads: ClassVar[tuple[str, ...]] = ("work_ns", "stage")
    strange_from: ClassVar[float] = 6.0
    is_witness: ClassVar[bool] = False  # the judgement compares the same work with the same peers: no second opinion

    def __init__(self, *, least_peers: int = 3, floor_ratio: float = 0.02) -> None:
        self.least_peers = least_peers
        self.floor_ratio = floor_ratio

    def score(self, frame: Frame) -> Scores:
        """Score each rank; positive: more work than its peers."""
        work_ns = frame["work_ns"]
        is_known = np.isfinite(work_ns) & (work_ns >= 0) & (frame["stage"] != UNKNOWN)
        scores = np.full(len(work_ns), np.nan)
        for stage in np.unique(frame["stage"][is_known]):  # stages are few: as many as the pipeline is long
            rows = np.flatnonzero(is_known & (frame["stage"] == stage))
            if len(rows) >= self.least_peers:
                values = np.log(np.maximum(work_ns[rows], 1.0))
                distances = values - np.median(values)
                spread = robust_sigma(distances)
                scores[rows] = np.asarray(distances / max(spread, self.floor_ratio))
        return scores

    def learn(self, frame: Frame) -> None:
        """Do nothing: peers are compared within a frame."""

    def explain(self, frame: Frame, row: int) -> str:
        """Name the work of a rank and that of its peers."""
        is_peer = frame["stage"] == frame["stage"][row]
        usual_ns = float(np.nanmedian(frame["work_ns"][is_peer]))
        return f"it worked {frame['work_ns'][row] / 1e6:.3g} ms, the median of its stage {usual_ns / 1e6:.3g} ms"
