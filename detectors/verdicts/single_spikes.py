"""When a single iteration accuses: a spike that is clear, and that was not the beginning of something that lasts.

It is clear where it stands out of the noise, cost enough, and one cause explains most of its excess; transfers
must have been slow more than once. Of a rank that lost rows it may be the loss that shows, and rank 0 has chores:
being late once accuses it of nothing. It is decided some iterations later, when it is known that nothing followed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from irregulars.detectors.blame.causes import Cause, find_causes, is_sure, slow_transfers
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.blame.what_if import WhatIf, recovered_ratio
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.critical_path import Attribution
from irregulars.messages.kinds import GPU


class SpikeWatch:
    """Irregular iterations in which no verdict's cause was seen, until it is known that nothing followed."""

    def __init__(self, waiting: Iterable[Observation] = ()) -> None:
        self._waiting: deque[Observation] = deque(waiting)

    def add(self, spike: Observation, topology: Topology, what_if: WhatIf | None = None) -> None:
        """Take in an irregular iteration that no verdict explains; `what_if` runs it again without its cause."""
        cause = None if what_if is None else clear_cause(spike, topology)
        ratio = None if cause is None else recovered_ratio(cause, [cause], spike, what_if)
        self._waiting.append(replace(spike, recovers_ratio=ratio))

    def take_due(self, recent: Sequence[Observation] | None, topology: Topology) -> Iterator[Observation]:
        """Take out those that can be decided when these newest iterations were judged; None: all, none follows.

        That is while they are of the recent ones, in which a cause that lasts is seen again. One after which the job
        stayed slower, by less than is looked into, waits for the reviews that find such a fault.
        """
        waiting, self._waiting = self._waiting, deque()
        for spike in waiting:
            age = math.inf if recent is None else recent[-1].ordinal - spike.ordinal
            is_due = age >= IRREGULAR.recent - 1
            if is_due and recent is not None and age < 2 * IRREGULAR.memory and _stays_slower(spike, recent):
                # One that is not clear opens nothing later either. Asked once, as it is a search for causes.
                is_due = age < IRREGULAR.recent and clear_cause(spike, topology) is None
            if not is_due:
                self._waiting.append(spike)
            else:
                yield spike

    def forget(self, cause: Cause, since: int = -1) -> None:
        """Drop those that show a cause for which a verdict has opened: it came and went, and was no spike.

        `since`: the verdict's first iteration.
        """
        self._waiting = deque(one for one in self._waiting if one.iteration < since or not one.shows(cause))

    def state(self) -> tuple[Observation, ...]:
        """Everything that the constructor needs."""
        return tuple(self._waiting)


def clear_cause(spike: Observation, topology: Topology) -> Cause | None:
    """Return the cause that made a single iteration long, if it is clear enough to be published; else None."""
    attribution = spike.attribution
    if attribution is None or spike.excess_ns <= 0:
        return None  # it cost nothing: the window still holds a warm-up, or a slower load
    causes = find_causes([attribution], topology)
    if any(_is_chore(cause) for cause in causes[:1]):
        return None  # nor is anybody else accused: the chore made the iteration stand out
    if not spike.sigmas >= 2 * JOB.sigmas:  # NaN too: the noise is not known
        return None
    for cause in causes:
        is_one = bool(cause.suspects) and cause.suspects[0][0].kind == GPU
        least_ns = (JOB.most if is_one else JOB.alike) * spike.reference_ns
        own_ns = cause.explained_ns[spike.iteration]
        longer_ns = spike.excess_ns - _stray_ns(cause, attribution)  # transfers that hung besides are another matter
        has_most = 2 * own_ns >= longer_ns
        if spike.excess_ns < least_ns or not has_most or _is_chore(cause) or not is_sure(cause):
            continue
        if any(_may_be_loss(device, attribution) for device, _ in cause.suspects[:1]):
            continue
        if slow_transfers(cause, attribution, topology) >= JOB.repeated:
            return cause
    return None


def _stays_slower(spike: Observation, recent: Sequence[Observation]) -> bool:
    """Whether each of the newest iterations stands as clearly out of the noise before a spike as a spike must."""
    # Most steps of times in whole ms are 0: that is no noise of 0.
    noise_ns = max(spike.excess_ns / max(spike.sigmas, 1.0), spike.spread_ns)
    least_ns = 2 * JOB.sigmas * noise_ns
    return all(one.elapsed_ns - spike.reference_ns >= least_ns for one in recent if one.ordinal > spike.ordinal)


def _is_chore(cause: Cause) -> bool:
    """Whether it is rank 0's own work: in most frameworks that rank saves, evaluates and logs for all."""
    return cause.kind == "slow_rank" and cause.suspects[0][0].ranks == (0,)


def _may_be_loss(device: Device, attribution: Attribution) -> bool:
    """Whether lost rows may be all that shows: of a host or a stage, if no majority of its ranks logged all."""
    lost, is_shared = len(attribution.incomplete.intersection(device.ranks)), device.kind != GPU
    return 2 * lost >= len(device.ranks) if device.traits.is_worker and is_shared else lost > 0


def _stray_ns(cause: Cause, attribution: Attribution) -> float:
    """Return the loss of the path to single transfers that hung in other lanes, ns."""
    known = attribution.lanes
    return sum(
        ns for lane, ns in attribution.path_excess_ns.items()
        if ns > 0 and lane not in cause.lanes and lane in known and known[lane].is_stray
    )  # fmt: skip
