"""The bounds of all numbers that travel as columns, to which workers, importers and the reader of traces hold rows.

A message that can be decoded may still hold a clock that was never set, or a size below zero. Such a row must neither
stop a worker nor, by overflowing, spoil the rows beside it: it is left out and counted as lost, by a worker as by
`analyze`. Evidence is our own, and is refused as a whole.

Numbers in JSON have their bounds in the annotations of their types (`irregulars.validation`), codes in the
tuples of `messages.records`. `NUMERICS` have none but their count: training that diverges reaches infinity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from irregulars.dtypes import Column, Flags
from irregulars.messages.records import BATCH_SCHEMAS, PAUSES, SEND, UNKNOWN
from irregulars.validation import LARGEST, MAX_RANK, MAX_ROWS

LATEST_NS: Final = 1 << 62  # the latest time, ns since the epoch, that a row may have: later ones would overflow
MOST_EXACT: Final = (1 << 53) - 1
"""The largest of the integers that become float64: no other integer becomes the same float. As ns it is 104 days."""

LAST_ITERATION: Final = 1 << 61
"""Iterations are numbered from minus this to this. There is room above it, since an unfinished iteration gets the
number after the last one."""


class Bound(NamedTuple):
    """The least and the largest value that a column may hold."""

    least: float
    most: float

    def holds(self, value: float) -> bool:
        """Return whether a value is within; NaN is not."""
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return "from {} to {}".format(*(f"{one:g}" if isinstance(one, float) else one for one in self))


_TIME: Final = Bound(0, LATEST_NS)
_COUNT: Final = Bound(0, MOST_EXACT)
_ROWS: Final = Bound(0, MAX_ROWS)
_NUMBER: Final = Bound(-LAST_ITERATION, LAST_ITERATION)
_RATE: Final = Bound(0.0, 1e15)  # bytes per second: a thousand times the fastest link of a GPU
_FINITE: Final = Bound(-3.4e38, 3.4e38)  # as float32
_SUM: Final = Bound(0.0, 1e34)  # of MAX_ROWS of the longest times
MOMENT: Final = Bound(0, LATEST_NS + MOST_EXACT)  # the end of what began as late as it may
_SUMMED_RATE: Final = Bound(0.0, 2e15)  # rounded to a few binary digits

BOUNDS: Final[Mapping[str, Mapping[str, Bound]]] = {
    "commops": {
        "sequence": Bound(0, (1 << 32) - 1),
        "peer": Bound(0, MAX_RANK),
        "start_ns": _TIME,
        "elapsed_ns": _COUNT,
        "size_bytes": _COUNT,
        "iteration": _NUMBER,
    },
    "bandwidth": {"time_ns": _TIME, "tx_bytes_per_s": _RATE, "rx_bytes_per_s": _RATE},
    "iterations": {
        "iteration": _NUMBER,
        "start_ns": _TIME,
        "elapsed_ns": _COUNT,
        "tokens": _COUNT,
        "not_finite": _COUNT,
        "audit_of_rank": Bound(0, MAX_RANK),
        "pause_cause": Bound(0, len(PAUSES) - 1),
        "pause_start_ns": _TIME,
        "pause_elapsed_ns": _COUNT,
    },
    "gpu_health": {
        "time_ns": _TIME,
        "sm_clock_mhz": Bound(0.0, 1e6),
        "memory_clock_mhz": Bound(0.0, 1e6),
        "power_w": Bound(0.0, 1e6),
        "temperature_c": Bound(-273.0, 1e4),
        "sm_active_ratio": Bound(0.0, 1.001),  # a mean may be above 1 by rounding
        "throttle_reasons": Bound(0, LARGEST),
        "ecc_corrected": _COUNT,
        "ecc_uncorrected": _COUNT,
        "xid": Bound(0, (1 << 31) - 1),
    },
    "events": {"time_ns": _TIME, "code": Bound(-LARGEST, LARGEST)},
    "evidence": {
        "attempt": Bound(-LARGEST, LARGEST),  # below 0: the numbers that stand for starts
        "rank": Bound(0, MAX_RANK),
        "iteration": Bound(-LARGEST, LARGEST),
        "start_ns": MOMENT,
        "elapsed_ns": MOMENT,
        "entry_ns": MOMENT,
        "last_end_ns": MOMENT,
        "work_ns": _SUM,
        "communication_ns": _SUM,
        "operators": _ROWS,
        "unended": _ROWS,
        "late_rows": _ROWS,
        "lost_rows": _ROWS,
        "tokens": _COUNT,
        "score": _FINITE,
        "nic_tx_peak": _RATE,
        "nic_rx_peak": _RATE,
        "partition": Bound(0, MAX_RANK),
        "offsets": Bound(0, LARGEST),
        "class_peer": Bound(-1, MAX_RANK),
        "class_count": _ROWS,
        "class_shortest_ns": Bound(0.0, float(MOST_EXACT)),
        "share of a pattern": Bound(0.0, 3.4e38),
        "tx_mean of a pattern": _SUMMED_RATE,
        "tx_deviation of a pattern": _SUMMED_RATE,
        "rx_mean of a pattern": _SUMMED_RATE,
        "rx_deviation of a pattern": _SUMMED_RATE,
    },
}
"""By schema and column. Values that are not known have none: whether a column may hold those, its schema says."""


def usable_rows(schema: str, columns: Mapping[str, Column]) -> Flags | None:
    """Return which rows of a batch an honest producer may send; None: all of them."""
    bad: list[Flags] = []
    for name, bound, may_lack in _CHECKED[schema]:
        column = known_peers(columns) if name == "peer" else columns[name]
        # An empty column is within: `initial` is its least and its most.
        least, most = column.min(initial=bound.most), column.max(initial=bound.least)
        if bound.least <= least and most <= bound.most:  # both False for NaN
            continue
        is_good = (column >= bound.least) & (column <= bound.most)
        if may_lack:
            is_good |= np.isnan(column) if column.dtype.kind == "f" else column == UNKNOWN
        bad.append(~is_good)
    if schema == "commops":
        # The schema lets `peer` be null, for collectives; a send or recv has one.
        bad.append((columns["operator"] >= SEND) & (columns["peer"] == UNKNOWN))
    bad = [one for one in bad if one.any()]
    return ~np.logical_or.reduce(bad) if bad else None


def known_peers(columns: Mapping[str, Column]) -> Column:
    """Return the peer of each send and recv; that of a collective means nothing, and is `UNKNOWN`."""
    return np.where(columns["operator"] >= SEND, columns["peer"], UNKNOWN)


_CHECKED: Final = {
    schema: [
        (name, bound, BATCH_SCHEMAS[schema].field(name).nullable)
        for name, bound in BOUNDS[schema].items()
        if name != "sequence"  # its type on the wire has the same bounds
    ]
    for schema in BATCH_SCHEMAS
}
