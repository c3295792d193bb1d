"""Takes from monitors of ranks what they have closed, and reduces it to evidence: of each job together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from irregulars.streams.health.monitor_faults import MonitorFaults, is_broken
from irregulars.streams.messages.evidence import Evidence, Membership
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.stages.rank_work import PartitionWork, TrackedRanks

_GIVE_WAY: Final = 32

Rows = Sequence[Evidence | Membership]
_Closed = tuple[TrackedRanks, list[Closing | Membership]]


class RankDrain:
    """Drains monitors, and bears one that raises.

    Parameters
    ----------
    hop
        Name under which faults are told.
    faults
        Who keeps count of monitors that raise.
    """

    def __init__(self, hop: str, faults: MonitorFaults) -> None:
        self._hop: Final = hop
        self._faults: Final = faults

    async def drain(self, works: Sequence[PartitionWork]) -> dict[str, list[Evidence | Membership]]:
        """Drain the monitors that have something new: not after each message, since a drain has its price."""
        touched = [tracked for work in works for tracked in work.touched.values()]
        for work in works:
            work.touched, work.messages, work.rows = {}, 0, 0
        rows: dict[str, list[Evidence | Membership]] = {}
        for some in _parts(touched, _GIVE_WAY):
            for job, own in self._take_closed(some).items():
                rows.setdefault(job, []).extend(self._reduce(job, own))
            await asyncio.sleep(0)  # thousands of monitors must not hold up the event loop
        return rows

    def _take_closed(self, some: Sequence[TrackedRanks]) -> dict[str, list[_Closed]]:
        """Take what monitors have closed, by job."""
        closed: dict[str, list[_Closed]] = {}
        for tracked in some:
            if is_broken(tracked):
                continue
            try:
                own = tracked.monitor.take_closed()
            except Exception as error:  # whatever a monitor raises, it must not take the worker with it
                self._faults.failed(self._hop, tracked, error)
                continue
            if own:
                closed.setdefault(tracked.monitor.job, []).append((tracked, own))
                tracked.is_dirty = True
        return closed

    def _reduce(self, job: str, closed: Sequence[_Closed]) -> Rows:
        """Reduce what the ranks of a job have closed; where that raises, each rank by itself, to find whose it is."""
        try:
            rows = reduce_closings(job, [piece for _, own in closed for piece in own])
        except Exception as error:  # as above
            if len(closed) > 1:
                return [row for one in closed for row in self._reduce(job, [one])]
            self._faults.failed(self._hop, closed[0][0], error)
            return []
        for tracked, _ in closed:
            self._faults.works(tracked)
        return rows


def _parts(touched: list[TrackedRanks], size: int) -> Iterator[list[TrackedRanks]]:
    for first in range(0, len(touched), size):
        yield touched[first : first + size]
