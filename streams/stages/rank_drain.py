"""Takes from monitors of ranks what they have closed, and reduces it to evidence: of each job together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from irregulars.messages.evidence import Evidence, Membership
from irregulars.streams.health.monitor_faults import MonitorFaults, is_broken
from irregulars.streams.health.watchdog import WorkGivenUp
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.stages.rank_work import PartitionWork, TrackedRanks

T = TypeVar("T")
_GIVE_WAY: Final = 32

Rows = Sequence[Evidence | Membership]
_Closed = tuple[TrackedRanks, list[Closing | Membership]]


class Guarded(Protocol):
    """How a monitor's work is done."""

    def __call__(self, tracked: TrackedRanks, work: Callable[[], T], /) -> T:
        """Do it; raises `WorkGivenUp`."""


class RankDrain:
    """Drains monitors, and bears one that raises.

    Parameters
    ----------
    hop
        Name under which faults are told.
    faults
        Who keeps count of monitors that raise.
    guarded
        Does a monitor's work in bounds; raises `WorkGivenUp`.
    gave_up
        Lets a monitor begin anew of which that was raised.
    """

    def __init__(
        self,
        hop: str,
        faults: MonitorFaults,
        guarded: Guarded,
        gave_up: Callable[[TrackedRanks, WorkGivenUp], object],
    ) -> None:
        self._hop: Final = hop
        self._faults: Final = faults
        self._guarded: Final = guarded
        self._gave_up: Final = gave_up

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
                own = self._guarded(tracked, tracked.monitor.take_closed)
            except WorkGivenUp as why:
                self._gave_up(tracked, why)
                continue
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
            pieces = [piece for _, own in closed for piece in own]
            rows = self._guarded(closed[0][0], partial(reduce_closings, job, pieces))
        except Exception as error:  # as above
            if len(closed) > 1:
                return [row for one in closed for row in self._reduce(job, [one])]
            if isinstance(error, WorkGivenUp):
                self._gave_up(closed[0][0], error)
            else:
                self._faults.failed(self._hop, closed[0][0], error)
            return []
        for tracked, _ in closed:
            self._faults.works(tracked)
        return rows


def _parts(touched: list[TrackedRanks], size: int) -> Iterator[list[TrackedRanks]]:
    for first in range(0, len(touched), size):
        yield touched[first : first + size]
