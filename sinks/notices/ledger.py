"""The ledger: incidents, mutes and records of notices; it returns the next notice of each channel.

Pure: it is given alerts, records and the time, and does nothing itself.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from irregulars.messages.judgements import SEVERITIES, urgency_of
from irregulars.messages.opinions import Opinion
from irregulars.sinks.advice import runbook_of
from irregulars.sinks.notices.incidents import REPEAT_NS, Incident, Incidents, device_of
from irregulars.sinks.notices.mutes import Mute, TrackRecord, silences, track_records
from irregulars.sinks.notices.notice import Notice, incident_link
from irregulars.sinks.notices.policy import (
    GATHER_NS,
    KEPT_NS,
    MINUTE_NS,
    OPENINGS,
    UPDATE_NS,
    Deliver,
    DeliveryRecord,
    Rules,
    Storm,
    Wait,
    decide,
    severity_now,
    storm_alert,
)

# Later than all times: an incident of a storm waits until the storm's notice covers it (`_note`).
_NEVER_NS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Due:
    """A notice that a channel is to be given now."""

    incident: Incident
    notice: Notice
    is_repeat: bool = False
    storm: Storm | None = None
    joining: tuple[Incident, ...] = ()  # of a storm: incidents for which this is the channel's first notice


@dataclass(frozen=True, slots=True)
class _Pending:
    """When a channel's next notice of an incident is decided, and why not before."""

    until_ns: int = 0
    reason: str = "news"


class Ledger:
    """See the module. `rules`: of each channel, by its name."""

    def __init__(self, rules: Mapping[str, Rules]) -> None:
        self._rules: Final = rules
        self._incidents: Final = Incidents()
        self._told: Final[dict[tuple[str, str], DeliveryRecord]] = {}
        self._mutes: Final[dict[str, Mute]] = {}
        self._records: dict[str, TrackRecord] = {}
        self._first_tries: Final[set[tuple[str, str]]] = set()
        self._storms: Final[dict[str, Storm]] = {}
        self._openings: Final[dict[str, deque[tuple[int, int]]]] = {one: deque() for one in rules}
        self._unrecorded: list[DeliveryRecord] = []
        self._pending: Final[dict[str, dict[str, _Pending]]] = {channel: {} for channel in rules}

    def apply_alert(self, alert: Mapping[str, Any], came_ns: int, partition: int = 0, offset: int = 0) -> None:
        """Apply a message of the topic ``alerts``, decoded; see `Incidents.apply`."""
        before = self._incidents.get(str(alert["verdict_id"]))
        now = self._incidents.apply(alert, came_ns, partition, offset)
        if before is None or before.alert is not now.alert:
            self._decide_again(now.verdict_id)

    def apply_delivery(self, told: DeliveryRecord) -> None:
        """Apply a record of the topic ``notices``."""
        self._told[told.verdict_id, told.channel] = told
        if told.storm is not None and told.channel in self._rules:
            # Its beginning is not recorded. With 0 it takes in no new incidents: those begin another one.
            storm = self._storms.setdefault(told.storm, Storm(told.storm, told.channel, 0))
            if told.verdict_id != told.storm:
                storm.members[told.verdict_id] = None
            self._pending[told.channel].setdefault(told.storm, _Pending(reason="storm"))

    def set_mutes(self, mutes: Iterable[Mute], opinions: Collection[Opinion] = ()) -> None:
        """Replace all mutes; those that follow from people's opinions on verdicts are added."""
        self._records = track_records(opinions)
        new = {one.mute_id: one for one in (*mutes, *silences(opinions))}
        # The process asks every two seconds: only a change may cost a decision about each incident.
        if new == self._mutes:
            return
        self._mutes.clear()
        self._mutes.update(new)
        for incident in self._incidents:
            if incident.is_open:
                self._decide_again(incident.verdict_id)

    def mutes_now(self, now_ns: int) -> int:
        """Count the mutes that hold now."""
        return sum(one.is_active(now_ns) for one in self._mutes.values())

    def forget_times(self) -> None:
        """Decide again about all that waits: the clock was set back, and it would wait for as much longer."""
        for channel, pending in self._pending.items():
            for name, one in pending.items():
                if one.until_ns != _NEVER_NS:
                    pending[name] = replace(one, until_ns=0)
            self._openings[channel].clear()

    def next_due(self, channel: str, now_ns: int) -> Due | None:
        """Return the notice that a channel is to be given now, or None.

        A notice that was tried comes after those that were not, so that nothing waits behind one that fails again and
        again; then the more urgent comes first, and then that whose alert came first.
        """
        pending = self._pending[channel]
        for _ in range(2):  # the second round finds the storms that incidents of the first have joined
            ready = [name for name, one in pending.items() if one.until_ns <= now_ns]
            for name in sorted(ready, key=lambda one: self._order(channel, one)):
                storm = self._storms.get(name)
                due = self._due_of(channel, name, now_ns) if storm is None else self._due_of_storm(storm, now_ns)
                if due is not None:
                    return due
        return None

    def _order(self, channel: str, name: str) -> tuple[int, ...]:
        pending, incident = self._pending[channel][name], self._incidents.get(name)
        tried_ns = pending.until_ns if pending.reason == "retry" else 0
        if incident is None:  # a storm
            return tried_ns, -len(SEVERITIES)
        return tried_ns, -_rank(urgency_of(incident.alert.get("severity"))), incident.partition, incident.offset

    def _due_of(self, channel: str, name: str, now_ns: int) -> Due | None:
        """Return the notice of one incident that a channel gets now, or record why there is none."""
        incident, told, rules = self._known(name), self._told.get((name, channel)), self._rules[channel]
        own_storm = None if told is None or told.storm is None else self._storms.get(told.storm)
        rules = rules if own_storm is None else replace(rules, repeat_s=None)  # its storm's notice is repeated
        earlier = self._incidents.earlier(incident)
        decision = decide(incident, told, rules, self._mutes.values(), now_ns, earlier)
        pending = self._pending[channel]
        if isinstance(decision, Wait):
            pending[name] = _Pending(decision.until_ns, decision.reason)
        elif not isinstance(decision, Deliver):
            del pending[name]
        elif own_storm is not None:
            state = "closed" if decision.notice.event == "resolved" else "open"
            due = Due(incident, decision.notice, storm=own_storm)
            self._unrecorded.append(self._note(channel, due, state, None, now_ns))
            self._rouse(own_storm, now_ns)
        elif told is None and (storm := self._storm_for(channel, name, decision.notice.severity, now_ns)) is not None:
            pending[name] = _Pending(_NEVER_NS, "gathered")
            storm.members[name] = None
            self._rouse(storm, now_ns)
        else:
            return Due(incident, self._complete(decision.notice, channel), decision.is_repeat)
        return None

    # --- storms -----------------------------------------------------------------------------------------------------

    def _storm_for(self, channel: str, name: str, severity: str, now_ns: int) -> Storm | None:
        """Return the storm that an incident is part of or joins now; None: it gets a notice of its own.

        It joins one if the channel got `OPENINGS` incidents as urgent as this one, or more, within the last minute.
        """
        own = [one for one in self._storms.values() if one.channel == channel]
        found = next((one for one in own if name in one.members), None)
        openings = self._openings[channel]
        while openings and openings[0][0] < now_ns - MINUTE_NS:
            openings.popleft()
        is_too_fast = sum(one >= _rank(severity) for _, one in openings) >= OPENINGS
        if found is None and is_too_fast and self._rules[channel].gathers:
            begun = Storm(f"storm:{channel}:{now_ns}", channel, now_ns)
            found = next((one for one in own if now_ns < one.begun_ns + MINUTE_NS), begun)
            self._storms[found.storm_id] = found
        return found

    def _rouse(self, storm: Storm, now_ns: int) -> None:
        """Decide about a storm again, when its first incidents have come together."""
        pending, is_told = self._pending[storm.channel], (storm.storm_id, storm.channel) in self._told
        if storm.storm_id not in pending or pending[storm.storm_id].reason == "repeat":
            pending[storm.storm_id] = _Pending(now_ns if is_told else now_ns + GATHER_NS, "storm")

    def _due_of_storm(self, storm: Storm, now_ns: int) -> Due | None:
        """Return the notice of a storm, or of its one incident, that a channel gets now; or record why none."""
        channel, pending = storm.channel, self._pending[storm.channel]
        told = self._told.get((storm.storm_id, channel))
        if told is not None and told.state == "open" and told.told_ns <= now_ns < told.told_ns + UPDATE_NS:
            pending[storm.storm_id] = _Pending(told.told_ns + UPDATE_NS, "storm")
            return None
        untold = [name for name in storm.members if (name, channel) not in self._told]
        for name in untold:
            if pending.get(name, _Pending()).reason != "gathered":  # it ended meanwhile
                del storm.members[name]
        joining = tuple(self._known(name) for name in untold if name in storm.members)
        if told is None and len(joining) == 1:  # alone by now: it gets a notice of its own
            self._drop_storm(storm)
            rules, earlier = self._rules[channel], self._incidents.earlier(joining[0])
            decision = decide(joining[0], None, rules, self._mutes.values(), now_ns, earlier)
            pending[joining[0].verdict_id] = _Pending()
            if not isinstance(decision, Deliver):
                return None
            return Due(joining[0], self._complete(decision.notice, channel))
        members = [one for name in storm.members if (one := self._incidents.get(name)) is not None]
        records = [self._told.get((name, channel)) for name in storm.members]
        is_over = not joining and all(one is None or one.state in ("closed", "refused") for one in records)
        # Each of its incidents has passed these rules; the storm's alert has no facts of its own for them.
        rules = replace(self._rules[channel], hold_s=0.0, least_gpu_hours=0.0, jobs=("*",), least_severity="note")
        severities = [severity_now(one, self._rules[channel], now_ns)[0] for one in members]
        severity = max(severities, key=_rank, default="ticket")
        alert, ids = storm_alert(storm, members, severity, is_over=is_over)
        incident = Incident(alert, 0, 0, *((members[-1].partition, members[-1].offset) if members else (0, 0)))
        # It was given up: news of its incidents since then is news of it, as of an incident by itself.
        if told is not None and told.state == "doubtful":
            has_news = any(one is not None and one.told_ns > told.told_ns for one in records)
            told = replace(told, revision=-1) if has_news else told
        decision = decide(incident, told, rules, (), now_ns)
        if isinstance(decision, Deliver):
            notice = replace(decision.notice, incidents=ids, link=self._rules[channel].console_url)
            return Due(incident, notice, decision.is_repeat, storm, joining)
        if isinstance(decision, Wait):
            pending[storm.storm_id] = _Pending(decision.until_ns, decision.reason)
        else:
            del pending[storm.storm_id]
            if is_over:
                self._drop_storm(storm)
        return None

    def _drop_storm(self, storm: Storm) -> None:
        del self._storms[storm.storm_id]
        self._pending[storm.channel].pop(storm.storm_id, None)

    def take_unrecorded(self) -> list[DeliveryRecord]:
        """Return the records of incidents of storms since the last call; they belong on their topic."""
        found, self._unrecorded = self._unrecorded, []
        return found

    def _complete(self, notice: Notice, channel: str) -> Notice:
        """Add people's opinions on verdicts of its kind, and where to read on."""
        kind, rules = str(notice.alert["kind"]), self._rules[channel]
        return replace(
            notice,
            record=self._records.get(kind),
            link=incident_link(rules.console_url, notice.incident),
            runbook=rules.runbook_url and runbook_of(kind, rules.runbook_url),
        )

    def intend(self, channel: str, due: Due, now_ns: int) -> DeliveryRecord | None:
        """Record that the notice of an opening is about to be delivered; return the record.

        It must be on its topic before the try: a process that dies right after the try must know later that the
        notice may have arrived, and deliver that of the end. None: there is such a record already.
        """
        told = self._told.get((due.incident.verdict_id, channel))
        if due.notice.event != "opened" or (told is not None and told.state in ("trying", "open", "doubtful")):
            return None
        self._first_tries.add((due.incident.verdict_id, channel))
        return self._note(channel, due, "trying", None, now_ns)

    def knows(self, due: Due) -> bool:
        """Whether all incidents of a notice are known: it may be one of an earlier ledger."""
        own = (due.incident,) if due.storm is None else due.joining
        return all(self._incidents.get(one.verdict_id) is not None for one in own)

    def delivered(self, channel: str, due: Due, reference: str | None, now_ns: int) -> list[DeliveryRecord]:
        """Record that a channel took a notice; return the records of it."""
        self._first_tries.discard((due.incident.verdict_id, channel))
        state = "closed" if due.notice.event == "resolved" else "open"
        if due.notice.event == "opened" and due.storm is None:
            self._openings[channel].append((now_ns, _rank(due.notice.severity)))
        return self._note_all(channel, due, state, reference, now_ns)

    def given_up(self, channel: str, due: Due, now_ns: int, *, may_have_arrived: bool) -> list[DeliveryRecord]:
        """Record that a notice is not tried again; return the records of it.

        `may_have_arrived`: whether the channel may have taken it nevertheless: then it gets that of the end.
        """
        key = (due.incident.verdict_id, channel)
        told, is_first = self._told.get(key), key in self._first_tries
        self._first_tries.discard(key)
        if due.notice.event == "resolved":
            state = "closed"
        elif told is not None and told.state == "open":
            state = "open"
        else:
            is_refused = not may_have_arrived and (is_first or told is None or told.state == "refused")
            state = "refused" if is_refused else "doubtful"
        return self._note_all(channel, due, state, None, now_ns)

    def postpone(self, channel: str, due: Due, until_ns: int, *, may_have_arrived: bool) -> DeliveryRecord | None:
        """Try a notice again at a later time, or its successor, if there is one by then.

        Return the record of an intention that may go from its topic again, since nothing has arrived; or None.
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
        """Return the smallest offset of an alert with a notice that is still to be delivered; None: there is none."""
        waiting = (item for pending in self._pending.values() for item in pending.items())
        # One that only repeats holds up no offset: its record leads back to its alert (`oldest_open`).
        open_ids = {name for name, one in waiting if one.reason != "repeat"} - self._storms.keys()
        places = [(one.partition, one.offset) for one in map(self._known, open_ids)]
        return min((offset for at, offset in places if at == partition), default=None)

    def forget_old(self, now_ns: int) -> list[DeliveryRecord]:
        """Drop incidents and records that no decision can rest on; return the records to delete."""
        pending = {name for of in self._pending.values() for name in of}
        for incident in self._incidents:
            is_old = not incident.is_open and incident.first_ns < now_ns - REPEAT_NS
            if is_old and incident.verdict_id not in pending:
                self._incidents.forget(incident.verdict_id)
        old = [one for one in self._told.values() if one.told_ns < now_ns - KEPT_NS and self._is_done_with(one)]
        for one in old:
            del self._told[one.verdict_id, one.channel]
        return old

    def oldest_open(self, partition: int) -> int | None:
        """Return the smallest offset of an alert with a notice to a channel that is still to get the end; or None."""
        told = [one for one in self._told.values() if one.partition == partition and self._awaits_end(one)]
        return min((one.offset for one in told), default=None)

    def _awaits_end(self, told: DeliveryRecord) -> bool:
        # A channel that was taken out of the settings gets nothing more, and one that refused the opening no end.
        return told.channel in self._rules and told.state not in ("closed", "refused")

    def _is_done_with(self, told: DeliveryRecord) -> bool:
        if told.state == "refused" and told.channel in self._rules:
            # While the incident lasts, its record keeps the same notice from being tried again.
            incident = self._incidents.get(told.verdict_id)
            return incident is None or not incident.is_open
        return not self._awaits_end(told)

    def _note_all(
        self, channel: str, due: Due, state: str, reference: str | None, now_ns: int
    ) -> list[DeliveryRecord]:
        """Record a notice, and of a storm each incident that it covers first."""
        own = [self._note(channel, due, state, reference, now_ns)]
        for one in due.joining:
            severity = severity_now(one, self._rules[channel], now_ns)[0]
            joined = Due(one, Notice("opened", one.alert, severity), storm=due.storm)
            own.append(self._note(channel, joined, state, None, now_ns))
        return own

    def _note(self, channel: str, due: Due, state: str, reference: str | None, now_ns: int) -> DeliveryRecord:
        notice, incident = due.notice, due.incident
        before = self._told.get((incident.verdict_id, channel))
        revision = notice.revision if before is None or not notice.is_muted else before.revision
        told = DeliveryRecord(
            incident.verdict_id, channel, state, notice.event, revision, notice.severity,
            str(notice.alert["job"]), device_of(notice.alert), reference or notice.reference, now_ns,
            incident.partition, incident.offset, None if due.storm is None else due.storm.storm_id,
        )  # fmt: skip
        self.apply_delivery(told)
        self._pending[channel][incident.verdict_id] = _Pending()
        return told

    def _decide_again(self, verdict_id: str) -> None:
        for pending in self._pending.values():
            pending[verdict_id] = _Pending()

    def _known(self, verdict_id: str) -> Incident:
        found = self._incidents.get(verdict_id)
        assert found is not None  # what is pending has an alert
        return found


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity)
