"""Incidents: the newest alert of each verdict, whatever the order in which alerts come, and how often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from irregulars.messages.judgements import urgency_of
from irregulars.sinks.notices.devices import device_of

REPEAT_NS: Final = 7 * 86_400 * 10**9
"""Verdicts on the same device within this time make a repeat offender. A week holds two working days after each
weekend, and a device that is still in use after three incidents in a week was not repaired."""

REPEATS: Final = 3
"""The n-th verdict on a device within `REPEAT_NS` from which on it is told as a repeat."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One verdict, as far as it has been heard of.

    Parameters
    ----------
    alert
        Its newest revision.
    first_ns
        When its first alert came, ns since the epoch (Kafka's time of the message).
    paged_ns
        When the first came that is a page; None: none did.
    partition, offset
        Where the newest revision stands.
    """

    alert: Mapping[str, Any]
    first_ns: int
    paged_ns: int | None
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
        return iter(tuple(self._known.values()))

    def __len__(self) -> int:
        return len(self._known)

    def get(self, verdict_id: str) -> Incident | None:
        """Return an incident; None where no alert of it came."""
        return self._known.get(verdict_id)

    def take(self, alert: Mapping[str, Any], came_ns: int, partition: int = 0, offset: int = 0) -> Incident:
        """Take an alert in: the same again, or an older one than came before, changes no more than the times.

        Parameters
        ----------
        alert
            Message of the topic ``alerts``, decoded.
        came_ns
            When it came, ns since the epoch.
        """
        paged_ns = came_ns if urgency_of(alert.get("severity")) == "page" else None
        new = Incident(alert, came_ns, paged_ns, partition, offset)
        known = self._known.get(new.verdict_id)
        kept = new if known is None else _joined(known, new)
        self._known[new.verdict_id] = kept
        if known is None or known.alert is not kept.alert:
            self._place(kept, known)
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

    def _place(self, kept: Incident, known: Incident | None) -> None:
        before = None if known is None else device_of(known.alert)
        if before is not None:
            self._of_device[before].discard(kept.verdict_id)
        device = device_of(kept.alert)
        if device is not None:
            self._of_device.setdefault(device, set()).add(kept.verdict_id)


def _joined(known: Incident, new: Incident) -> Incident:
    newest = new if new.revision > known.revision else known
    paged = [one for one in (known.paged_ns, new.paged_ns) if one is not None]
    return replace(newest, first_ns=min(known.first_ns, new.first_ns), paged_ns=min(paged, default=None))
