"""What a forest sees of an operator: Holmes's feature families, as ratios to the rank's own past.

Holmes trains one forest per job on absolute times. Here all times are divided by what is usual for the same slot, the
same class and the whole iteration of the rank, or are logarithms of such ratios, so that one forest serves all jobs.
What Holmes lacks are the slot (`detectors.plugins.forest.positions`) and the company: how far the operators of the
same class are from their usual in this iteration, and which part of the iteration's excess an operator makes. The
size of a communicator, which Holmes has, is not in the frames of a rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.detectors.plugins.forest.past import Statistics
from irregulars.detectors.plugins.protocol import Frame
from irregulars.dtypes import Column, Floats, Ints
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
    Natural logarithm of what is over what is usual. ``expected_ratio`` compares with what is usual after a gap of
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
_Z_LIMITS: Final = (-5.0, 10.0)  # standard deviations; beyond, one operator would hide what those of its class say
_PART_LIMITS: Final = (-5.0, 5.0)  # parts of the iteration's excess; beyond, the excess is too small to divide by


@dataclass(frozen=True, slots=True)
class Compared:
    """Rows of a frame beside what is usual for them; all arrays have one value per row.

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
    expected = rows.values - np.log(_expected_ns(rows))
    columns = [
        *slot, *_against(rows.values, rows.of_class), *_shares(rows, expected),
        *_alike(rows.class_, slot[1], expected / np.maximum(slot[3], _FLOOR_RATIO)),
        *_of_frame(rows, slot[0]),
        rows.place, _log_size(rows.size_bytes), np.isin(rows.operator, (SEND, RECV)).astype(np.float64),
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


def _expected_ns(rows: Compared) -> Floats:
    usual_ns = np.exp(rows.of_slot.median)
    return np.maximum(usual_ns + rows.early_ns, usual_ns / 4)


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


def _of_frame(rows: Compared, ratio: Floats) -> tuple[Floats, ...]:
    times = rows.times - rows.usual_times
    middle = float(np.median(ratio)) if len(ratio) else 0.0
    return tuple(np.full(len(ratio), value) for value in (times[0], times[1], middle))


def _log_size(size_bytes: Floats) -> Floats:
    is_known = np.isfinite(size_bytes) & (size_bytes >= 0)
    return np.where(is_known, np.log2(1.0 + np.where(is_known, size_bytes, 0.0)), -1.0)


def log_elapsed(elapsed_ns: Floats) -> Floats:
    """Natural logarithm, NaN where elapsed is not known; less than one nanosecond counts as one."""
    is_usable = np.isfinite(elapsed_ns) & (elapsed_ns >= 0)
    return np.where(is_usable, np.log(np.where(is_usable, np.maximum(elapsed_ns, 1.0), 1.0)), np.nan)


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
    begins[0] = True
    runs_ns = np.maximum.reduceat(np.where(is_known, elapsed_ns, 0.0), np.flatnonzero(begins))
    total_ns = runs_ns.sum() + gap_ns[has_gap].sum()
    return np.log(np.maximum([total_ns, elapsed_ns[is_known].mean()], 1.0))
