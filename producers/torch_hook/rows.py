"""Rows of the ring as columns of ``commops``, with the time at which each operator began to execute, and its peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from irregulars.messages.records import RECV, SEND, UNKNOWN
from irregulars.producers.torch_hook.hooks.groups import Group
from irregulars.producers.torch_hook.hooks.ring import OPEN, ROW, UNSEEN

_HISTORY: Final = 64  # ended operators of a queue that are kept: far more than run at once
_NEVER_NS: Final = int(np.iinfo(np.int64).max)


def execution_starts(issued_ns: np.ndarray, ended_ns: np.ndarray, lanes: int) -> np.ndarray:
    """Return the times at which operators began that wait in one queue for one of `lanes` threads or streams.

    The queue is first in, first out: an operator begins when all but ``lanes - 1`` of those before it have ended,
    that is, at the `lanes`-largest of their ends, and never before it was issued.

    Parameters
    ----------
    issued_ns, ended_ns
        In the order of issue, int64 ns; an operator that has not ended ends at the largest int64.
    lanes
        At least 1.

    Returns
    -------
    int64 ns; the time of issue where the queue gives a time after the operator's end (another thread overtook).

    >>> execution_starts(np.array([0, 1, 2, 3]), np.array([10, 20, 30, 40]), lanes=2)
    array([ 0,  1, 10, 20])
    """
    ends, nth_largest = ended_ns, np.empty(0)
    for _ in range(lanes):
        largest = np.maximum.accumulate(ends)
        nth_largest = np.concatenate([[-_NEVER_NS], largest[:-1]])
        ends = np.minimum(ends, nth_largest)  # the end that each new largest replaces counts for the next largest
    starts = np.maximum(issued_ns, nth_largest)
    return np.where(starts <= ended_ns, starts, issued_ns)


class RowReader:
    """Turns rows taken from a ring into columns; remembers the last operators of each queue."""

    def __init__(self) -> None:
        self._history: dict[tuple[int, bool], np.ndarray] = {}

    def columns(
        self, taken: np.ndarray, still_open: np.ndarray, groups: Sequence[Group], offset_ns: int
    ) -> dict[str, np.ndarray]:
        """Return the columns of ``commops``, in the order of ends, without operators whose end went unseen.

        `taken`, `still_open`: rows of the ring, dtype `ROW`. `groups`: all groups; a row's ``group`` is an index into
        them. `offset_ns`: added to the monotonic clock it gives ns since the epoch.
        """
        rows = taken[taken["ended"] != UNSEEN]
        starts = self._starts(rows, still_open, groups)
        order = np.argsort(rows["ended"], kind="stable")
        return _columns(rows[order], starts[order], rows["ended"][order], groups, offset_ns)

    def open_columns(self, still_open: np.ndarray, groups: Sequence[Group], offset_ns: int) -> dict[str, np.ndarray]:
        """Return the columns of operators that have not ended."""
        return _columns(still_open, still_open["issued"], None, groups, offset_ns)

    def _starts(self, rows: np.ndarray, still_open: np.ndarray, groups: Sequence[Group]) -> np.ndarray:
        starts = np.maximum(rows["issued"], rows["started"])
        is_queued = (rows["op"] != SEND) & (rows["op"] != RECV)  # those run at once, or on a stream of their own
        on_device = rows["started"] != 0
        for number in np.unique(rows["group"]).tolist():
            for is_device in (False, True):
                mine = is_queued & (rows["group"] == number) & (on_device == is_device)
                if mine.any():
                    waiting = still_open[(still_open["group"] == number) & (still_open["op"] < SEND)]
                    lanes = 1 if is_device else groups[number].lanes
                    starts[mine] = self._queued(rows[mine], waiting, (number, is_device), lanes)
        return starts

    def _queued(self, rows: np.ndarray, waiting: np.ndarray, queue: tuple[int, bool], lanes: int) -> np.ndarray:
        before = self._history.get(queue, np.empty(0, dtype=ROW))
        every = np.concatenate([before, rows, waiting])
        order = np.argsort(every["id"], kind="stable")
        every = every[order]
        ended = np.where(every["ended"] == OPEN, _NEVER_NS, every["ended"])
        starts = execution_starts(np.maximum(every["issued"], every["started"]), ended, lanes)
        self._history[queue] = every[every["ended"] != OPEN][-_HISTORY:]
        # Back to the order of `rows`: if `order` is [2, 0, 1], then row 0 stands at 1, row 1 at 2 and row 2 at 0.
        at = np.empty(len(order), dtype=np.int64)
        at[order] = np.arange(len(order))
        return starts[at[len(before) : len(before) + len(rows)]]


def _columns(
    rows: np.ndarray, starts: np.ndarray, ended: np.ndarray | None, groups: Sequence[Group], offset_ns: int
) -> dict[str, np.ndarray]:
    peers = np.full(len(rows), UNKNOWN)  # of collectives, and of recvs from any rank
    for number in np.unique(rows["group"][rows["peer"] >= 0]).tolist():
        mine = (rows["group"] == number) & (rows["peer"] >= 0)
        peers[mine] = np.array(groups[number].communicator.ranks)[rows["peer"][mine]]
    return {
        "communicator": rows["group"].astype(np.uint16),
        "operator": rows["op"].astype(np.uint8),
        "sequence": rows["sequence"].astype(np.int64),
        "peer": peers,
        "start_ns": starts + offset_ns,
        "elapsed_ns": np.full(len(rows), np.nan) if ended is None else (ended - starts).astype(np.float64),
        "size_bytes": rows["size"].astype(np.float64),
        "iteration": rows["iteration"].astype(np.int64),
    }
