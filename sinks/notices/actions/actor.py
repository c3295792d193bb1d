"""Carries out the proposals of the topic `actions` on the nodes of one orchestrator, and undoes those withdrawn.

All state is on the topic and on the nodes themselves: the plan (`node_plan`) is made of both, after each message and
once a minute. So a message may come twice, and a consumer may die between any two steps.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from irregulars.errors import RecordError, ServiceError, ServiceRefused, ServiceUnavailable
from irregulars.sinks.notices.actions.actions import (
    HOUR_NS,
    TIME_TO_LIVE_NS,
    Action,
    ActionsMessage,
    decode_actions,
    incident_tag,
    newer,
)
from irregulars.sinks.notices.actions.feed import ActionFeed, Polled


@dataclass(frozen=True, slots=True)
class Marked:
    """Our marks on the nodes."""

    cordoned: Mapping[str, str]  # nodes that we cordoned and that still are: host to the id of the action
    undone: Mapping[str, str] = field(default_factory=dict)  # those undone by hand, as far as nodes show it


class Nodes(Protocol):
    """The nodes of one orchestrator.

    All its methods raise `ServiceUnavailable` where that does not answer, and `ServiceRefused` where it refuses us.
    """

    def marked(self) -> Marked:
        """Return our marks, from the nodes themselves."""

    def obstacle(self, host: str) -> str | None:
        """Return why a node can't be cordoned by us: there is none of that name, or it was cordoned by others."""

    def cordon(self, one: Proposal) -> str | None:
        """Let no new work onto a node, and mark it as ours; return why not (no such node, cordoned by others)."""

    def release(self, host: str, why: str) -> str | None:
        """Give a node back, if it is still cordoned and the mark is still ours; returns as `cordon` does."""

    def accuse(self, accused: Mapping[str, Proposal]) -> None:
        """Let just these nodes show that they are suspected; does nothing where nodes can't show it."""


Done = tuple[str, str]


def done_of(host: str, action_id: str) -> Done:
    """Return the key of an action that was carried out: its host, and its incident as the id names it.

    The device is left out: a later revision may accuse another one of the host, whose node a person gave back.
    """
    return host, action_id.rpartition("-")[0]


class NodeErrors(dict[str, ServiceError]):
    """Errors of single nodes, by host: a node that can't be changed keeps no other from its turn."""

    @contextmanager
    def of(self, host: str) -> Iterator[None]:
        """Keep the error of a node."""
        try:
            yield
        except (ServiceUnavailable, ServiceRefused) as error:
            self[host] = error


# Seconds between two looks at the nodes without a new message: time to live runs out, and people change nodes
LOOK_S: Final = 60.0

AWAY_S: Final = 10.0  # seconds until an orchestrator that did not answer is asked again
END_S: Final = 60.0  # seconds in which somebody who acts once must have the topic to itself
_MOST_ERRORS: Final = 3  # nodes that can't be changed at one go; a command may take 20 s to fail
_POLL_S: Final = 0.5
_LIMIT: Final = "as many nodes as --most-nodes are cordoned by us already"
_WHY_LEFT: Final = {
    "improbable": "its probability is below --least-probability",
    "expired": "its time to live is over",
    "future": "it says a time that lies in the future",
    "unusable": "the host was not announced, or its name is no node's",
    "done": "it was done before, and undone by somebody",
}


@dataclass(slots=True)
class Actor:
    """One consumer: the incidents that it knows, and its actions."""

    nodes: Nodes
    limits: ActingLimits
    is_acting: bool  # False: it only prints what it would do
    say: Callable[[str], None]  # takes a line about each thing once
    now_ns: Callable[[], int] = time.time_ns
    _messages: dict[str, ActionsMessage] = field(default_factory=dict)
    _done: set[Done] = field(default_factory=set)
    _said: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)  # hosts whose nodes could not be changed the last time
    _trouble: str = ""  # why not all could be done the last time

    def apply(self, polled: Polled) -> bool:
        """Apply new messages; return whether the plan may change."""
        if polled.is_new_owner:
            self._messages.clear()
        for message in polled.messages:
            try:
                found = decode_actions(message.value())
            except RecordError as error:
                self._say_once(f"skipped    message at offset {message.offset()}: {error}")
                continue
            if newer(self._messages, found):
                self._messages[found.verdict_id] = found
        return polled.is_new_owner or bool(polled.messages)

    def try_to_act(self) -> bool:
        """Carry out the plan, or print once that the orchestrator is away; return whether it was there."""
        try:
            self.act()
        except ServiceUnavailable as error:
            line = f"waiting    {error}; asking every {AWAY_S:g} s"
            if self._trouble != str(error):  # where one node can't be changed, an outage is said all the same
                self.say(line)
            self._trouble = str(error)
            return False
        if self._trouble:
            self.say("going on   it answers again")
        self._trouble = ""
        return True

    def act(self) -> None:
        """Carry out the plan; a node that can't be changed keeps no other from its turn.

        Raises `ServiceUnavailable` if the orchestrator does not answer, or not for each node, and `ServiceRefused` if
        it refuses us: the next call does the rest.
        """
        marked = self.nodes.marked()
        # A person who gives a node back decides about all incidents that accuse it then.
        held = (one for one in standing_cordons(self._messages) if one.host in marked.cordoned)
        self._done |= {done_of(one.host, one.action.action_id) for one in held}
        done = self._done.union(done_of(*one) for one in marked.undone.items())
        plan = plan_nodes(self._messages, marked.cordoned, done, self.limits, self.now_ns())
        errors = NodeErrors()
        # Released first: `free` counts on the room that they leave.
        for host, why in plan.release.items():
            with errors.of(host):
                self._release(host, why)
        free = plan.free - len(errors)
        for proposal in plan.cordon:
            if len(errors) >= _MOST_ERRORS:  # each may have taken a minute: the rest have their turn next time
                break
            with errors.of(proposal.host):
                free -= self._cordon(proposal, is_free=free > 0)
            if proposal.host in errors:  # it may be cordoned all the same: the answer may have got lost
                free -= proposal.host in self.nodes.marked().cordoned
        for one, reason in plan.left:
            self._say_once(f"left       {one.host or '(no host)'}: {_WHY_LEFT[reason]}  [{one.message.verdict_id}]")
        for host in [host for host in errors if host not in self._failed]:
            self.say(f"left       {host}: {errors[host]}")
        self._failed = set(errors)
        if self.is_acting:
            self.nodes.accuse(plan.accused)
        if errors:
            raise ServiceUnavailable(f"all nodes of the plan must be changed; got errors of {', '.join(errors)}")

    def _cordon(self, one: Proposal, *, is_free: bool) -> bool:
        """Cordon a node, or print why not; return whether it counts against the limit."""
        obstacle = self.nodes.obstacle(one.host) if is_free else _LIMIT
        if obstacle is None and self.is_acting:
            obstacle = self.nodes.cordon(one)
        if obstacle is not None:
            self._say_once(f"left       {one.host}: {obstacle}  [{one.message.verdict_id}]")
            # A node that is not ours to cordon takes no place from those that are.
            return False
        if self.is_acting:
            self._done.add(done_of(one.host, one.action.action_id))
        hourly = one.action.gpu_hours_lost_per_hour
        cost = "" if hourly is None else f", {hourly:.3g} GPU-hours lost an hour"
        verb = "cordoned " if self.is_acting else "would cordon "
        self._say_once(f"{verb}  {one.host}: {one.action.reason}{cost}  [{one.message.verdict_id}]")
        return True

    def _release(self, host: str, why: str) -> None:
        if not self.is_acting:
            self._say_once(f"would release  {host}: {why}")
            return
        left = self.nodes.release(host, why)
        self._done = {one for one in self._done if one[0] != host}
        self._said = {line for line in self._said if f" {host}: " not in line}  # what happens to it now is news
        self.say(f"released   {host}: {why}" if left is None else f"left       {host}: {left}")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.say(line)


def run_actor(feed: ActionFeed, actor: Actor, *, is_ending: bool) -> None:
    """Act on the messages of the topic for ever, or, with `is_ending`, once on those that are there.

    An orchestrator that does not answer is asked again; one that refuses us ends it. Raises `ServiceRefused`,
    `ServiceUnavailable` if Kafka or the orchestrator refuses us; with `is_ending` also if the orchestrator does not
    answer, or another member of the group has the topic.
    """
    began_s, next_s = time.monotonic(), 0.0
    while True:
        polled = feed.poll(_POLL_S)
        if is_ending and not polled.is_current and time.monotonic() > began_s + END_S:
            raise ServiceUnavailable(f"the topic actions must be ours and read within {END_S:g} s; got less. Does "
                                     "another consumer of the same group act?")  # fmt: skip
        next_s = 0.0 if actor.apply(polled) else next_s
        # A plan made of a part of the messages might release a node that another one still accuses.
        if not polled.is_current or time.monotonic() < next_s:
            continue
        if is_ending:
            return actor.act()
        next_s = time.monotonic() + (LOOK_S if actor.try_to_act() else AWAY_S)


# Names that a node can have. A host is announced by a job: a Slurm that is given ``node-[0-99]`` drains a hundred.
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")

_EVERY_NODE: Final = "all"  # Slurm's word for all nodes, in any case: no node of ours

# How far a host's clock may run ahead of ours, ns. Evidence from further ahead proves nothing about now.
_SLACK_NS: Final = HOUR_NS // 12

Reason = Literal["improbable", "expired", "future", "unusable", "done"]


@dataclass(frozen=True, slots=True)
class ActingLimits:
    """How far a consumer goes by itself."""

    most_nodes: int = 1  # cordoned by us at the same time
    least_probability: float = 0.9  # below it an action is left to people; an action begun above it stays


@dataclass(frozen=True, slots=True)
class Proposal:
    """An action, and the incident that it belongs to."""

    message: ActionsMessage
    action: Action

    @property
    def host(self) -> str:
        """The host that it is about; empty where it was not announced."""
        return self.action.suspect.host or ""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The next steps on nodes."""

    cordon: tuple[Proposal, ...]  # to begin, up to `free` of them, the one that saves most first
    free: int  # nodes that may be cordoned by us beside those that are
    release: Mapping[str, str]  # nodes to give back, and why
    left: tuple[tuple[Proposal, Reason], ...]  # proposals that nothing is done about, and why
    accused: Mapping[str, Proposal]  # nodes with a proposal that is sure enough, whether or not it is begun


def standing_cordons(messages: Mapping[str, ActionsMessage]) -> list[Proposal]:
    """Return the cordons that the newest messages of all incidents propose."""
    return [
        Proposal(one, action)
        for one in messages.values()
        for action in one.actions
        if action.action == "cordon" and action.state == "proposed"
    ]


def plan_nodes(
    messages: Mapping[str, ActionsMessage], marks: Mapping[str, str], done: Collection[Done], limits: ActingLimits,
    now_ns: int,
) -> NodePlan:  # fmt: skip
    """Work out which nodes to cordon and to give back.

    `messages`: the newest of each incident, by verdict id; `marks`: nodes that we cordoned and that still are: host
    to the action's id; `done`: from `done_of`, of actions that were carried out, or undone by hand: none of the same
    incident and host is begun again.
    """
    standing = standing_cordons(messages)
    by_tag = {incident_tag(verdict_id): one for verdict_id, one in messages.items()}
    kept = {one.host for one in standing}
    # A host that another incident accuses as well stays cordoned.
    release = {host: why for host, mark in marks.items() if host not in kept and (why := _why_release(mark, by_tag))}
    judged = [(one, _why_left(one, done, limits, now_ns)) for one in standing if one.host not in marks]

    def worth(one: Proposal) -> tuple[float, str]:  # expected loss an hour, GPU-hours; then in the order of ids
        return (one.action.gpu_hours_lost_per_hour or 0.0) * one.action.suspect.probability, one.action.action_id

    ready = sorted((one for one, why in judged if why is None), key=worth, reverse=True)
    first_of_host: dict[str, Proposal] = {}
    for one in ready:
        first_of_host.setdefault(one.host, one)
    free = max(limits.most_nodes - len(marks) + len(release), 0)
    left = tuple((one, why) for one, why in judged if why is not None)
    accused = {
        one.host: one
        for one in standing
        if is_usable_host(one.host) and one.action.suspect.probability >= limits.least_probability
    }
    return NodePlan(tuple(first_of_host.values()), free, release, left, accused)


def _why_left(one: Proposal, done: Collection[Done], limits: ActingLimits, now_ns: int) -> Reason | None:
    if not is_usable_host(one.host):
        return "unusable"
    if done_of(one.host, one.action.action_id) in done:
        return "done"
    if one.action.suspect.probability < limits.least_probability:
        return "improbable"
    expires_at_ns = one.action.expires_at_ns
    if expires_at_ns is None or expires_at_ns < now_ns:  # nobody knows whether it is true still
        return "expired"
    return "future" if expires_at_ns > now_ns + TIME_TO_LIVE_NS["cordon"] + _SLACK_NS else None


def is_usable_host(host: str) -> bool:
    """Whether a host's name is that of one node, and no pattern of several.

    >>> is_usable_host("node-3.rack"), is_usable_host("node-[0-99]"), is_usable_host("ALL"), is_usable_host("a,b")
    (True, False, False, False)
    """
    return _HOST.fullmatch(host) is not None and host.lower() != _EVERY_NODE


def _why_release(action_id: str, by_tag: Mapping[str, ActionsMessage]) -> str | None:
    """Return why a node is given back; None: it is not, as no message of its incident is known."""
    message = next((one for tag, one in by_tag.items() if f"-{tag}-" in action_id), None)
    if message is None:
        return None
    reasons = [one.reason for one in message.actions if one.action_id == action_id]
    return reasons[0] if reasons else "its incident does not propose it any more"
