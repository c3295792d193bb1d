"""What a forest sees of an operator: Holmes's feature families, as ratios to the rank's own past.

Holmes trains one forest per job on absolute times. Here all times are divided by what is usual for the same slot, the
same class and the whole iteration of the rank, or are logarithms of such ratios, so that one forest serves all jobs.
The size of a communicator is among Holmes's fixed features, yet not in the frames of a rank, and missing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from detectors.forest.drift import DriftSignals
from detectors.forest.past import OperatorPast, Statistics, Usual
from detectors.forest.slots import Places, Slots, pack_slots
from detectors.protocol import Frame
from streams.errors import PluginError
from streams.records import RECV, SEND

Tuning = Literal["drift", "always", "off"]

FEATURES: Final = (
    "slot_ratio", "slot_z", "slot_quartile", "slot_iqr", "slot_deviation",
    "class_ratio", "class_z", "class_quartile", "class_iqr", "class_deviation",
    "excess_share", "usual_share", "expected_ratio", "gap_share",
    "alike_z", "alike_expected", "alike_highest", "near_z", "near_expected", "excess_of_excess", "others_share",
    "iteration_ratio", "mean_operator_ratio", "median_ratio",
    "place", "log_size", "is_p2p",
)  # fmt: skip
"""Columns of the matrix. Ratios are natural logarithms; shares are parts of the usual time of an iteration.

``*_quartile`` is the distance above the upper quartile in interquartile ranges. ``expected_ratio`` compares with what
is usual after a gap of this length: who arrives earlier than usual waits longer.
"""

READS: Final = ("communicator", "operator", "peer", "sequence", "size_bytes", "elapsed_ns", "gap_ns", "iteration")

_FLOOR_RATIO: Final = 0.02  # least spread that counts as noise
_YOUNG_STEP: Final = 4  # frames from one look at the past to the next, while the past is short
_STEP: Final = 8  # the same, where the past is followed always


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Features of the rows of a frame that have a past.

    Attributes
    ----------
    rows
        Their indices in the frame.
    matrix
        Array ``(len(rows), len(FEATURES))``, float64, finite.
    """

    rows: np.ndarray
    matrix: np.ndarray

    def column(self, name: str) -> np.ndarray:
        """One feature of all rows."""
        return self.matrix[:, FEATURES.index(name)]


class OperatorFeatures:
    """Follows the past of one rank, and compares its operators with it.

    Parameters
    ----------
    window
        Iterations that count as the past.
    warm_up
        Iterations before there are features.
    tuning
        When what is usual is looked at anew, once the window is full: ``drift``, while a drift detector says that
        the job changes (see `detectors.forest.drift`); ``always``, every few frames; ``off``, never.
    most_slots
        Bound of the state.
    """

    def __init__(self, *, window: int = 32, warm_up: int = 20, tuning: Tuning = "drift", most_slots: int = 4096) -> None:
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
        self._times = np.full((2, window), np.nan)  # log time of the iteration, and of its mean operator
        self._usual_times = np.full(2, np.nan)

    def rows(self, frame: Frame) -> FeatureRows:
        """Compute the features; changes nothing."""
        values = log_elapsed(frame["elapsed_ns"])
        if self._usual is None or not len(self._usual.classes) or not len(values):
            return FeatureRows(np.zeros(0, dtype=np.int64), np.zeros((0, len(FEATURES))))
        slots = pack_slots(frame, self._places.number(frame))
        at_slot, has_slot = _find(self._usual.slots, slots.slot)
        at_class, has_class = _find(self._usual.classes, slots.class_)
        rows = np.flatnonzero(has_class & ~np.isnan(values))
        of_class = self._usual.of_class.take(at_class[rows])
        of_slot = _choose(has_slot[rows], self._usual.of_slot.take(at_slot[rows]), of_class)
        usual_gap_ns = np.where(has_slot[rows], self._usual.gap_ns[at_slot[rows]], np.nan)
        alike = np.unique(slots.class_[rows], return_inverse=True)[1]
        return FeatureRows(rows, self._matrix(frame, rows, values, of_slot, of_class, usual_gap_ns, alike))

    def learn(self, frame: Frame) -> None:
        """Take in a regular frame."""
        values = log_elapsed(frame["elapsed_ns"])
        known = np.flatnonzero(~np.isnan(values))
        if not len(known):
            return
        slots = pack_slots(frame, self._places.number(frame))
        self._places.learn(frame)
        self._watch(frame)
        kept = Slots(slots.slot[known], slots.class_[known])
        has_new = self._past.learn(kept, values[known], frame["gap_ns"][known].astype(np.float64))
        self._times[:, self._frames % self.window] = _log_times(frame)
        self._frames += 1
        self._unsettled = max(self._unsettled - 1, 0)
        if has_new and self.tuning != "off":
            self._unsettled = self.window
        self._look()

    def _watch(self, frame: Frame) -> None:
        """Follow what is usual for another window after the job has changed."""
        if self.tuning != "drift" or self._usual is None:
            return
        features = self.rows(frame)
        ratios = features.column("slot_ratio")
        if self._drift.has_changed(frame["operator"][features.rows], ratios):
            self._unsettled = self.window

    def _look(self) -> None:
        is_followed = self._unsettled > 0 or self.tuning == "always"
        step = _YOUNG_STEP if self._unsettled else _STEP
        if (is_followed and self._frames % step == 0) or self._unsettled == 1:
            self._usual = self._past.usual()
            with np.errstate(invalid="ignore"):
                self._usual_times = np.nanmedian(self._times[:, : self._frames], axis=1)

    def _matrix(
        self, frame: Frame, rows: np.ndarray, values: np.ndarray, of_slot: Statistics, of_class: Statistics,
        usual_gap_ns: np.ndarray, alike: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        values = values[rows]
        usual_ns, usual_time_ns = np.exp(of_slot.median), np.exp(self._usual_times[0])
        early_ns = np.nan_to_num(usual_gap_ns - frame["gap_ns"][rows], nan=0.0)
        expected_ns = np.maximum(usual_ns + early_ns, usual_ns / 4)
        times = _log_times(frame) - self._usual_times
        ratio = values - of_slot.median
        slot = _against(values, of_slot)
        expected = values - np.log(expected_ns)
        z = np.clip(slot[1], -5, 10)
        zx = np.clip(expected / np.maximum(slot[3], 0.02), -5, 10)
        count = np.bincount(alike)
        total = np.expm1(times[0])
        excess = (np.exp(values) - usual_ns) / usual_time_ns
        o = np.argsort(alike, kind="stable"); first = np.r_[True, np.diff(alike[o]) != 0]
        highest = np.maximum.reduceat(z[o], np.flatnonzero(first)) if len(o) else z
        def near(v):
            if len(v) < 2: return v
            w = np.r_[v[:1], v, v[-1:]]
            return (w[:-2] + w[2:]) / 2
        columns = [
            *_against(values, of_slot), *_against(values, of_class),
            (np.exp(values) - usual_ns) / usual_time_ns, of_slot.median - self._usual_times[0],
            values - np.log(expected_ns), early_ns / usual_time_ns,
            (np.bincount(alike, z) / np.maximum(count, 1))[alike], (np.bincount(alike, zx) / np.maximum(count, 1))[alike],
            highest[alike] if len(o) else z, near(z), near(zx), np.clip(excess / max(total, 0.01), -5, 5), total - excess,
            np.full(len(rows), times[0]), np.full(len(rows), times[1]),
            np.full(len(rows), np.median(ratio) if len(ratio) else 0.0),
            rows / max(len(frame["operator"]), 1), _log_size(frame["size_bytes"][rows]),
            np.isin(frame["operator"][rows], (SEND, RECV)).astype(np.float64),
        ]  # fmt: skip
        return np.stack(columns, axis=1)


def log_elapsed(elapsed_ns: np.ndarray) -> np.ndarray:
    """Natural logarithm, NaN where elapsed is not known; less than one nanosecond counts as one."""
    is_usable = np.isfinite(elapsed_ns) & (elapsed_ns >= 0)
    return np.where(is_usable, np.log(np.where(is_usable, np.maximum(elapsed_ns, 1.0), 1.0)), np.nan)


def _against(values: np.ndarray, usual: Statistics) -> tuple[np.ndarray, ...]:
    iqr = usual.high_quartile - usual.low_quartile
    return (
        values - usual.median,
        (values - usual.mean) / np.maximum(usual.deviation, _FLOOR_RATIO),
        (values - usual.high_quartile) / np.maximum(iqr, _FLOOR_RATIO),
        iqr,
        usual.deviation,
    )


def _log_times(frame: Frame) -> np.ndarray:
    """Log of the iteration's time on this rank (overlaps count twice, also in the past), and of its mean operator."""
    elapsed_ns, gap_ns = frame["elapsed_ns"], frame["gap_ns"]
    elapsed_ns = elapsed_ns[np.isfinite(elapsed_ns) & (elapsed_ns >= 0)]
    if not len(elapsed_ns):
        return np.full(2, np.nan)
    total_ns = elapsed_ns.sum() + gap_ns[np.isfinite(gap_ns) & (gap_ns >= 0)].sum()
    return np.log(np.maximum([total_ns, elapsed_ns.mean()], 1.0))


def _log_size(size_bytes: np.ndarray) -> np.ndarray:
    is_known = np.isfinite(size_bytes) & (size_bytes >= 0)
    return np.where(is_known, np.log2(1.0 + np.where(is_known, size_bytes, 0.0)), -1.0)


def _find(codes: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each wanted code stands in the sorted `codes` (not empty), and whether it does."""
    at = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return at, codes[at] == wanted


def _choose(has_slot: np.ndarray, of_slot: Statistics, of_class: Statistics) -> Statistics:
    """What is usual for the slot, or for the class where the slot is new."""
    pairs = zip(of_slot, of_class, strict=True)
    return Statistics(*(np.where(has_slot, slot, class_) for slot, class_ in pairs))
