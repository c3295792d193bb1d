"""Features of a rank's operators: Holmes's families as ratios to the rank's own past, and the rows worth scoring.

Holmes trains one forest per job on absolute times. Here all times are divided by the usual ones of the slot, the
same class and the whole iteration of the rank, or are logarithms of such ratios, so that one forest serves all jobs.
Holmes lacks the slot (`detectors.plugins.forest.past`) and the company: how far the operators of the same class are
from their usual in this iteration, and which part of the iteration's excess an operator makes. The size of a
communicator, which Holmes has, is not in the frames of a rank.

The first test is cheap: an operator reaches a forest if it takes longer than usual, in an iteration that does, and by
more than the iterations of this rank differ anyway.

Holmes shifts the split thresholds of its forest when a statistic drifts. A split asks whether ``(x - m) / s <= t``,
with ``m`` and ``s`` from the past: whether ``x <= m + s t``. To take ``m`` and ``s`` from a newer past moves the
thresholds of all splits on this feature by as much as the statistic has drifted, for each slot by its own drift; the
trees and their labels stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np

from irregulars.detectors.arrays.grouped_medians import robust_sigma
from irregulars.detectors.plugins.baseline import Codes, log_elapsed
from irregulars.detectors.plugins.forest.past import OperatorPast, Places, Slots, Statistics, Usual, pack_slots
from irregulars.detectors.plugins.protocol import Frame
from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.errors import PluginError
from irregulars.messages.records import RECV, SEND

FEATURES: Final = (
    "slot_ratio", "slot_z", "slot_quartile", "slot_iqr", "slot_deviation",
    "class_ratio", "class_z", "class_quartile", "class_iqr", "class_deviation",
    "excess_share", "usual_share", "excess_of_excess", "others_share", "expected_ratio", "gap_share",
    "alike_z", "alike_expected", "alike_highest",
    "iteration_ratio", "mean_operator_ratio", "median_ratio",
    "place", "log_size", "is_p2p",
)  # fmt: skip
"""Columns of the matrix.

``*_ratio``
    Natural logarithm of the ratio to the usual value. ``expected_ratio`` compares with the usual one after a gap of
    this length: who arrives earlier than usual waits longer. ``median_ratio`` is the middle one of the rank.
``*_z``, ``*_quartile``, ``*_iqr``, ``*_deviation``
    Distance to the mean in standard deviations and above the upper quartile in interquartile ranges, and these two
    spreads, all of the logarithm.
``*_share``
    Parts of the usual time of an iteration: the operator's excess, its usual time, the excess of all else, and by
    how much its gap was shorter. ``excess_of_excess`` is the operator's part of the iteration's excess.
``alike_*``
    Mean ``slot_z``, mean z of ``expected_ratio``, and largest ``slot_z``, of the class in this iteration.
``place``, ``log_size``, ``is_p2p``
    Where in the iteration, 0 to 1; log2 of the bytes, -1: not known; send or recv.
"""

_FLOOR_RATIO: Final = 0.02  # least spread that counts as noise, of log time: that of `RobustBaseline`
_LEAST_EXCESS: Final = 0.01  # share of an iteration; a smaller excess is divided as if it were this
_Z_LIMITS: Final = (-5.0, 10.0)  # standard deviations; beyond, one operator would outweigh all others of its class
_PART_LIMITS: Final = (-5.0, 5.0)  # parts of the iteration's excess; beyond, the excess is too small to divide by


@dataclass(frozen=True, slots=True)
class Compared:
    """Rows of a frame beside the usual values for them; all arrays have one value per row.

    ``values`` is log elapsed, ``early_ns`` by how much the gap was shorter than usual, ``class_`` a small number per
    class, ``place`` the row's part of the way through the iteration. Of the two ``times`` and ``usual_times`` (log
    ns) the first is the iteration's, the second its mean operator's.
    """

    values: Floats
    of_slot: Statistics
    of_class: Statistics
    early_ns: Floats
    class_: Ints
    place: Floats
    size_bytes: Floats
    operator: Column
    times: Floats
    usual_times: Floats


def make_matrix(rows: Compared) -> Floats:
    """Return the array ``(rows, len(FEATURES))``, float64."""
    slot = _against(rows.values, rows.of_slot)
    usual_ns = np.exp(rows.of_slot.median)
    expected = rows.values - np.log(np.maximum(usual_ns + rows.early_ns, usual_ns / 4))
    times = rows.times - rows.usual_times
    middle = float(np.median(slot[0])) if len(slot[0]) else 0.0
    is_sized = np.isfinite(rows.size_bytes) & (rows.size_bytes >= 0)
    log_size = np.where(is_sized, np.log2(1.0 + np.where(is_sized, rows.size_bytes, 0.0)), -1.0)
    columns = [
        *slot, *_against(rows.values, rows.of_class), *_shares(rows, expected),
        *_alike(rows.class_, slot[1], expected / np.maximum(slot[3], _FLOOR_RATIO)),
        *(np.full(len(slot[0]), value) for value in (times[0], times[1], middle)),
        rows.place, log_size, np.isin(rows.operator, (SEND, RECV)).astype(np.float64),
    ]  # fmt: skip
    return np.stack(columns, axis=1)


def _against(values: Floats, usual: Statistics) -> tuple[Floats, ...]:
    iqr = usual.high_quartile - usual.low_quartile
    return (
        values - usual.median,
        (values - usual.mean) / np.maximum(usual.deviation, _FLOOR_RATIO),
        (values - usual.high_quartile) / np.maximum(iqr, _FLOOR_RATIO),
        iqr,
        usual.deviation,
    )


def _shares(rows: Compared, expected: Floats) -> tuple[Floats, ...]:
    usual_ns, iteration_ns = np.exp(rows.of_slot.median), np.exp(rows.usual_times[0])
    excess = (np.exp(rows.values) - usual_ns) / iteration_ns
    total = np.expm1(rows.times[0] - rows.usual_times[0])
    part = np.clip(excess / max(total, _LEAST_EXCESS), *_PART_LIMITS)
    usual_share = rows.of_slot.median - rows.usual_times[0]
    return excess, usual_share, part, total - excess, expected, rows.early_ns / iteration_ns


def _alike(class_: Ints, z: Floats, expected_z: Floats) -> tuple[Floats, ...]:
    z, expected_z = np.clip(z, *_Z_LIMITS), np.clip(expected_z, *_Z_LIMITS)
    counts = np.maximum(np.bincount(class_), 1)
    highest = np.full(len(counts), _Z_LIMITS[0])
    np.maximum.at(highest, class_, z)
    means = [(np.bincount(class_, one) / counts)[class_] for one in (z, expected_z)]
    return *means, highest[class_]


def log_times(frame: Frame) -> Floats:
    """Log of the iteration's time on this rank, and of its mean operator; NaN if no operator has ended.

    Operators without a gap before them overlap, as a batched send and recv do: of such a run the longest counts. A
    run that is staggered takes somewhat longer, here and in the past alike.
    """
    elapsed_ns, gap_ns = frame["elapsed_ns"], frame["gap_ns"]
    is_known = np.isfinite(elapsed_ns) & (elapsed_ns >= 0)
    if not is_known.any():
        return np.full(2, np.nan)
    has_gap = np.isfinite(gap_ns) & (gap_ns > 0)
    begins = has_gap.copy()
    begins[0] = True  # `reduceat` needs a run from the first row on
    runs_ns = np.maximum.reduceat(np.where(is_known, elapsed_ns, 0.0), np.flatnonzero(begins))
    total_ns = runs_ns.sum() + gap_ns[has_gap].sum()
    return np.log(np.maximum([total_ns, elapsed_ns[is_known].mean()], 1.0))


Tuning = Literal["always", "drift", "off"]

READS: Final = ("communicator", "operator", "peer", "sequence", "size_bytes", "elapsed_ns", "gap_ns", "iteration")
"""Columns of a frame that the features are made of."""

_LEAST_RATIO: Final = 0.08  # natural log of times usual, of operators that reach a forest: just below 1.1 times
_LEAST_ITERATION_RATIO: Final = 0.02  # the same of iterations: half of the 4 % from which Holmes calls one irregular
_LEAST_ITERATION_SIGMAS: Final = 2.0  # the same in standard deviations of iterations: chosen, since real jobs vary
_RECENT: Final = 8  # iterations that show how long one takes at present
_YOUNG_STEP: Final = 4  # frames from one look at the past to the next, while it is short or has changed
_STEP: Final = 8  # the same, where it is followed always
_CONFIDENCE: Final = 0.002  # ADWIN's own default
_ALL: Final = -1  # instead of a kind of operators: all of them together


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Features of the rows of a frame that have a past."""

    rows: Ints  # their indices in the frame
    matrix: Floats  # array ``(len(rows), len(FEATURES))``, float64, finite
    is_slow: bool  # whether the iteration took longer than usual on this rank

    def column(self, name: str) -> Floats:
        """One feature of all rows."""
        return self.matrix[:, FEATURES.index(name)]

    def is_suspicious(self) -> Flags:
        """The first test: which rows a forest should see."""
        return np.asarray(self.is_slow & (self.column("slot_ratio") > _LEAST_RATIO))


class OperatorFeatures:
    """The past of one rank, and its operators beside it.

    `window`: iterations that count as the past. `warm_up`: iterations before there are features. `tuning`: when the
    usual values are computed anew, once the window is full: ``always``, every few frames; ``drift``, while a drift
    detector reports that the job changes (see `detectors.plugins.forest.features`); ``off``, never. `most_slots`:
    bound of the state. Raises `PluginError` if a value is out of its range.
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
        self._drifts: dict[int, Any] = {}  # an ADWIN for each kind of operators
        self._usual: Usual | None = None
        self._frames = 0
        self._unsettled = window  # frames for which the usual values are still followed
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
        has_changed = False
        if self.tuning == "drift":  # before the frame is learned: it is held against the past without it
            found = self.rows(frame)
            has_changed = self._has_drifted(frame["operator"][found.rows], found.column("slot_ratio"))
        slots = pack_slots(frame, self._places.number(frame))
        self._places.learn(frame)
        kept = Slots(slots.slot[known], slots.class_[known])
        has_new = self._past.learn(kept, values[known], frame["gap_ns"][known].astype(np.float64))
        self._times = np.column_stack([self._times[:, 1:], log_times(frame)])
        self._frames += 1
        if has_changed or (has_new and self.tuning != "off"):
            self._unsettled = self.window
        is_frozen = self.tuning == "off" and not self._unsettled
        if not is_frozen:
            self._usual_times = np.nanmedian(self._times[:, -_RECENT:], axis=1)
            self._time_sigma = _sigma_of_steps(self._times[0])
        step = _YOUNG_STEP if self._unsettled else _STEP
        is_followed = self._unsettled > 0 or self.tuning == "always"
        # Also in the last frame that is followed: these values stay until the next change.
        if is_followed and (self._frames % step == 0 or self._unsettled == 1):
            self._usual = self._past.usual()
        self._unsettled = max(self._unsettled - 1, 0)

    def _has_drifted(self, operators: Column, ratios: Floats) -> bool:
        """Take in the log ratios of a regular iteration; return whether a lasting change was noticed with it.

        The signals are medians over an iteration: a single operator, whatever it takes, does not move them.

        References
        ----------
        Bifet and Gavaldà: Learning from Time-Changing Data with Adaptive Windowing, SDM 2007.
        """
        found = False
        for operator in (_ALL, *np.unique(operators).tolist()):  # 11 kinds at most
            own = ratios if operator == _ALL else ratios[operators == operator]
            if not len(own):
                continue
            if operator not in self._drifts:
                from river.drift import ADWIN  # 0.7 s: not for those who only import the module

                self._drifts[operator] = ADWIN(delta=_CONFIDENCE, clock=4)
            watch = self._drifts[operator]
            watch.update(float(np.median(own)))
            if watch.drift_detected:
                del self._drifts[operator]  # usual values move: later signals are of another scale
                found = True
        return found

    def _compare(self, usual: Usual, frame: Frame, values: Floats, slots: Slots) -> FeatureRows:
        at_slot, has_slot = _find(usual.slots, slots.slot)
        at_class, has_class = _find(usual.classes, slots.class_)
        rows = np.flatnonzero(has_class & ~np.isnan(values))
        at_slot, has_slot, of_class = at_slot[rows], has_slot[rows], usual.of_class.take(at_class[rows])
        early_ns = np.where(has_slot, usual.gap_ns[at_slot] - frame["gap_ns"][rows], 0.0)
        pairs = zip(usual.of_slot.take(at_slot), of_class, strict=True)  # a new slot has its class's values
        compared = Compared(
            values=values[rows],
            of_slot=Statistics(*(np.where(has_slot, own, alike) for own, alike in pairs)),
            of_class=of_class,
            early_ns=np.nan_to_num(early_ns, nan=0.0, posinf=0.0, neginf=0.0),
            class_=np.unique(slots.class_[rows], return_inverse=True)[1],
            place=rows / max(len(values), 1),
            size_bytes=frame["size_bytes"][rows],
            operator=frame["operator"][rows],
            times=log_times(frame),
            usual_times=self._usual_times,
        )
        limit = max(_LEAST_ITERATION_RATIO, _LEAST_ITERATION_SIGMAS * float(np.nan_to_num(self._time_sigma)))
        is_slow = bool(compared.times[0] - self._usual_times[0] > limit)
        return FeatureRows(rows, make_matrix(compared), is_slow)


def _sigma_of_steps(values: Floats) -> float:
    """Standard deviation from the steps between neighbours, which a drift does not widen; NaN: too few values."""
    steps = np.diff(values[~np.isnan(values)])
    return robust_sigma(steps) / float(np.sqrt(2.0)) if len(steps) else np.nan


def _find(codes: Codes, wanted: Codes) -> tuple[Ints, Flags]:
    """Return the place of each wanted code in the sorted `codes` (not empty), and whether it is there."""
    at = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return at, codes[at] == wanted
