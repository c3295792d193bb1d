"""Messages of the topic ``actions``: all that an orchestrator may do about one incident, and shall undo."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from irregulars.errors import RecordError
from irregulars.messages.judgements import Suspect
from irregulars.messages.records import VERSION, decode_json
from irregulars.sinks.notices.actions import Action, actions_of
from irregulars.sinks.notices.notice import Notice
from irregulars.validation import Count, Integer, JobName, Name, NotNegative, Rank, Share, Text, checked, one_of


@dataclass(frozen=True, slots=True)
class ActionsMessage:
    """The actions of one incident as of one revision of its verdict: its newest message is the whole truth.

    Parameters
    ----------
    time_ns
        Event time that the verdict rests on, ns since the epoch; None: not known.
    actions
        Those that are proposed, and those that are withdrawn. What an earlier message proposed and this one does not
        name is withdrawn too.
    """

    verdict_id: str
    revision: int
    job: str
    attempt: int
    kind: str
    severity: str | None
    time_ns: int | None
    actions: tuple[Action, ...]


_OF_ALERT: Final = ("verdict_id", "revision", "job", "attempt", "kind", "severity", "time_ns")


def encode_actions(notice: Notice, actions: tuple[Action, ...] | None = None) -> bytes:
    """Make the message of the topic ``actions``; its key is the verdict's id.

    Parameters
    ----------
    actions
        What `actions_of` returned for this notice, where that is known already.

    Returns
    -------
    bytes
        JSON of ``irregulars/messages/schemas/actions.json``; the same notice gives the same bytes.
    """
    alert = notice.alert
    actions = actions_of(notice) if actions is None else actions
    message = {
        "schema": "actions", "version": VERSION,
        **{name: alert.get(name) for name in _OF_ALERT},
        "actions": [_to_json(one) for one in actions],
    }  # fmt: skip
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


def _to_json(action: Action) -> dict[str, Any]:
    device = asdict(action.suspect)
    probability = device.pop("probability")
    return {
        "action": action.action, "state": action.state, "action_id": action.action_id, "reason": action.reason,
        "probability": probability, "gpu_hours_lost": action.gpu_hours_lost,
        "gpu_hours_lost_per_hour": action.gpu_hours_lost_per_hour, "expires_at_ns": action.expires_at_ns,
        "device": device | {"ranks": list(action.suspect.ranks)},
    }  # fmt: skip


def decode_actions(value: bytes | None) -> ActionsMessage:
    """Decode a message of the topic ``actions``; raises `RecordError` if it does not follow its schema."""
    found: _Message = checked(decode_json(value, "actions"), _Message, "", error=RecordError)
    return ActionsMessage(
        found.verdict_id, found.revision, found.job, found.attempt, found.kind, found.severity, found.time_ns,
        tuple(_action_of(one) for one in found.actions),
    )  # fmt: skip


def _action_of(found: _Action) -> Action:
    device = found.device
    suspect = Suspect(
        device.device, device.rank, device.ranks, found.probability, device.peer, device.host, device.gpu, device.nic,
        device.switch,
    )  # fmt: skip
    return Action(
        found.action_id, found.action, "proposed" if found.state == "proposed" else "withdrawn", suspect,
        found.gpu_hours_lost, found.gpu_hours_lost_per_hour, found.expires_at_ns, found.reason,
    )  # fmt: skip


# What is read of a message: names that we do not know yet (of an action, a kind, a device) are let pass.


@dataclass(frozen=True, slots=True)
class _Device:
    device: Name
    rank: Rank
    ranks: tuple[Rank, ...]
    peer: Rank | None
    host: Name | None
    gpu: Count | None
    nic: Name | None
    switch: Name | None


@dataclass(frozen=True, slots=True)
class _Action:
    action: Name
    state: Annotated[str, one_of("proposed", "withdrawn")]
    action_id: Name
    reason: str
    probability: Share
    gpu_hours_lost: NotNegative | None
    gpu_hours_lost_per_hour: NotNegative | None
    expires_at_ns: Integer | None
    device: _Device


@dataclass(frozen=True, slots=True)
class _Message:
    verdict_id: Text
    revision: Count
    job: JobName
    kind: Name
    actions: tuple[_Action, ...]
    attempt: Integer = 0
    severity: str | None = None
    time_ns: Integer | None = None


def newer(known: Mapping[str, ActionsMessage], message: ActionsMessage) -> bool:
    """Whether a message says more than what is known of its incident; the same again, or an older one, does not."""
    before = known.get(message.verdict_id)
    return before is None or message.revision >= before.revision
