"""Checks of what we may do on the broker: which role's work, and what lacks to each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from irregulars.infra.doctor.checks.facts import GroupFacts, KafkaFacts
from irregulars.infra.doctor.checks.findings import Finding, finding, ok, unread
from irregulars.infra.doctor.checks.words import names
from irregulars.streams.kafka.access_roles import ROLES, Right, rights_of
from irregulars.streams.kafka.topics import TopicSettings

GROUP: Final = "rights"


def check_rights(seen: KafkaFacts, settings: TopicSettings, group: str, role: str | None) -> Iterator[Finding]:
    """Give what is found of our rights.

    Parameters
    ----------
    group
        Consumer group of the workers.
    role
        Whose work we are to do; None: whichever we may.
    """
    if not any(topic.operations is not None for topic in seen.topics.values()):
        is_empty = all(topic.error == "missing" for topic in seen.topics.values())
        reason = "no topic is there" if is_empty else "the broker does not say what we may do"
        yield unread(GROUP, "operations", reason)
        return
    lacking = {one: _lacking(seen, rights_of(one, settings, group)) for one in ROLES}
    may = [one for one in ROLES if not lacking[one]]
    if role is not None and lacking[role]:
        text = f"for {role} we lack: " + names(f"{one.operation} {one.kind} {one.name}" for one in lacking[role])
        yield finding("problem", GROUP, role, text, "right_missing", role=role)
    elif role is not None:
        yield ok(GROUP, role, "has every right that it needs")
    elif len(may) == len(ROLES):
        yield ok(GROUP, "roles", "we may do everything: no rights are asked for, or we are an administrator")
    elif may:
        yield ok(GROUP, "roles", f"we may work as {names(may)}")
    else:
        yield finding("problem", GROUP, "roles", _nearest(lacking), "no_role")


def _nearest(lacking: dict[str, list[Right]]) -> str:
    role, rights = min(lacking.items(), key=lambda one: len(one[1]))
    words = names(f"{one.operation} {one.kind} {one.name}" for one in rights)
    return f"we may not do the work of any role; nearest is {role}, which lacks: {words}"


def _lacking(seen: KafkaFacts, rights: tuple[Right, ...]) -> list[Right]:
    topics = {topic.name: topic for topic in seen.topics.values()}
    groups = {one.name: one for one in (seen.workers, seen.notify) if one is not None}
    found = []
    for right in rights:
        if right.kind == "topic":
            topic = topics.get(right.name)
            # Whoever may not describe a topic is not told of it; one that is missing for certain lacks no right.
            allowed = frozenset() if topic is None or topic.error == "refused" else topic.operations
            if topic is not None and topic.error == "missing":
                continue
        else:
            allowed = _operations(groups.get(right.name))
        if allowed is not None and right.operation not in allowed:
            found.append(right)
    return found


def _operations(group: GroupFacts | None) -> frozenset[str] | None:
    if group is None:
        return None  # not looked at: others' groups
    return frozenset() if group.error == "refused" else group.operations
