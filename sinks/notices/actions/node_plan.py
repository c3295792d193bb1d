"""Nodes to cordon and to give back, from the proposals and from the marks that we left on nodes.

It is worked out anew from all that is known, whatever happened before: a consumer that was killed in between, or that
reads a message twice, comes to the same. It knows nothing of Kubernetes or Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from irregulars.sinks.notices.actions.actions import HOUR_NS, TIME_TO_LIVE_NS, Action, ActionsMessage, incident_tag

# What a node can be called. A host is announced by a job: a Slurm that is given ``node-[0-99]`` drains a hundred.
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


def plan_nodes(
    messages: Mapping[str, ActionsMessage],
    marks: Mapping[str, str],
    done: Collection[str],
    limits: ActingLimits,
    now_ns: int,
) -> NodePlan:
    """Work out which nodes to cordon and to give back.

    Parameters
    ----------
    messages
        The newest message of each incident, by verdict id.
    marks
        Nodes that we cordoned and that still are: host to the action's id.
    done
        Ids of actions that were carried out, or undone by hand: they are not begun again.
    """
    standing = [
        Proposal(one, action)
        for one in messages.values()
        for action in one.actions
        if action.action == "cordon" and action.state == "proposed"
    ]
    by_tag = {incident_tag(verdict_id): one for verdict_id, one in messages.items()}
    kept = {one.host for one in standing}
    release = {host: why for host, mark in marks.items() if host not in kept and (why := _why_release(mark, by_tag))}
    judged = [(one, _why_left(one, done, limits, now_ns)) for one in standing if one.host not in marks]
    ready = sorted((one for one, why in judged if why is None), key=_worth, reverse=True)
    first_of_host: dict[str, Proposal] = {}
    for one in ready:
        first_of_host.setdefault(one.host, one)
    free = max(limits.most_nodes - len(marks) + len(release), 0)
    left = tuple((one, why) for one, why in judged if why is not None)
    accused = {
        one.host: one
        for one in standing
        if (is_usable_host(one.host) and one.action.suspect.probability >= limits.least_probability)
    }
    return NodePlan(tuple(first_of_host.values()), free, release, left, accused)


def _why_left(one: Proposal, done: Collection[str], limits: ActingLimits, now_ns: int) -> Reason | None:
    if not is_usable_host(one.host):
        return "unusable"
    if one.action.action_id in done:
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


def _worth(one: Proposal) -> tuple[float, str]:
    """Return the expected loss an hour, GPU-hours; equal ones in the order of their ids."""
    return (one.action.gpu_hours_lost_per_hour or 0.0) * one.action.suspect.probability, one.action.action_id
