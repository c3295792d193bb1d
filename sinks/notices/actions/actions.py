"""Actions that an orchestrator may take about an incident, or shall undo: messages of the topic ``actions``.

`sinks.advice.plan_of` names the actions for a verdict, beside the sentence that people read, so that neither names
one that the other does not. Here they get a device, a cost, a time to live and an id that stays the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from confluent_kafka import KafkaError, KafkaException

from irregulars.errors import RecordError, SinkBusy, SinkRejected
from irregulars.kafka.lasting_producer import LastingProducer, Record
from irregulars.messages.bounds import LATEST_NS
from irregulars.messages.judgements import Suspect, Verdict, decode_verdict
from irregulars.messages.records import VERSION, decode_json, encode_json
from irregulars.printing import one_line
from irregulars.sinks.advice import gpu_hours_lost, gpu_hours_per_hour, name_device, plan_of
from irregulars.sinks.notices.notice import Notice, written
from irregulars.validation import Count, Integer, JobName, Name, NotNegative, Share, Text, checked
from irregulars.words import name_kind, percent

ActionState = Literal["proposed", "withdrawn"]
HOUR_NS: Final = 3600 * 10**9

# How long after the evidence an action may still be begun, ns. Who comes later shall not act on old evidence: a
# checkpoint is worth it now, a host may be repaired an hour later. A test is useful whenever the host is free.
TIME_TO_LIVE_NS: Final = {
    "cordon": HOUR_NS, "drain": HOUR_NS, "checkpoint_now": HOUR_NS // 6,
    "test_device": 7 * 24 * HOUR_NS, "replan_stages": 7 * 24 * HOUR_NS, "roll_back": HOUR_NS,
}  # fmt: skip

# Of a device: they travel in the reference of each notice, and a hang may keep thousands waiting
_RANKS_REMEMBERED: Final = 64


# Both records are the fields of a message that are read: names that are not known yet (of an action, a kind) pass.


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that an orchestrator may do about one device, or shall undo. None: not known."""

    action: Name  # of `sinks.advice.ACTION_NAMES`
    state: ActionState  # withdrawn: do it no more, and undo it if it was done
    action_id: Name  # made of the verdict, the action and the device, whose first rank counts
    reason: str  # one line for people
    probability: Share
    gpu_hours_lost: NotNegative | None  # by the incident so far
    # While the cause is there (`sinks.advice`); None also where it is over
    gpu_hours_lost_per_hour: NotNegative | None
    expires_at_ns: Integer | None  # until when it may be begun, ns since the epoch; None also: without an end
    device: dict[str, Any]  # a `Suspect` without its probability

    @property
    def suspect(self) -> Suspect:
        """The device; where the action is withdrawn, with its first 64 ranks."""
        values = {**self.device, "probability": self.probability}
        suspect: Suspect = checked(values, Suspect, "device", "actions", RecordError)
        return suspect


def actions_of(notice: Notice) -> tuple[Action, ...]:
    """Return the actions proposed now, then those that the notice before proposed and this one does not.

    Raises `RecordError` if its alert or its reference does not follow its format. Without the reference, from
    `remember`, those of a verdict that changed to another device can't be named; readers find out by themselves
    (infra/docs/actions.md).
    """
    verdict = decode_verdict(encode_json("alerts", notice.alert), "alerts")
    if notice.record is not None and notice.probability is not None:  # as sure as people's words here make it
        first, *others = verdict.suspects
        verdict = replace(verdict, suspects=(replace(first, probability=notice.probability), *others))
    names = () if _is_called_off(notice, verdict) else plan_of(verdict).actions
    proposed = tuple(_proposed(verdict, name, verdict.suspects[0]) for name in names)
    earlier: tuple[tuple[str, Suspect], ...] = ()
    if notice.reference is not None:
        earlier = recall(notice.reference)
    elif notice.event == "resolved":  # the proposals on the same device before the end
        names = plan_of(replace(verdict, state="open", close_reason=None)).actions
        earlier = tuple((name, verdict.suspects[0]) for name in names)
    if notice.is_muted:  # nothing is begun on it; actions that were begun stay
        begun = {_id(verdict, name, one) for name, one in earlier}
        proposed = tuple(replace(one, expires_at_ns=None) for one in proposed if one.action_id in begun)
    current = {one.action_id for one in proposed}
    gone = [(name, one) for name, one in earlier if _id(verdict, name, one) not in current]
    why = f"{_why_withdrawn(notice, verdict)} (job {verdict.job})"
    return (*proposed, *(_action(verdict, name, "withdrawn", one, None, why) for name, one in gone))


def remember(actions: tuple[Action, ...]) -> str:
    """Return the ``reference`` of the incident's next notice: the proposals of this one."""
    proposals = (one for one in actions if one.state == "proposed")
    kept = [
        [one.action, asdict(replace(one.suspect, ranks=one.suspect.ranks[:_RANKS_REMEMBERED]))] for one in proposals
    ]
    return json.dumps(kept, separators=(",", ":"))


def recall(reference: str) -> tuple[tuple[str, Suspect], ...]:
    """Return the names and devices that `remember` wrote; raises `RecordError`."""
    try:
        return tuple(
            (str(name), Suspect(**{**one, "ranks": tuple(one["ranks"])})) for name, one in json.loads(reference)
        )
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(f"reference of a notice must be what remember made; got {reference[:80]!r}") from error


def _is_called_off(notice: Notice, verdict: Verdict) -> bool:
    """Whether people ended the incident, as wrong for example, while the verdict is still open."""
    return notice.event == "resolved" and verdict.state != "closed"


def _proposed(verdict: Verdict, action: str, suspect: Suspect) -> Action:
    # A verdict may be as late as a time can be; readers refuse a later one.
    expires_at_ns = None if verdict.time_ns is None else min(verdict.time_ns + TIME_TO_LIVE_NS[action], LATEST_NS)
    sure = percent(suspect.probability)
    reason = f"{name_kind(verdict.kind)} in {verdict.job}: {name_device(suspect)}, {sure} sure"
    return _action(verdict, action, "proposed", suspect, expires_at_ns, reason)


def _action(
    verdict: Verdict, action: str, state: ActionState, suspect: Suspect, expires_at_ns: int | None, reason: str
) -> Action:
    hourly = None if verdict.state == "closed" else gpu_hours_per_hour(verdict)
    device = asdict(suspect) | {"ranks": [*suspect.ranks]}
    return Action(
        action, state, _id(verdict, action, suspect), one_line(reason), device.pop("probability"),
        gpu_hours_lost(verdict), hourly, expires_at_ns, device,
    )  # fmt: skip


def _id(verdict: Verdict, action: str, suspect: Suspect) -> str:
    """Return a short name: hosts and jobs may be longer than a node's annotation or a drain's reason may be."""
    place = (suspect.device, suspect.host, suspect.gpu, suspect.nic, suspect.switch, suspect.rank, suspect.peer)
    return f"{action}-{incident_tag(verdict.verdict_id)}-{_digest(repr(place), 8)}"


def incident_tag(verdict_id: str) -> str:
    """Return the part of an action's id that all actions of an incident share."""
    return _digest(verdict_id, 12)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:digits]


def _why_withdrawn(notice: Notice, verdict: Verdict) -> str:
    if _is_called_off(notice, verdict):
        return "the incident was called off"
    if verdict.state == "closed":
        return f"the verdict closed: {verdict.close_reason or 'no reason given'}"
    if not verdict.suspects:
        return "the verdict names no device any more"
    return f"the verdict now says {name_device(verdict.suspects[0])}"


@dataclass(frozen=True, slots=True)
class ActionsMessage:
    """The actions of one incident as of one revision of its verdict: its newest message is the whole truth.

    An action that an earlier message proposed and this one does not name is withdrawn too. `time_ns`: event time that
    the verdict rests on.
    """

    verdict_id: Text
    revision: Count
    job: JobName
    kind: Name
    actions: tuple[Action, ...]
    attempt: Integer = 0
    severity: str | None = None
    time_ns: Integer | None = None


_OF_ALERT: Final = ("verdict_id", "revision", "job", "attempt", "kind", "severity", "time_ns")


def encode_actions(notice: Notice, actions: tuple[Action, ...] | None = None) -> bytes:
    """Make the message of the topic ``actions``, JSON of its schema, keyed by the verdict's id; the same each time.

    `actions`: from `actions_of`, where they are known.
    """
    alert = notice.alert
    actions = actions_of(notice) if actions is None else actions
    message = {
        "schema": "actions", "version": VERSION,
        **{name: alert.get(name) for name in _OF_ALERT},
        "actions": [asdict(one) for one in actions],
    }  # fmt: skip
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


def decode_actions(value: bytes | None) -> ActionsMessage:
    """Decode a message of the topic ``actions``; raises `RecordError` if it does not follow its schema."""
    found: ActionsMessage = checked(decode_json(value, "actions"), ActionsMessage, "", error=RecordError)
    _ = [one.suspect for one in found.actions]  # refused here, if they are none
    return found


def newer(known: Mapping[str, ActionsMessage], message: ActionsMessage) -> bool:
    """Whether a message is newer than the known one of its incident, or the same."""
    before = known.get(message.verdict_id)
    return before is None or message.revision >= before.revision


_RETRY_S: Final = 5.0
_MOST_BYTES: Final = 1 << 20  # of a message: what the topic takes
_NEVER: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG})


class ActionsChannel:
    """Publishes the actions of each incident; a notice that comes again gives the same message again.

    A message is there when `deliver` returns: the producer is idempotent, and all replicas in sync have it. The
    newest message of an incident is the whole truth, so that one without any action withdraws all before it; it is
    left out where nothing can have been published before. `timeout_s`: How long the broker may take for a message,
    before the notice is to come again, s.
    """

    def __init__(self, name: str, topic: str, config: Mapping[str, Any], timeout_s: float = 30.0) -> None:
        self.name: Final = name
        self.gathers: Final = False  # each node is an action of its own
        self.withdraws: Final = True  # a mute keeps no innocent host out of work
        self._topic: Final = topic
        self._brokers: Final = config.get("bootstrap.servers", "")
        own = {"message.timeout.ms": int(timeout_s * 1000), "message.max.bytes": _MOST_BYTES}
        self._config: Final = {**config, **own}
        self._producer: LastingProducer | None = None

    def deliver(self, notice: Notice) -> str | None:
        """Publish; returns the reference for the incident's next notice. Raises `SinkBusy` and `SinkRejected`."""
        actions, value = written(lambda one: (found := actions_of(one), encode_actions(one, found)), notice)
        is_bare_update = notice.event == "updated" and notice.is_muted
        # An earlier proposal may stand unbeknown to us.
        if actions or notice.is_doubtful or not (notice.event == "opened" or is_bare_update):
            record = Record(self._topic, notice.incident.encode(), value)
            try:
                if self._producer is None:
                    self._producer = LastingProducer(self._config)
                error = self._producer.deliver([record])  # ends: message.timeout.ms
            except KafkaException as none_made:
                error = none_made.args[0]
            if error is not None:
                told = f"{error.name()}: {error.str()} (Kafka at {self._brokers})"
                reason = f"topic {self._topic} must take actions; got {told}"
                if error.code() in _NEVER:
                    raise SinkRejected(reason, (notice,))
                raise SinkBusy(reason, _RETRY_S)
        return remember(actions)

    def close(self) -> None:
        """Let go of the producer; nothing is on its way."""
        self._producer = None
