"""Verdicts that a device's report opens by itself: kind ``custom``, where the setting `event_verdicts` names it.

A device has one at a time, a ticket, to which more of its reports are added. It closes `BLAME.events_before_s` after
clocks were last held down, a link last had errors or was up again. Errors of a device do not go away by themselves:
else it closes when the job ended, restarted or is forgotten.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from irregulars.detectors.blame.reported import DEGRADED
from irregulars.detectors.blame.thresholds import BLAME
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.verdicts.counted_verdicts import CountedVerdict, CountedVerdicts
from irregulars.detectors.verdicts.revision import suspect_of
from irregulars.messages.device_events import DEVICE_EVENTS, DeviceEvent
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import GPU
from irregulars.messages.xids import class_of_xid

_PASSING: Final = DEGRADED | {"link_up"}  # reports of troubles that may be over though nobody says so
_LAYERS: Final = {
    "xid": "hardware", "ecc": "hardware", "throttle": "hardware", "pcie": "hardware", "link_down": "network",
    "link_errors": "network", "out_of_memory": "host", "node_state": "host",
}  # fmt: skip


@dataclass(slots=True, eq=False, kw_only=True)
class OpenReport(CountedVerdict):
    """The open verdict on one device; `seen` counts its reports."""

    device: Device
    layer: str
    until_ns: float = math.inf  # when it is over, unless more is reported
    said: tuple[str, ...] = ()  # kinds and classes of its reports; one that is new is worth a revision
    is_changed: bool = False


def names_of(event: DeviceEvent) -> set[str]:
    """Return the names by which the setting may mean an event.

    >>> sorted(names_of(DeviceEvent(0, 2, "xid", code=79)))
    ['xid', 'xid:79', 'xid:bus or device']
    """
    about = (event.code, class_of_xid(event.code) if event.kind == "xid" else None)
    return {event.kind, *(f"{event.kind}:{one}" for one in about if one is not None)}


def device_of(event: DeviceEvent, topology: Topology) -> Device:
    """Return the device that an event is about: a rank's GPU, its NIC, or its host as far as that is known."""
    rank, own = event.rank, Device(GPU, (event.rank,))
    if not event.device:
        return topology.host(rank) or own
    return own if re.fullmatch(r"gpu\d+", event.device) else topology.nic(rank)


class ReportedVerdicts(CountedVerdicts[OpenReport]):
    """Opens, follows and closes them. `named`: reports that open one; `opened`: those that are open."""

    def __init__(self, job: str, attempt: int, named: Collection[str], opened: Iterable[OpenReport] = ()) -> None:
        super().__init__(job, attempt, [replace(one) for one in opened])
        self._named = frozenset(named)
        self._iteration, self._now_ns = 0, 0

    @property
    def open_kinds(self) -> list[tuple[str, str]]:
        """Severity and kind of each verdict that is open."""
        return [(one.severity, "custom") for one in self._open]

    def observe(
        self, events: Sequence[DeviceEvent], topology: Topology, iteration: int, now_ns: int
    ) -> tuple[list[Verdict], tuple[str, ...]]:
        """Take in the events, oldest first, of an iteration that ended at `now_ns`; return revisions and their ids.

        A verdict opens but once in an iteration, which makes its id: it stays open beyond that.
        """
        self._iteration, self._now_ns = iteration, now_ns
        seen = [one for event in events if self._named and (one := self._see(event, topology, iteration))]
        return self._follow_up(topology), tuple(dict.fromkeys(one.verdict_id for one in seen))

    def _see(self, event: DeviceEvent, topology: Topology, iteration: int) -> OpenReport | None:
        names = names_of(event)
        is_named = not self._named.isdisjoint(names)
        if not (is_named or event.kind == "link_up"):  # most are metrics, which are many
            return None
        device = device_of(event, topology)
        one = next((known for known in self._open if known.device == device), None)
        over_ns = event.time_ns + BLAME.events_before_s * 1e9
        if one is not None and event.kind == "link_up" and one.layer == "network":
            one.until_ns = over_ns
        if not is_named or (one is None and len(self._open) >= IRREGULAR.most_ranks):
            return None
        layer = "software" if "xid:application" in names else _LAYERS.get(event.kind, "unknown")
        if one is None:
            name = f"{self.job}:{self.attempt}:{iteration}:{DEVICE_EVENTS}.{device.kind}{device.ranks[0]}"
            one = OpenReport(name, iteration, iteration, 0, severity="ticket", device=device, layer=layer, until_ns=0)
            self._open.append(one)
        # What a device reports says more of the cause than errors of its program, or of its link.
        one.layer = layer if one.layer == "software" or layer == "hardware" else one.layer
        one.last, one.time_ns, one.seen = iteration, event.time_ns, one.seen + 1
        one.until_ns = max(one.until_ns, over_ns) if event.kind in _PASSING else math.inf
        # Without its code: of counters it is another one each time.
        said = tuple(sorted({*one.said, *names} - {f"{event.kind}:{event.code}"}))
        one.said, one.is_changed = said, one.is_changed or said != one.said
        return one

    def _is_over(self, one: OpenReport) -> bool:
        return one.until_ns < self._now_ns and one.last < self._iteration

    def _event_of(self, one: OpenReport, topology: Topology) -> str | None:
        if not one.revision or one.is_changed:
            return "changed" if one.revision else "opened"
        return "continued" if one.seen >= JOB.twice * one.said_seen else None

    def _revise(self, one: OpenReport, event: str, topology: Topology, close_reason: str | None = None) -> Verdict:
        one.is_changed = False
        return self._revision(
            one, event, topology, close_reason,
            kind="custom", delta=math.nan, lost_s=0.0, suspects=(suspect_of(one.device, JOB.most, topology),),
            evidence="a report of this kind opens a verdict by the setting event_verdicts", time_ns=one.time_ns,
            detector=DEVICE_EVENTS, layer=one.layer,
        )  # fmt: skip

    def state(self) -> tuple[OpenReport, ...]:
        """Everything that a new object needs to go on."""
        return tuple(replace(one) for one in self._open)
