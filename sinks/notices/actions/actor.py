"""Carries out the proposals of the topic `actions` on the nodes of one orchestrator, and undoes those withdrawn.

All state is on the topic and on the nodes themselves: the plan (`node_plan`) is made of both, after each message and
once a minute. So a message may come twice,
and a consumer may die between any two steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from confluent_kafka import Message

from irregulars.errors import RecordError, ServiceUnavailable
from irregulars.sinks.notices.actions.actions import ActionsMessage, decode_actions, newer
from irregulars.sinks.notices.actions.feed import ActionFeed, Polled
from irregulars.sinks.notices.actions.node_plan import ActingLimits, Proposal, plan_nodes


@dataclass(frozen=True, slots=True)
class Marked:
    """Our marks on the nodes."""

    cordoned: Mapping[str, str]  # nodes that we cordoned and that still are: host to the id of the action
    undone: frozenset[str] = field(default_factory=frozenset)  # actions undone by hand, as far as nodes show it


class Nodes(Protocol):
    """The nodes of one orchestrator.

    All its methods raise `ServiceUnavailable` where that does not answer, and `ServiceRefused` where it refuses us.
    """

    def marked(self) -> Marked:
        """Return our marks, from the nodes themselves."""

    def obstacle(self, host: str) -> str | None:
        """Return why a node can't be cordoned by us: there is none of that name, or it was cordoned by others."""

    def cordon(self, one: Proposal) -> str | None:
        """Let no new work onto a node, and mark it as ours.

        Returns
        -------
        str
            Why nothing was done: no such node, or it was cordoned by others. None: it is done.
        """

    def release(self, host: str, why: str) -> str | None:
        """Give a node back, if it is still cordoned and the mark is still ours; returns as `cordon` does."""

    def accuse(self, accused: Mapping[str, Proposal]) -> None:
        """Let just these nodes show that they are suspected; does nothing where nodes can't show it."""


# Seconds between two looks at the nodes without a new message: time to live runs out, and people change nodes
LOOK_S: Final = 60.0

AWAY_S: Final = 10.0  # seconds until an orchestrator that did not answer is asked again
END_S: Final = 60.0  # seconds in which somebody who acts once must have the topic to itself
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
    _done: set[str] = field(default_factory=set)
    _said: set[str] = field(default_factory=set)
    _is_away: bool = False

    def apply(self, polled: Polled) -> bool:
        """Apply new messages; return whether the plan may change."""
        if polled.is_new_owner:
            self._messages.clear()
        for message in polled.messages:
            self._apply_message(message)
        return polled.is_new_owner or bool(polled.messages)

    def try_to_act(self) -> bool:
        """Carry out the plan, or say once that the orchestrator is away; return whether it was there."""
        try:
            self.act()
        except ServiceUnavailable as error:
            line = f"waiting    {error}; asking every {AWAY_S:g} s"
            if not self._is_away:
                self.say(line)
            self._is_away = True
            return False
        if self._is_away:
            self.say("going on   it answers again")
        self._is_away = False
        return True

    def act(self) -> None:
        """Carry out the plan.

        Raises `ServiceUnavailable`, `ServiceRefused` if the orchestrator does not answer, or refuses us: the next
        call does the rest.
        """
        marked = self.nodes.marked()
        plan = plan_nodes(self._messages, marked.cordoned, self._done | marked.undone, self.limits, self.now_ns())
        for host, why in plan.release.items():
            self._release(host, why, marked.cordoned[host])
        free = plan.free
        for proposal in plan.cordon:
            free -= self._cordon(proposal, is_free=free > 0)
        if self.is_acting:
            self.nodes.accuse(plan.accused)
        for one, reason in plan.left:
            self._say_once(f"left       {one.host or '(no host)'}: {_WHY_LEFT[reason]}  [{one.message.verdict_id}]")

    def _apply_message(self, message: Message) -> None:
        try:
            found = decode_actions(message.value())
        except RecordError as error:
            self._say_once(f"skipped    message at offset {message.offset()}: {error}")
            return
        if newer(self._messages, found):
            self._messages[found.verdict_id] = found

    def _cordon(self, one: Proposal, *, is_free: bool) -> bool:
        """Cordon a node, or say why not; return whether it counts against the limit."""
        obstacle = self.nodes.obstacle(one.host) if is_free else _LIMIT
        if obstacle is None and self.is_acting:
            obstacle = self.nodes.cordon(one)
        if obstacle is not None:
            self._say_once(f"left       {one.host}: {obstacle}  [{one.message.verdict_id}]")
            return False
        if self.is_acting:
            self._done.add(one.action.action_id)
        hourly = one.action.gpu_hours_lost_per_hour
        cost = "" if hourly is None else f", {hourly:.3g} GPU-hours lost an hour"
        verb = "cordoned " if self.is_acting else "would cordon "
        self._say_once(f"{verb}  {one.host}: {one.action.reason}{cost}  [{one.message.verdict_id}]")
        return True

    def _release(self, host: str, why: str, action_id: str) -> None:
        if not self.is_acting:
            self._say_once(f"would release  {host}: {why}")
            return
        left = self.nodes.release(host, why)
        self._done.discard(action_id)
        self._said = {line for line in self._said if f" {host}: " not in line}  # what happens to it now is news
        self.say(f"released   {host}: {why}" if left is None else f"left       {host}: {left}")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.say(line)


def run_actor(feed: ActionFeed, actor: Actor, *, is_ending: bool) -> None:
    """Act on the messages of the topic for ever, or, with `is_ending`, once on those that are there.

    An orchestrator that does not answer is asked again; one that refuses us ends it. Raises `ServiceRefused`,
    `ServiceUnavailable` if Kafka or the orchestrator refuses us. With `is_ending` also if the orchestrator does not
    answer, or if another member of the group has the topic.
    """
    began_s, next_s = time.monotonic(), 0.0
    while True:
        polled = feed.poll(_POLL_S)
        if is_ending and not polled.is_current and time.monotonic() > began_s + END_S:
            raise ServiceUnavailable(f"the topic actions must be ours and read within {END_S:g} s; got less. Does "
                                     "another consumer of the same group act?")  # fmt: skip
        next_s = 0.0 if actor.apply(polled) else next_s
        if not polled.is_current or time.monotonic() < next_s:
            continue
        if is_ending:
            return actor.act()
        next_s = time.monotonic() + (LOOK_S if actor.try_to_act() else AWAY_S)
