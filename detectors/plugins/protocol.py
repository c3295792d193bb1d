"""What a detector is: the plug-in protocol, and the columns that it may read.

A detector gives every row of a frame a number, higher where it is stranger. It never decides: thresholds and
persistence belong to the monitor, which calls in this order: score, judge, learn.

Detectors score on scales of their own: standard deviations, probabilities. One may state with an attribute
``strange_from`` (a number above 0) from which score on a row is strange on its scale; monitors get scores divided by
it (`detectors.plugins.loading.load_detectors`), so that 1 is where strange begins, and scores of several detectors
compare. Without it the scale is taken to be this one already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from irregulars import dtypes

Frame = Mapping[str, dtypes.Column]
"""Columns of equal lengths, by the names in `OPERATOR_COLUMNS` or `RANK_COLUMNS`."""

Scores = dtypes.Floats
"""One number per row: higher is stranger, NaN is "no opinion yet"; never infinite."""

Level = Literal["operator", "rank"]
Against = Literal["past", "peers"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a frame: numpy type, and what it holds in which unit."""

    dtype: str
    about: str


OPERATOR_COLUMNS: Final[Mapping[str, Column]] = {
    "communicator": Column("int64", "code of the communicator, stable within the rank"),
    "operator": Column("uint8", "index into irregulars.streams.messages.records.OPERATORS"),
    "peer": Column("int64", "global rank at the other end of a send or recv; UNKNOWN for collectives"),
    "sequence": Column("int64", "n-th operator on its communicator"),
    "size_bytes": Column("float64", "payload of this rank; NaN: not known"),
    "elapsed_ns": Column("float64", "time inside the operator, waiting included; NaN: not ended"),
    "gap_ns": Column("float64", "start minus the latest end of the rank's earlier operators; NaN: not known"),
    "iteration": Column("int64", "training iteration, the same in all rows"),
}
"""Level ``operator``: the rows are the operators of one rank in one iteration, in the order of their starts."""

RANK_COLUMNS: Final[Mapping[str, Column]] = {
    "rank": Column("int64", "global rank, once in a frame"),
    "iteration": Column("int64", "training iteration, the same in all rows"),
    "elapsed_ns": Column("float64", "time of the iteration on this rank"),
    "work_ns": Column("float64", "the rank's gaps, summed"),
    "communication_ns": Column("float64", "elapsed of the rank's operators, summed; overlaps count twice"),
    "operators": Column("float64", "how many operators the rank ran"),
    "tokens": Column("float64", "tokens of the rank's batch; NaN: the trainer does not say"),
    "stage": Column("int64", "ranks of the same value do the same work; UNKNOWN: not known"),
}
"""Level ``rank``: the rows are the ranks of one job in one iteration, in any order."""

COLUMNS: Final[Mapping[str, Mapping[str, Column]]] = {"operator": OPERATOR_COLUMNS, "rank": RANK_COLUMNS}


class Detector(Protocol):
    """A plug-in that scores. No base class is needed; `plugins.checks.check_detector` says whether one is right.

    Constructors take keyword-only scalars with defaults. A detector pickles, keeps its state bounded, and asks no
    clock, file, network or global random state. A worker's snapshots do not hold it: after a restart it begins cold.
    """

    @property
    def level(self) -> Level:
        """``operator``: the frames of the first hop; ``rank``: those of the second."""

    @property
    def against(self) -> Against:
        """What a row is compared with: the ``past`` of the same thing, or its ``peers`` in the same frame."""

    @property
    def reads(self) -> Sequence[str]:
        """Columns that it needs; a frame may hold more. Checked against the columns of its level at the start."""

    def score(self, frame: Frame) -> Scores:
        """Score each row, and change nothing, neither the detector nor the frame.

        Raises nothing for a cold detector, an empty frame, NaN, or ranks that were never seen.
        """

    def learn(self, frame: Frame) -> None:
        """Take the frame as an example of what is regular; keeps no reference to its arrays.

        The only method that changes state. A detector of ranks learns the iterations that were not judged irregular;
        one of operators learns all, since the first hop does not know which ones are.
        """


def strange_from(detector: Detector) -> float:
    """Score from which a row is strange on the detector's own scale; 1 if it does not say."""
    return float(getattr(detector, "strange_from", 1.0))


MakeDetector = Callable[[], Detector]
"""Makes a fresh detector; called once per rank (level ``operator``) or job (level ``rank``)."""
