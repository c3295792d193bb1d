"""Made-up frames, healthy and faulty, on which detectors are checked. The truth is known because it is put in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from irregulars.detectors.plugins.protocol import Frame, Level
from irregulars.dtypes import Column, Flags, Ints
from irregulars.messages.records import OPERATOR_CODES, UNKNOWN

WRONG: Final = 20.0  # times as large are a loss and a norm after a bit of an exponent turned over
SLOWDOWN: Final = 3.0  # how many times as slow the faulty operators, or the faulty rank, are
_NOISE: Final = 0.04  # standard deviation of log time: what gloo on a quiet host shows
_RANKS_PER_STAGE: Final = 8
_LAYOUT: Final = ((0, "all_gather", 2e6, 3e6), (0, "reduce_scatter", 2e6, 4e6), (1, "all_reduce", 6e7, 9e6),
                  (2, "send", 8e6, 1e6), (2, "recv", 8e6, 2e6), (3, "barrier", np.nan, 5e5))  # fmt: skip


def sample_frame(
    level: Level, iteration: int, rows: int = 48, *, is_faulty: bool = False, seed: int = 7
) -> dict[str, Column]:
    """Make the frame of one iteration; the same arguments give the same frame.

    Parameters
    ----------
    level
        ``operator`` or ``rank``.
    iteration
        Seeds the noise together with `seed`.
    rows
        Operators of the rank, or ranks of the job.
    is_faulty
        The operators on communicator 2 (level ``operator``), or the work of the second rank (level ``rank``), take
        `SLOWDOWN` times as long; of the second rank loss and own norm are `WRONG`, and the job's norm and update.
    """
    rng = np.random.default_rng([seed, iteration])
    make = _operator_frame if level == "operator" else _rank_frame
    frame = make(rng, rows, is_faulty)
    frame["iteration"] = np.full(rows, iteration, dtype=np.int64)
    return frame


def copy_frame(frame: Frame) -> dict[str, Column]:
    """Copy a frame and its arrays."""
    return {name: column.copy() for name, column in frame.items()}


def rename(frame: Frame, offset: int) -> dict[str, Column]:
    """Call ranks, peers and communicators by other names: each moved by `offset`, unknown ones left alone."""
    moved = copy_frame(frame)
    for name in ("rank", "peer", "communicator"):
        if name in moved:
            moved[name] = np.where(moved[name] == UNKNOWN, UNKNOWN, moved[name] + offset)
    return moved


def take(frame: Frame, rows: Ints | Flags) -> dict[str, Column]:
    """Pick rows by index or mask."""
    return {name: column[rows] for name, column in frame.items()}


def blank(frame: Frame, rows: Ints | Flags) -> dict[str, Column]:
    """Make all measurements of some rows unknown."""
    blanked = copy_frame(frame)
    for column in blanked.values():
        if column.dtype.kind == "f":
            column[rows] = np.nan
    return blanked


def _operator_frame(rng: np.random.Generator, rows: int, is_faulty: bool) -> dict[str, Column]:
    layout = [_LAYOUT[row % len(_LAYOUT)] for row in range(rows)]
    communicator = np.array([row[0] for row in layout], dtype=np.int64)
    usual_ns = np.array([row[3] for row in layout], dtype=np.float64)
    slow = np.where(is_faulty & (communicator == 2), SLOWDOWN, 1.0)
    return {
        "communicator": communicator,
        "operator": np.array([OPERATOR_CODES[row[1]] for row in layout], dtype=np.uint8),
        "peer": np.where(communicator == 2, np.int64(5), np.int64(UNKNOWN)),
        "sequence": np.arange(rows, dtype=np.int64),
        "size_bytes": np.array([row[2] for row in layout], dtype=np.float64),
        "elapsed_ns": usual_ns * slow * rng.lognormal(0.0, _NOISE, rows),
        "gap_ns": 1e6 * slow * rng.lognormal(0.0, _NOISE, rows),
    }


def _rank_frame(rng: np.random.Generator, rows: int, is_faulty: bool) -> dict[str, Column]:
    rank = np.arange(rows, dtype=np.int64)
    stage = rank // _RANKS_PER_STAGE
    slow = np.where(is_faulty & (rank == 1), SLOWDOWN, 1.0)
    work_ns = (8e7 + 1e7 * (stage % 4)) * slow * rng.lognormal(0.0, _NOISE, rows)
    elapsed_ns = (work_ns.max(initial=0.0) + 3e7) * rng.lognormal(0.0, 1e-4, rows)  # all wait for the last
    return {
        "rank": rank,
        "elapsed_ns": elapsed_ns,
        "work_ns": work_ns,
        "communication_ns": elapsed_ns - work_ns,
        "operators": np.full(rows, 96.0),
        "tokens": 4096.0 * slow * rng.lognormal(0.0, _NOISE, rows),
        "loss": 2.5 * np.where(slow > 1, WRONG, 1.0) * rng.lognormal(0.0, _NOISE, rows),
        "grad_norm": np.full(rows, (WRONG if is_faulty else 1.0) * rng.lognormal(0.0, _NOISE)),
        "local_grad_norm": np.where(slow > 1, WRONG, 1.0) * rng.lognormal(0.0, _NOISE, rows),
        "update_rms": np.full(rows, 1e-3 * (WRONG if is_faulty else 1.0) * rng.lognormal(0.0, _NOISE)),
        "stage": stage,
    }


def columns_match(frame: Frame, other: Mapping[str, Column]) -> bool:
    """Return whether two frames hold the same columns and values, NaN equal to NaN."""
    return frame.keys() == other.keys() and all(
        np.array_equal(column, other[name], equal_nan=column.dtype.kind == "f") for name, column in frame.items()
    )
