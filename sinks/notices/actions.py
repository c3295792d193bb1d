"""What an orchestrator may do about an incident, and what it shall undo: the rules of the topic ``actions``.

Which actions there are for which verdict says `sinks.advice.plan_of`, beside the sentence that people read: neither
says what the other does not. Here they get a device, a cost, a time to live and an id that stays the same.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from irregulars.errors import RecordError
from irregulars.messages.judgements import Suspect, Verdict, decode_verdict
from irregulars.messages.records import encode_json
from irregulars.sinks.advice import name_device, name_kind, plan_of
from irregulars.sinks.costs import gpu_hours_lost, gpu_hours_per_hour
from irregulars.sinks.notices.notice import Notice

ActionState = Literal["proposed", "withdrawn"]
HOUR_NS: Final = 3600 * 10**9

TIME_TO_LIVE_NS: Final = {
    "cordon": HOUR_NS, "drain": HOUR_NS, "checkpoint_now": HOUR_NS // 6,
    "test_device": 7 * 24 * HOUR_NS, "replan_stages": 7 * 24 * HOUR_NS,
}  # fmt: skip
"""How long after the evidence an action may still be begun, ns. Who comes later shall not act on what was true then:
a checkpoint is worth it now, a host may be repaired an hour later. A test is useful whenever the host is free."""

_RANKS_REMEMBERED: Final = 64
"""Of a device: what is remembered of an action travels with each notice, and a hang may keep thousands waiting."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that an orchestrator may do about one device, or shall undo.

    Parameters
    ----------
    action_id
        Made of the verdict, the action and the device, whose first rank counts.
    action
        One of `sinks.advice.ACTION_NAMES`.
    state
        ``withdrawn``: do it no more, and undo it if it was done.
    suspect
        The device; of one that is withdrawn and carries many ranks, the first 64.
    gpu_hours_lost
        Lost to the incident so far, GPU-hours. None: not known.
    gpu_hours_lost_per_hour
        Lost each hour while the cause is there, GPU-hours (`sinks.costs`). None: not known, or it is over.
    expires_at_ns
        Until when it may be begun, ns since the epoch. None: without an end, as a withdrawn one, or not known.
    reason
        One line for people.
    """

    action_id: str
    action: str
    state: ActionState
    suspect: Suspect
    gpu_hours_lost: float | None
    gpu_hours_lost_per_hour: float | None
    expires_at_ns: int | None
    reason: str


def actions_of(notice: Notice) -> tuple[Action, ...]:
    """Return what is proposed now, then what the notice before proposed and this one does not.

    Parameters
    ----------
    notice
        Its ``reference`` is what `remember` made of the actions of the notice before. Without it, those of a verdict
        that changed to another device can't be named; readers find out by themselves (infra/docs/actions.md).

    Raises
    ------
    RecordError
        If its alert or its reference does not follow its format.
    """
    verdict = _as_sure_as_here(decode_verdict(encode_json("alerts", notice.alert), "alerts"), notice)
    proposed = () if _is_called_off(notice, verdict) else _proposals(verdict)
    current = {one.action_id for one in proposed}
    earlier = _while_open(notice, verdict) if notice.reference is None else recall(notice.reference)
    gone = [(name, one) for name, one in earlier if _id(verdict, name, one) not in current]
    why = f"{_why_withdrawn(notice, verdict)} (job {verdict.job})"
    return (*proposed, *(_action(verdict, name, "withdrawn", one, None, why) for name, one in gone))


def _as_sure_as_here(verdict: Verdict, notice: Notice) -> Verdict:
    """Return the verdict with its first suspect as probable as people's words on such verdicts make it."""
    if notice.record is None or notice.probability is None:
        return verdict
    first, *others = verdict.suspects
    return replace(verdict, suspects=(replace(first, probability=notice.probability), *others))


def remember(actions: tuple[Action, ...]) -> str:
    """Return what the incident's next notice shall carry as its ``reference``: the proposals of this one."""
    return json.dumps([_remembered(one) for one in actions if one.state == "proposed"], separators=(",", ":"))


def _remembered(one: Action) -> list[object]:
    return [one.action, asdict(replace(one.suspect, ranks=one.suspect.ranks[:_RANKS_REMEMBERED]))]


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


def _proposals(verdict: Verdict) -> tuple[Action, ...]:
    names = plan_of(verdict).actions
    return tuple(_proposed(verdict, name, verdict.suspects[0]) for name in names)


def _while_open(notice: Notice, verdict: Verdict) -> tuple[tuple[str, Suspect], ...]:
    """Return what was proposed on the same device before the end, where nobody remembers it."""
    if notice.event != "resolved":
        return ()
    names = plan_of(replace(verdict, state="open", close_reason=None)).actions
    return tuple((name, verdict.suspects[0]) for name in names)


def _proposed(verdict: Verdict, action: str, suspect: Suspect) -> Action:
    expires_at_ns = None if verdict.time_ns is None else verdict.time_ns + TIME_TO_LIVE_NS[action]
    percent = min(round(100 * suspect.probability), 99)  # nobody is ever 100% sure
    reason = f"{name_kind(verdict.kind)} in {verdict.job}: {name_device(suspect)}, {percent}% sure"
    return _action(verdict, action, "proposed", suspect, expires_at_ns, reason)


def _action(
    verdict: Verdict, action: str, state: ActionState, suspect: Suspect, expires_at_ns: int | None, reason: str
) -> Action:
    return Action(
        _id(verdict, action, suspect), action, state, suspect, gpu_hours_lost(verdict), _hourly(verdict),
        expires_at_ns, "".join(sign if sign.isprintable() else " " for sign in reason),
    )  # fmt: skip


def _id(verdict: Verdict, action: str, suspect: Suspect) -> str:
    """Return a short name: hosts and jobs may be longer than what a node's annotation or a drain's reason takes."""
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


def _hourly(verdict: Verdict) -> float | None:
    """GPU-hours lost an hour, while the cause is there."""
    return None if verdict.state == "closed" else gpu_hours_per_hour(verdict)
