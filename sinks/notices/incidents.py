"""Incidents: the newest alert of each verdict, in any order of alerts; and the names of devices over all jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from irregulars.messages.judgements import urgency_of
from irregulars.messages.kinds import device_kind

# Verdicts on the same device within this time make a repeat offender. A week holds two working days after each
# weekend, and a device that is still in use after three incidents in a week was not repaired.
REPEAT_NS: Final = 7 * 86_400 * 10**9

REPEATS: Final = 3  # verdicts on a device within `REPEAT_NS` from which on a notice calls it a repeat offender


@dataclass(frozen=True, slots=True)
class Incident:
    """One verdict, as far as its alerts have come."""

    alert: Mapping[str, Any]  # its newest revision
    first_ns: int  # when its first alert came, ns since the epoch (Kafka's time of the message)
    paged_ns: int | None  # when the first came that is a page; None: none did
    # partition, offset: of the newest revision
    partition: int = 0
    offset: int = 0

    @property
    def verdict_id(self) -> str:
        """Which verdict."""
        return str(self.alert["verdict_id"])

    @property
    def revision(self) -> int:
        """Newest revision."""
        return int(self.alert["revision"])

    @property
    def is_open(self) -> bool:
        """Whether its verdict is open; a newer worker's own state counts as that."""
        return self.alert["state"] != "closed"


class Incidents:
    """All incidents that are known, by verdict id."""

    def __init__(self) -> None:
        self._known: Final[dict[str, Incident]] = {}
        self._of_device: Final[dict[str, set[str]]] = {}

    def __iter__(self) -> Iterator[Incident]:
        # A copy: `Ledger.forget_old` drops incidents while it goes over them.
        return iter(tuple(self._known.values()))

    def get(self, verdict_id: str) -> Incident | None:
        """Return an incident; None where no alert of it came."""
        return self._known.get(verdict_id)

    def apply(self, alert: Mapping[str, Any], came_ns: int, partition: int = 0, offset: int = 0) -> Incident:
        """Apply an alert: the same again, or an older revision, changes the times alone.

        `alert`: Message of the topic ``alerts``, decoded; `came_ns`: when it came, ns since the epoch.
        """
        paged_ns = came_ns if urgency_of(alert.get("severity")) == "page" else None
        kept = Incident(alert, came_ns, paged_ns, partition, offset)
        known = self._known.get(kept.verdict_id)
        if known is not None:
            paged = [one for one in (known.paged_ns, paged_ns) if one is not None]
            newest = kept if kept.revision > known.revision else known
            kept = replace(newest, first_ns=min(known.first_ns, came_ns), paged_ns=min(paged, default=None))
        self._known[kept.verdict_id] = kept
        if known is None or known.alert is not kept.alert:  # a newer revision may accuse another device
            if known is not None:
                self._of_device.get(device_of(known.alert) or "", set()).discard(kept.verdict_id)
            device = device_of(kept.alert)
            if device is not None:
                self._of_device.setdefault(device, set()).add(kept.verdict_id)
        return kept

    def earlier(self, incident: Incident) -> tuple[str, ...]:
        """Return ids of the verdicts on its device in the week before it, oldest first."""
        device = device_of(incident.alert)
        ids = self._of_device.get(device, set()) - {incident.verdict_id} if device is not None else set()
        others = sorted((self._known[one].first_ns, one) for one in ids)
        begin_ns = incident.first_ns - REPEAT_NS
        return tuple(one for came_ns, one in others if begin_ns <= came_ns <= incident.first_ns)

    def forget(self, verdict_id: str) -> None:
        """Drop an incident that is over."""
        known = self._known.pop(verdict_id)
        self._of_device.get(device_of(known.alert) or "", set()).discard(verdict_id)


def device_of(alert: Mapping[str, Any]) -> str | None:
    """Name the device of the first suspect, the same in each job; None where the alert does not identify it.

    Mutes are matched by this name, and repeat offenders found. `alert`: a message of the topic ``alerts``, decoded.

    >>> device_of({"job": "j", "suspects": [{"device": "nic", "rank": 1, "host": "node-3", "nic": "mlx5_1"}]})
    'nic:node-3/mlx5_1'
    >>> device_of({"job": "j", "suspects": [{"device": "gpu", "rank": 1, "host": None, "gpu": 2}]}) is None
    True
    """
    suspects = alert.get("suspects") or ()
    if not suspects:
        return None
    device, kind = suspects[0]["device"], device_kind(suspects[0]["device"])
    if kind.is_way:  # a link is known inside of its job alone
        return f"{device}:{alert.get('job')}/{suspects[0]['rank']}>{suspects[0].get('peer')}"
    names = [suspects[0].get(one) for one in kind.identity]
    return None if not names or None in names else f"{device}:{'/'.join(map(str, names))}"


def host_of(alert: Mapping[str, Any]) -> str | None:
    """Return the host of the first suspect; None: not known."""
    suspects = alert.get("suspects") or ()
    host = suspects[0].get("host") if suspects else None
    return None if host is None else str(host)
