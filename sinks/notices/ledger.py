"""All that is known of incidents, mutes and what was told; asked for the next notice of each channel.

Pure: it is given alerts, records and the time, and does nothing itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from irregulars.sinks.advice import runbook_of
from irregulars.sinks.notices.devices import device_of
from irregulars.sinks.notices.incidents import REPEAT_NS, Incident, Incidents
from irregulars.sinks.notices.mutes import Mute
from irregulars.sinks.notices.notice import Notice, incident_link
from irregulars.sinks.notices.opinions import TrackRecord, silences, track_records
from irregulars.sinks.notices.policy import Rules, Tell, Wait, decide
from irregulars.sinks.notices.told import KEPT_NS, Told
from irregulars.streams.messages.opinions import Opinion


@dataclass(frozen=True, slots=True)
class Due:
    """A notice that a channel is to be given now."""

    incident: Incident
    notice: Notice
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class _Pending:
    """When an incident is to be looked at again for a channel, and why not before."""

    until_ns: int = 0
    reason: str = "news"


class Ledger:
    """See the module.

    Parameters
    ----------
    rules
        Of each channel, by its name.
    """

    def __init__(self, rules: Mapping[str, Rules]) -> None:
        self._rules: Final = rules
        self._incidents: Final = Incidents()
        self._told: Final[dict[tuple[str, str], Told]] = {}
        self._mutes: Final[dict[str, Mute]] = {}
        self._records: dict[str, TrackRecord] = {}
        self._first_tries: Final[set[tuple[str, str]]] = set()
        self._pending: Final[dict[str, dict[str, _Pending]]] = {channel: {} for channel in rules}

    def take_alert(self, alert: Mapping[str, Any], came_ns: int, partition: int = 0, offset: int = 0) -> None:
        """Take in a message of the topic ``alerts``, decoded; see `Incidents.take`."""
        before = self._incidents.get(str(alert["verdict_id"]))
        now = self._incidents.take(alert, came_ns, partition, offset)
        if before is None or before.alert is not now.alert:
            self._look_again(now.verdict_id)

    def take_told(self, told: Told) -> None:
        """Take in what a channel was told."""
        self._told[told.verdict_id, told.channel] = told

    def set_mutes(self, mutes: Iterable[Mute], opinions: Collection[Opinion] = ()) -> None:
        """Take all mutes that there are now, and what people say of verdicts: mutes that follow from it are added."""
        self._records = track_records(opinions)
        new = {one.mute_id: one for one in (*mutes, *silences(opinions))}
        if new == self._mutes:
            return
        self._mutes.clear()
        self._mutes.update(new)
        for incident in self._incidents:
            if incident.is_open or incident.hangs_until_ns is not None:
                self._look_again(incident.verdict_id)

    def mutes_now(self, now_ns: int) -> int:
        """Count the mutes that hold now."""
        return sum(one.is_active(now_ns) for one in self._mutes.values())

    def next_due(self, channel: str, now_ns: int) -> Due | None:
        """Return the notice that a channel is to be given now: of several that whose alert came first; or None."""
        pending = self._pending[channel]
        ready = [name for name, one in pending.items() if one.until_ns <= now_ns]
        for incident in sorted(map(self._known, ready), key=lambda one: (one.partition, one.offset)):
            told = self._told.get((incident.verdict_id, channel))
            earlier = self._incidents.earlier(incident)
            decision = decide(incident, told, self._rules[channel], self._mutes.values(), now_ns, earlier)
            if isinstance(decision, Tell):
                return Due(incident, self._complete(decision.notice, channel), decision.is_repeat)
            if isinstance(decision, Wait):
                pending[incident.verdict_id] = _Pending(decision.until_ns, decision.reason)
            else:
                del pending[incident.verdict_id]
        return None

    def _complete(self, notice: Notice, channel: str) -> Notice:
        """Add what people said of verdicts of its kind, and where to read on."""
        kind, rules = str(notice.alert["kind"]), self._rules[channel]
        return replace(
            notice,
            record=self._records.get(kind),
            link=incident_link(rules.console_url, notice.incident),
            runbook=rules.runbook_url and runbook_of(kind, rules.runbook_url),
        )

    def intend(self, channel: str, due: Due, now_ns: int) -> Told | None:
        """Note that a channel is about to be told that an incident opened; return the record of it.

        It must stand on its topic before the try: who dies right after the try must know later that the channel may
        have heard of it, and tell it of the end. None: the channel knows already, or that was noted.
        """
        told = self._told.get((due.incident.verdict_id, channel))
        if due.notice.event != "opened" or (told is not None and told.state in ("trying", "open", "doubtful")):
            return None
        self._first_tries.add((due.incident.verdict_id, channel))
        return self._note(channel, due, "trying", None, now_ns)

    def delivered(self, channel: str, due: Due, reference: str | None, now_ns: int) -> Told:
        """Note that a channel took a notice; return the record of it."""
        self._first_tries.discard((due.incident.verdict_id, channel))
        state = "closed" if due.notice.event == "resolved" else "open"
        return self._note(channel, due, state, reference, now_ns)

    def given_up(self, channel: str, due: Due, now_ns: int, *, may_have_arrived: bool) -> Told:
        """Note that a notice is not tried again; return the record of it.

        Parameters
        ----------
        may_have_arrived
            Whether the channel may have taken it nevertheless: then it will be told of the end.
        """
        told = self._told.get((due.incident.verdict_id, channel))
        is_first = (due.incident.verdict_id, channel) in self._first_tries
        self._first_tries.discard((due.incident.verdict_id, channel))
        if due.notice.event == "resolved":
            state = "closed"
        elif told is not None and told.state == "open":
            state = "open"
        else:
            is_refused = not may_have_arrived and (is_first or told is None or told.state == "refused")
            state = "refused" if is_refused else "doubtful"
        return self._note(channel, due, state, None, now_ns)

    def postpone(self, channel: str, due: Due, until_ns: int, *, may_have_arrived: bool) -> Told | None:
        """Try a notice again at a later time, or its successor, if there is one by then.

        Returns
        -------
        Told
            A record of an intention that may go from its topic again, since nothing has arrived; None: there is
            none.
        """
        key = (due.incident.verdict_id, channel)
        self._pending[channel][due.incident.verdict_id] = _Pending(until_ns, "retry")
        is_first = key in self._first_tries
        self._first_tries.discard(key)
        return self._told.pop(key) if is_first and not may_have_arrived else None

    def waiting(self, channel: str) -> Counter[str]:
        """Count a channel's incidents that wait, by reason: ``held``, ``muted``, ``repeat``, ``retry``, ``news``."""
        return Counter(one.reason for one in tuple(self._pending[channel].values()))

    def waits(self, channel: str) -> list[tuple[str, int, str]]:
        """Return the incidents that wait for a channel: id, until when (ns since the epoch), and why."""
        return [(name, one.until_ns, one.reason) for name, one in self._pending[channel].items()]

    def unsettled(self, partition: int) -> int | None:
        """Return the smallest offset of an alert that some channel is still to be told of; None: there is none."""
        open_ids = {
            name for of in self._pending.values() for name, one in of.items() if one.reason not in ("repeat",)
        }
        places = [(one.partition, one.offset) for one in map(self._known, open_ids)]
        return min((offset for at, offset in places if at == partition), default=None)

    def forget_old(self, now_ns: int) -> list[Told]:
        """Drop what no decision can rest on any more; return the records that may go from their topic."""
        for incident in self._incidents:
            if not incident.is_open and incident.first_ns < now_ns - REPEAT_NS and not self._is_pending(incident):
                self._incidents.forget(incident.verdict_id)
        old = [one for one in self._told.values() if one.state == "closed" and one.told_ns < now_ns - KEPT_NS]
        for one in old:
            del self._told[one.verdict_id, one.channel]
        return old

    def oldest_open(self, partition: int) -> int | None:
        """Return the smallest offset of an alert that a channel was told of, and whose end it was not; or None."""
        places = [one.offset for one in self._told.values() if one.partition == partition and one.state != "closed"]
        return min(places, default=None)

    def _note(self, channel: str, due: Due, state: str, reference: str | None, now_ns: int) -> Told:
        notice, incident = due.notice, due.incident
        told = Told(
            incident.verdict_id, channel, state, notice.event, notice.revision, notice.severity,
            str(notice.alert["job"]), device_of(notice.alert), reference or notice.reference, now_ns,
            incident.partition, incident.offset,
        )  # fmt: skip
        self.take_told(told)
        self._pending[channel][incident.verdict_id] = _Pending()
        return told

    def _look_again(self, verdict_id: str) -> None:
        for pending in self._pending.values():
            pending[verdict_id] = _Pending()

    def _known(self, verdict_id: str) -> Incident:
        found = self._incidents.get(verdict_id)
        assert found is not None  # nothing is pending that no alert came of
        return found

    def _is_pending(self, incident: Incident) -> bool:
        return any(incident.verdict_id in pending for pending in self._pending.values())
