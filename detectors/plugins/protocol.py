"""The plug-in protocol of detectors, and the columns that they may read.

A detector gives every row of a frame a number, higher where it is stranger. It never decides: how often a row must be
strange, and with which consequence, is for the monitor, which calls in this order: score, judge, learn.

Detectors score on scales of their own: standard deviations, probabilities. One may state with an attribute
``strange_from`` (a number above 0) from which score on a row is strange on its scale; monitors get scores divided by
it (`detectors.plugins.loading.load_detectors`), so that 1 is where strange begins, and scores of several detectors
compare. Without it the scale is taken to be this one already.

All else that a detector may have is optional as well, and read by the functions at the end of this file:

=================  ===================================================================================================
``name``           Text under which its scores are stored (`messages.evidence.DETECTOR_NAME`); default: that
                   of its entry point, else of its class.
``opens_verdicts`` True: it opens verdicts of kind ``custom`` of its own. A ``!`` behind its name in the settings
                   does the same for any detector.
``is_witness``     False: where it finds a suspect of a verdict strange, the verdict's evidence does not say so.
``explain``        ``explain(frame, row) -> str``: one line for people on why the row is strange.
``state``          ``state() -> dict`` of plain values and numpy arrays (`detectors.plugins.stored_state`): the part
                   of it that a worker's snapshot keeps.
``restore``        ``restore(state)``: a fresh detector of the same options goes on from there after a restart.
=================  ===================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from irregulars import dtypes
from irregulars.printing import one_line

Frame = Mapping[str, dtypes.Column]  # columns of equal lengths, by the names in `OPERATOR_COLUMNS` or `RANK_COLUMNS`
Scores = dtypes.Floats  # one number per row: higher is stranger, NaN is "no opinion yet"; never infinite
Level = Literal["operator", "rank"]
Against = Literal["past", "peers"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a frame: numpy type, and its content with the unit."""

    dtype: str
    about: str


OPERATOR_COLUMNS: Final[Mapping[str, Column]] = {
    "communicator": Column("int64", "code of the communicator, stable within the rank"),
    "operator": Column("uint8", "index into irregulars.messages.records.OPERATORS"),
    "peer": Column("int64", "global rank at the other end of a send or recv; UNKNOWN for collectives"),
    "sequence": Column("int64", "n-th operator on its communicator"),
    "size_bytes": Column("float64", "payload of this rank; NaN: not known"),
    "elapsed_ns": Column("float64", "time inside the operator, waiting included; NaN: not ended"),
    "gap_ns": Column("float64", "start minus the latest end of the rank's earlier operators; NaN: not known"),
    "iteration": Column("int64", "training iteration, the same in all rows"),
}
"""Level ``operator``: the rows are the operators of one rank in one iteration, in the order of their starts."""

NUMBERS: Final[Mapping[str, str]] = {
    "loss": "loss of the rank's batch",
    "grad_norm": "norm of the reduced gradient before clipping",
    "local_grad_norm": "norm of the rank's own gradient before any reduction",
    "update_rms": "largest RMS of a parameter's update",
}
"""Columns of the numbers that a rank computed (`detectors.numerics`), in RANK_COLUMNS too."""

RANK_COLUMNS: Final[Mapping[str, Column]] = {
    "rank": Column("int64", "global rank, once in a frame"),
    "iteration": Column("int64", "training iteration, the same in all rows"),
    "elapsed_ns": Column("float64", "time of the iteration on this rank"),
    "work_ns": Column("float64", "the rank's gaps, summed"),
    "communication_ns": Column("float64", "elapsed of the rank's operators, summed; overlaps count twice"),
    "operators": Column("float64", "how many operators the rank ran"),
    "tokens": Column("float64", "tokens of the rank's batch; NaN: the trainer does not say"),
    **{
        name: Column("float64", f"{text}; NaN: the trainer does not say, infinite: not finite")
        for name, text in NUMBERS.items()
    },
    "stage": Column("int64", "ranks of the same value do the same work; UNKNOWN: not known"),
}
"""Level ``rank``: the rows are the ranks of one job in one iteration, in any order."""

COLUMNS: Final[Mapping[str, Mapping[str, Column]]] = {"operator": OPERATOR_COLUMNS, "rank": RANK_COLUMNS}


class Detector(Protocol):
    """A plug-in that scores. No base class is needed; `plugins.checks.check_detector` checks whether one is right.

    Constructors take keyword-only scalars with defaults. A detector pickles, keeps its state bounded, and asks no
    clock, network or global random state, and no file but one that does not change, as a trained model. A worker's
    snapshots hold the result of its `state`; a detector without one begins cold after a restart.
    """

    @property
    def level(self) -> Level:
        """``operator``: the frames of the first hop; ``rank``: those of the second."""

    @property
    def against(self) -> Against:
        """Whether a row is compared with the ``past`` of the same thing, or with its ``peers`` in the same frame."""

    @property
    def reads(self) -> Sequence[str]:
        """Columns that it needs; a frame may hold more. Checked against the columns of its level at the start."""

    def score(self, frame: Frame) -> Scores:
        """Score each row, and change nothing, neither the detector nor the frame.

        Raises nothing for a cold detector, an empty frame, NaN, or ranks that were never seen.
        """

    def learn(self, frame: Frame) -> None:
        """Learn a regular frame; keeps no reference to its arrays.

        `score` changes no state, this does. A detector of ranks learns the iterations that were not judged irregular.
        The first hop does not know yet which ones are: a detector of operators learns those that took the rank no
        longer than δ times its own recent mean (`streams.rank_hop.taught_detectors`).
        """


def strange_from(detector: Detector) -> float:
    """Score from which a row is strange on the detector's own scale; 1 if it states none."""
    return float(getattr(detector, "strange_from", 1.0))


MOST_EXPLAINED: Final = 200  # characters of an explanation that are shown


def name_of(detector: Detector) -> str:
    """Return the name under which a detector's scores are stored: its own, else its class's.

    >>> from irregulars.detectors.plugins.peers import PeerDeviation
    >>> name_of(PeerDeviation())
    'peer_deviation'
    """
    of_class = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(detector).__name__).lower()
    return str(getattr(detector, "name", None) or of_class)


def opens_verdicts(detector: Detector) -> bool:
    """Return whether a detector opens verdicts of its own."""
    return bool(getattr(detector, "opens_verdicts", False))


def is_witness(detector: Detector) -> bool:
    """Return whether a verdict's evidence names a detector that finds its suspect strange; by default it does."""
    return bool(getattr(detector, "is_witness", True))


def has_state(detector: Detector) -> bool:
    """Return whether a snapshot can hold a detector."""
    return callable(getattr(detector, "state", None)) and callable(getattr(detector, "restore", None))


def explanation_of(detector: Detector, frame: Frame, row: int) -> str:
    """Return a detector's explanation of a row as one short line; empty if it gives none.

    It is text for people, so one that fails is shown as such, and changes nothing else.
    """
    explain: Any = getattr(detector, "explain", None)
    if explain is None:
        return ""
    try:
        text = str(explain(frame, row))
    except Exception as error:  # a stranger's code
        text = f"no explanation, it raised {type(error).__name__}"
    return one_line(text).strip()[:MOST_EXPLAINED]


MakeDetector = Callable[[], Detector]
"""Makes a fresh detector; called once per rank (level ``operator``) or job (level ``rank``)."""


def with_say(makers: Sequence[MakeDetector]) -> tuple[MakeDetector, ...]:
    """Return those of some detectors on which verdicts depend; the others only fill columns of the database."""
    return tuple(make for make in makers if opens_verdicts(one := make()) or is_witness(one))
