"""Rows that no honest producer sends: a monitor leaves them out and counts them, as the reader of traces does.

A message that can be decoded may still hold a clock that was never set, or a length below zero. Such a row must
neither stop a worker nor, by overflowing, spoil the rows beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from irregulars.dtypes import Column, Flags
from irregulars.streams.messages.records import (
    FASTEST_BYTES_PER_S,
    LAST_ITERATION,
    LATEST_NS,
    LONGEST_NS,
    SEND,
    UNKNOWN,
)

MAX_PEER: Final = 1 << 28
"""Ranks must be below this: keys that hold a rank beside other columns have 28 bits for it."""


def usable_operators(columns: Mapping[str, Column]) -> Flags | None:
    """Say which rows of ``commops`` can be used; None: all of them can."""
    start_ns, elapsed_ns, peer = columns["start_ns"], columns["elapsed_ns"], columns["peer"]
    is_p2p = columns["operator"] >= SEND  # and recv, the last of the operators
    is_bad = (start_ns < 0) & (start_ns != UNKNOWN) | (start_ns > LATEST_NS)
    is_bad |= np.abs(columns["iteration"]) > LAST_ITERATION  # the absolute value of UNKNOWN is itself: negative
    is_bad |= (elapsed_ns < 0) | (elapsed_ns > LONGEST_NS)  # both False for NaN
    is_bad |= is_p2p & (peer < 0) | (peer >= MAX_PEER) | (peer < 0) & (peer != UNKNOWN)
    return ~is_bad if is_bad.any() else None


def usable_samples(columns: Mapping[str, Column]) -> Flags | None:
    """Say which rows of ``bandwidth`` can be used; None: all of them can."""
    time_ns, rates = columns["time_ns"], (columns["tx_bytes_per_s"], columns["rx_bytes_per_s"])
    is_bad = (time_ns < 0) | (time_ns > LATEST_NS)  # unknown times as well: nothing could be made of such a row
    for rate in rates:
        is_bad |= (rate < 0) | (rate > FASTEST_BYTES_PER_S)  # both False for NaN
    return ~is_bad if is_bad.any() else None


def usable_iterations(columns: Mapping[str, Column]) -> Flags | None:
    """Say which rows of ``iterations`` can be used; None: all of them can."""
    number, start_ns, elapsed_ns = columns["iteration"], columns["start_ns"], columns["elapsed_ns"]
    is_bad = (number < -LAST_ITERATION) | (number > LAST_ITERATION) | (start_ns < 0) | (start_ns > LATEST_NS)
    is_bad |= ~((elapsed_ns >= 0) & (elapsed_ns <= LONGEST_NS))  # NaN as well
    return ~is_bad if is_bad.any() else None
