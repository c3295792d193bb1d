"""Follows the past of a rank's operators, compares those of an iteration with it, and picks what a forest should see.

The first test is cheap: an operator reaches a forest if it takes longer than usual, in an iteration that does, and by
more than the iterations of this rank differ anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from irregulars.detectors.arrays.grouped_medians import robust_sigma
from irregulars.detectors.plugins.baseline import Codes
from irregulars.detectors.plugins.forest.drift import DriftSignals
from irregulars.detectors.plugins.forest.matrix import FEATURES, Compared, log_elapsed, log_times, make_matrix
from irregulars.detectors.plugins.forest.past import OperatorPast, Statistics, Usual
from irregulars.detectors.plugins.forest.positions import Places, Slots, pack_slots
from irregulars.detectors.plugins.protocol import Frame
from irregulars.dtypes import Flags, Floats, Ints
from irregulars.errors import PluginError

Tuning = Literal["always", "drift", "off"]

READS: Final = ("communicator", "operator", "peer", "sequence", "size_bytes", "elapsed_ns", "gap_ns", "iteration")
"""Columns of a frame that the features are made of."""

_LEAST_RATIO: Final = 0.08  # natural log of times usual, of operators that reach a forest: just below 1.1 times
_LEAST_ITERATION_RATIO: Final = 0.02  # the same of iterations: half of the 4 % from which Holmes calls one irregular
_LEAST_ITERATION_SIGMAS: Final = 2.0  # the same in standard deviations of iterations: chosen, since real jobs vary
_RECENT: Final = 8  # iterations that say how long one takes at present
_YOUNG_STEP: Final = 4  # frames from one look at the past to the next, while it is short or has changed
_STEP: Final = 8  # the same, where it is followed always


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Features of the rows of a frame that have a past.

    Attributes
    ----------
    rows
        Their indices in the frame.
    matrix
        Array ``(len(rows), len(FEATURES))``, float64, finite.
    is_slow
        Whether the iteration took longer than usual on this rank.
    """

    rows: Ints
    matrix: Floats
    is_slow: bool

    def column(self, name: str) -> Floats:
        """One feature of all rows."""
        return self.matrix[:, FEATURES.index(name)]

    def is_suspicious(self) -> Flags:
        """The first test: which rows a forest should see."""
        return np.asarray(self.is_slow & (self.column("slot_ratio") > _LEAST_RATIO))


class OperatorFeatures:
    """The past of one rank, and its operators beside it.

    Parameters
    ----------
    window
        Iterations that count as the past.
    warm_up
        Iterations before there are features.
    tuning
        When what is usual is looked at anew, once the window is full: ``always``, every few frames; ``drift``, while
        a drift detector says that the job changes (see `detectors.plugins.forest.drift`); ``off``, never.
    most_slots
        Bound of the state.

    Raises
    ------
    PluginError
        If a value is out of its range.
    """

    def __init__(self, *, window: int, warm_up: int, tuning: Tuning, most_slots: int) -> None:
        if not 4 <= warm_up <= window:
            raise PluginError(f"warm_up must be 4 to window = {window}; got {warm_up!r} (features of operators)")
        if tuning not in get_args(Tuning):
            raise PluginError(f"tuning must be one of {', '.join(get_args(Tuning))}; got {tuning!r}")
        self.window = window
        self.tuning = tuning
        self._places = Places()
        self._past = OperatorPast(window=window, warm_up=warm_up, most_slots=most_slots)
        self._drift = DriftSignals()
        self._usual: Usual | None = None
        self._frames = 0
        self._unsettled = window  # frames for which what is usual is still followed
        self._times = np.full((2, window), np.nan)  # oldest first
        self._usual_times = np.full(2, np.nan)
        self._time_sigma = np.nan

    def rows(self, frame: Frame) -> FeatureRows:
        """Compute the features; changes nothing."""
        values = log_elapsed(frame["elapsed_ns"])
        if self._usual is None or not len(self._usual.classes) or not len(values):
            return FeatureRows(np.zeros(0, dtype=np.int64), np.zeros((0, len(FEATURES))), False)
        return self._compare(self._usual, frame, values, pack_slots(frame, self._places.number(frame)))

    def learn(self, frame: Frame) -> None:
        """Take in a regular frame."""
        values = log_elapsed(frame["elapsed_ns"])
        known = np.flatnonzero(~np.isnan(values))
        if not len(known):
            return
        has_changed = self.tuning == "drift" and self._has_drifted(frame)
        slots = pack_slots(frame, self._places.number(frame))
        self._places.learn(frame)
        kept = Slots(slots.slot[known], slots.class_[known])
        has_new = self._past.learn(kept, values[known], frame["gap_ns"][known].astype(np.float64))
        self._times = np.column_stack([self._times[:, 1:], log_times(frame)])
        self._frames += 1
        if has_changed or (has_new and self.tuning != "off"):
            self._unsettled = self.window
        self._look()

    def _has_drifted(self, frame: Frame) -> bool:
        found = self.rows(frame)
        return self._drift.has_changed(frame["operator"][found.rows], found.column("slot_ratio"))

    def _look(self) -> None:
        is_frozen = self.tuning == "off" and not self._unsettled
        if not is_frozen:
            self._usual_times = np.nanmedian(self._times[:, -_RECENT:], axis=1)
            self._time_sigma = _sigma_of_steps(self._times[0])
        step = _YOUNG_STEP if self._unsettled else _STEP
        is_followed = self._unsettled > 0 or self.tuning == "always"
        if is_followed and (self._frames % step == 0 or self._unsettled == 1):
            self._usual = self._past.usual()
        self._unsettled = max(self._unsettled - 1, 0)

    def _compare(self, usual: Usual, frame: Frame, values: Floats, slots: Slots) -> FeatureRows:
        at_slot, has_slot = _find(usual.slots, slots.slot)
        at_class, has_class = _find(usual.classes, slots.class_)
        rows = np.flatnonzero(has_class & ~np.isnan(values))
        at_slot, has_slot, of_class = at_slot[rows], has_slot[rows], usual.of_class.take(at_class[rows])
        early_ns = np.where(has_slot, usual.gap_ns[at_slot] - frame["gap_ns"][rows], 0.0)
        compared = Compared(
            values=values[rows],
            of_slot=_choose(has_slot, usual.of_slot.take(at_slot), of_class),
            of_class=of_class,
            early_ns=np.nan_to_num(early_ns, nan=0.0, posinf=0.0, neginf=0.0),
            class_=np.unique(slots.class_[rows], return_inverse=True)[1],
            place=rows / max(len(values), 1),
            size_bytes=frame["size_bytes"][rows],
            operator=frame["operator"][rows],
            times=log_times(frame),
            usual_times=self._usual_times,
        )
        return FeatureRows(rows, make_matrix(compared), self._is_slow(compared.times[0]))

    def _is_slow(self, time: float) -> bool:
        limit = max(_LEAST_ITERATION_RATIO, _LEAST_ITERATION_SIGMAS * float(np.nan_to_num(self._time_sigma)))
        return bool(time - self._usual_times[0] > limit)


def _sigma_of_steps(values: Floats) -> float:
    """Standard deviation from the steps between neighbours, which a drift does not widen; NaN: too few values."""
    steps = np.diff(values[~np.isnan(values)])
    return robust_sigma(steps) / float(np.sqrt(2.0)) if len(steps) else np.nan


def _find(codes: Codes, wanted: Codes) -> tuple[Ints, Flags]:
    """Where each wanted code stands in the sorted `codes` (not empty), and whether it does."""
    at = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return at, codes[at] == wanted


def _choose(has_slot: Flags, of_slot: Statistics, of_class: Statistics) -> Statistics:
    """What is usual for the slot, or for the class where the slot is new."""
    pairs = zip(of_slot, of_class, strict=True)
    return Statistics(*(np.where(has_slot, slot, class_) for slot, class_ in pairs))
