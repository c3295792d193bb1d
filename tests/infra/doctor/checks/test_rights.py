from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.infra.doctor.checks.facts import GroupFacts, KafkaFacts
from irregulars.infra.doctor.checks.question import Question
from irregulars.infra.doctor.checks.rights import check_rights
from irregulars.kafka.access_roles import ROLES, rights_of
from irregulars.kafka.topics import TOPICS
from tests.infra.doctor.installations import LAYOUT, kafka, topic, troubles


def with_rights_of(role: str) -> KafkaFacts:
    rights = rights_of(role, LAYOUT, "irregulars")
    may = {name: frozenset(one.operation for one in rights if one.name == LAYOUT.name(name)) for name in TOPICS}
    topics = {name: topic(name, operations=own) if own else topic(name, error="refused", operations=None)
              for name, own in may.items()}  # fmt: skip
    groups = {one.name: one.operation for one in rights if one.kind == "group"}
    seen = kafka(topics=topics)
    for field, name in (("workers", "irregulars"), ("notify", "irregulars.notify")):
        allowed = frozenset({groups[name]}) if name in groups else None
        seen = replace(seen, **{field: GroupFacts(name, None if allowed else "refused", operations=allowed)})
    return seen


@pytest.mark.parametrize("role", ROLES)
def test_each_role_is_known_by_its_rights(role: str) -> None:
    (one,) = check_rights(with_rights_of(role), LAYOUT, Question())
    assert one.level == "ok"
    assert role in one.text
    assert troubles(check_rights(with_rights_of(role), LAYOUT, Question(role=role))) == []


def test_what_lacks_for_a_role_is_named() -> None:
    (one,) = check_rights(with_rights_of("reader"), LAYOUT, Question(role="agent"), "node")
    assert (one.level, one.code) == ("problem", "right_missing")
    assert one.to_do == "By an administrator: irregulars topics grant agent User:node"
    assert "write topic irregulars.bandwidth" in one.text


def test_who_may_everything_has_every_role() -> None:
    (one,) = check_rights(kafka(), LAYOUT, Question())
    assert "everything" in one.text


def test_rights_for_nothing_are_a_problem_and_silence_is_not_known() -> None:
    half = kafka(topics={name: topic(name, operations=frozenset({"describe"})) for name in TOPICS if name != "jobs"}
                 | {"jobs": topic("jobs", operations=frozenset())})  # fmt: skip
    assert troubles(check_rights(half, LAYOUT, Question())) == [("problem", "no_role")]
    silent = kafka(topics={name: topic(name, operations=None) for name in TOPICS})
    assert troubles(check_rights(silent, LAYOUT, Question())) == [("unknown", "not_read")]
    hidden = kafka(topics={name: topic(name, error="refused", operations=None) for name in TOPICS})
    assert troubles(check_rights(hidden, LAYOUT, Question())) == [("problem", "no_role")]


def test_a_group_of_the_role_that_is_hidden_is_a_right_that_lacks() -> None:
    group = "irregulars-alerts"
    seen = replace(with_rights_of("reader"), others=(GroupFacts(group, "refused"),))
    (one,) = check_rights(seen, LAYOUT, Question(role="reader"))
    assert one.text == f"for reader we lack: describe group {group}"
