"""Checks of what we may do on the broker: which role's work, and what lacks to each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from irregulars.infra.doctor.checks.facts import GroupFacts, KafkaFacts
from irregulars.infra.doctor.checks.findings import Finding, finding, ok, unread
from irregulars.infra.doctor.checks.question import Question
from irregulars.infra.doctor.checks.words import names
from irregulars.kafka.access_roles import ROLES, Right, rights_of
from irregulars.kafka.topics import TopicSettings

GROUP: Final = "rights"


def check_rights(
    seen: KafkaFacts, settings: TopicSettings, question: Question, user: str | None = None
) -> Iterator[Finding]:
    """Give what is found of our rights; `user` is how we log in, where that is by a name."""
    if not any(topic.operations is not None or topic.error == "refused" for topic in seen.topics.values()):
        is_empty = all(topic.error == "missing" for topic in seen.topics.values())
        reason = "no topic is there" if is_empty else "the broker does not say what we may do"
        yield unread(GROUP, "operations", reason)
        return
    lacking = {one: _lacking(seen, rights_of(one, settings, question.group)) for one in ROLES}
    who = f"User:{user or 'NAME'}"
    if question.role is None:
        yield _roles(lacking, who)
    elif lacking[question.role]:
        text = f"for {question.role} we lack: {_words(lacking[question.role])}"
        yield finding("problem", GROUP, question.role, text, "right_missing", role=question.role, who=who)
    else:
        yield ok(GROUP, question.role, "has every right that it needs")


def _roles(lacking: dict[str, list[Right]], who: str) -> Finding:
    may = [role for role, rights in lacking.items() if not rights]
    if len(may) == len(ROLES):
        return ok(GROUP, "roles", "we may do everything: no rights are asked for, or we are an administrator")
    if may:
        return ok(GROUP, "roles", f"we may work as {names(may)}")
    role, rights = min(lacking.items(), key=lambda one: len(one[1]))
    text = f"we may not do the work of any role; nearest is {role}, which lacks: {_words(rights)}"
    return finding("problem", GROUP, "roles", text, "no_role", who=who)


def _words(rights: Sequence[Right]) -> str:
    return names(f"{one.operation} {one.kind} {one.name}" for one in rights)


def _lacking(seen: KafkaFacts, rights: tuple[Right, ...]) -> list[Right]:
    topics = {topic.name: topic for topic in seen.topics.values()}
    groups = {one.name: one for one in (seen.workers, seen.notify, *seen.others) if one is not None}
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
        return None  # not looked at: a group of a role that nobody asks for
    return frozenset() if group.error == "refused" else group.operations
