"""When a single iteration accuses: a spike that is clear, and that was not the beginning of something that lasts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from irregulars.detectors.blame.causes import Cause, find_causes, is_sure, slow_transfers
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.blame.what_if import WhatIf, recovered_ratio
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.critical_path import Attribution

SPIKE_SIGMAS: Final = 8.0
SPIKE_TRANSFERS: Final = 3.0
SPIKE_SHARE: Final = 0.5
SPIKE_WAIT: Final = 5
SPIKE_COST: Final = 0.1
SPIKE_COST_OF_ONE: Final = 0.2
"""A single iteration accuses where it is clear: it stands `SPIKE_SIGMAS` out of the noise, and so does the accused
rank by its own work; one cause explains `SPIKE_SHARE` of all that took longer; and `SPIKE_TRANSFERS` transfers at
least were slow: one that hangs for a moment is no device's fault. It cost `SPIKE_COST` of an iteration, of a single
rank `SPIKE_COST_OF_ONE`: healthy ranks pause for up to 18 % of one (garbage collection, data loaders). Of a rank
that lost rows it may be the loss that shows. It is decided `SPIKE_WAIT` iterations later, when it is known that it
was one. Rank 0 has chores: being late once accuses it of nothing."""


class SpikeWatch:
    """Irregular iterations in which no verdict's cause was seen, until it is decided what they were."""

    def __init__(self) -> None:
        self._waiting: deque[Observation] = deque()

    def add(self, spike: Observation, topology: Topology, what_if: WhatIf | None = None) -> None:
        """Take in an irregular iteration that no verdict explains, and what comes back without its cause."""
        cause = None if what_if is None else clear_cause(spike, topology)
        ratio = None if cause is None else recovered_ratio(cause, [cause], spike, what_if)
        self._waiting.append(replace(spike, recovers_ratio=ratio))

    def take_due(self, newest: int | None) -> Iterator[Observation]:
        """Take out those that can be decided when iteration `newest` has been judged; None: all, none follows."""
        while self._waiting and (newest is None or self._waiting[0].iteration <= newest - SPIKE_WAIT):
            yield self._waiting.popleft()

    def showing(self, cause: Cause) -> list[Observation]:
        """Those in which a cause was seen, of those that are not due yet."""
        return [one for one in self._waiting if one.shows(cause)]

    def forget(self, cause: Cause) -> None:
        """Leave out those in which a cause was seen that a verdict now says: it came and went, and was no spike."""
        self._waiting = deque(one for one in self._waiting if not one.shows(cause))

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values."""
        return {"waiting": [one.state() for one in self._waiting]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SpikeWatch:
        """Restore."""
        watch = cls()
        watch._waiting.extend(Observation.from_state(one) for one in state["waiting"])
        return watch


def clear_cause(spike: Observation, topology: Topology) -> Cause | None:
    """Return what made a single iteration long, if it is clear enough to be said; see `SPIKE_SIGMAS`."""
    attribution = spike.attribution
    if attribution is None or spike.excess_ns <= 0:
        return None  # it cost nothing: the window still holds a warm-up, or a slower load
    causes = find_causes([attribution], topology)
    if any(_is_chore(cause) for cause in causes[:1]):
        return None  # nor of what is late besides: it made the iteration stand out
    standing_out = [cause for cause in causes if _stands_out(cause, spike) and _costs_enough(cause, spike)]
    return next((cause for cause in standing_out if _is_clear(cause, spike, attribution, topology)), None)


def _stands_out(cause: Cause, spike: Observation) -> bool:
    """Whether the iteration stands out of its noise, and the accused rank out of how late the latest ranks are."""
    return spike.sigmas >= SPIKE_SIGMAS and (cause.kind != "slow_rank" or spike.is_late_once(cause))


def _costs_enough(cause: Cause, spike: Observation) -> bool:
    is_one = bool(cause.suspects) and cause.suspects[0][0].kind == "gpu"
    return spike.excess_ns >= (SPIKE_COST_OF_ONE if is_one else SPIKE_COST) * spike.reference_ns


def _is_chore(cause: Cause) -> bool:
    """Whether it is rank 0's own work: in most frameworks that rank saves, evaluates and logs for all."""
    return cause.kind == "slow_rank" and cause.suspects[0][0].ranks == (0,)


def _may_be_loss(device: Device, attribution: Attribution) -> bool:
    """Whether lost rows may be all that shows: of a host or a stage, if no majority of its ranks logged all."""
    lost = len(attribution.incomplete.intersection(device.ranks))
    return 2 * lost >= len(device.ranks) if device.kind in ("host", "stage") else lost > 0


def _is_clear(cause: Cause, spike: Observation, attribution: Attribution, topology: Topology) -> bool:
    if not is_sure(cause) or _is_chore(cause) or any(_may_be_loss(d, attribution) for d, _ in cause.suspects[:1]):
        return False
    others = {lane: ns for lane, ns in attribution.path_excess_ns.items() if ns > 0 and lane not in cause.lanes}
    stray_ns = sum(
        ns for lane, ns in others.items() if lane in attribution.lanes and attribution.lanes[lane].is_stray
    )
    own_ns = cause.explained_ns[spike.iteration]
    longer_ns = max(own_ns, spike.excess_ns - stray_ns)  # what hung besides is another matter
    return own_ns >= SPIKE_SHARE * longer_ns and slow_transfers(cause, attribution, topology) >= SPIKE_TRANSFERS
