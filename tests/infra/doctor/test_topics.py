from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from irregulars.infra.doctor.facts import GroupFacts, KafkaFacts, TopicFacts
from irregulars.infra.doctor.findings import Question
from irregulars.infra.doctor.topics import check_rights, check_topics
from irregulars.kafka.access_roles import ROLES, rights_of
from irregulars.kafka.topics import TOPICS
from tests.infra.doctor.installations import LAYOUT, kafka, topic, troubles


def found(**topics: TopicFacts) -> list[Any]:
    return list(check_topics(kafka(topics=topics), LAYOUT, 30.0))


def changed(name: str, **config: str | None) -> TopicFacts:
    before = topic(name)
    wanted = {**before.config, **{key.replace("_", "."): value for key, value in config.items()}}  # type: ignore[dict-item]
    return replace(before, config={key: value for key, value in wanted.items() if value is not None})


@pytest.mark.parametrize(("broken", "expected"), [
    ({}, []),
    ({"commops": topic("commops", error="missing")}, [("problem", "topic_missing")]),
    ({"mutes": topic("mutes", error="missing")}, [("warning", "topic_missing")]),
    ({"alerts": topic("alerts", error="refused")}, [("unknown", "topic_hidden")]),
    ({"alerts": topic("alerts", error="timed out")}, [("unknown", "not_read")]),
    ({"commops": topic("commops", partitions=8)}, [("problem", "partitions_differ")]),
    ({"alerts": topic("alerts", partitions=3)}, [("warning", "partitions_many")]),
    ({"jobs": topic("jobs", leaderless=(1, 2))}, [("problem", "no_leader")]),
    ({"jobs": topic("jobs", behind=(3,))}, [("warning", "under_replicated")]),
    ({"jobs": topic("jobs", replicas=1)}, [("warning", "one_copy")]),
    ({"jobs": changed("jobs", min_insync_replicas="1")}, [("warning", "min_insync")]),
    ({"jobs": changed("jobs", min_insync_replicas="3")}, [("warning", "min_insync")]),
    ({"jobs": changed("jobs", cleanup_policy="delete")}, [("problem", "topic_config")]),
    ({"commops": changed("commops", cleanup_policy="compact")}, [("problem", "topic_config")]),
    ({"commops": changed("commops", retention_ms="3600000")}, [("warning", "topic_config")]),
    ({"commops": changed("commops", retention_ms="60000")}, [("problem", "topic_config")]),
    ({"commops": changed("commops", retention_bytes="1000000")}, [("warning", "topic_config")]),
    ({"commops": changed("commops", max_message_bytes="100000")}, [("problem", "topic_config")]),
    ({"job_snapshots": changed("job_snapshots", segment_ms="604800000")}, [("warning", "snapshot_cleaning")]),
    ({"jobs": topic("jobs", config=None)}, [("unknown", "not_read")]),
])  # fmt: skip
def test_each_fault_gives_the_one_finding(broken: dict[str, TopicFacts], expected: list[tuple[str, str]]) -> None:
    assert troubles(found(**broken)) == expected


def test_of_an_empty_broker_it_says_that_all_are_missing_and_what_to_do_names_topic_and_configuration() -> None:
    missing = {name: topic(name, error="missing") for name in TOPICS}
    assert troubles(found(**missing)) == [("problem", "topic_missing"), ("warning", "topic_missing")]
    (one,) = [one for one in found(commops=changed("commops", retention_ms="60000")) if one.level != "ok"]
    assert "--topic irregulars.commops --add-config retention.ms=172800000" in one.to_do


def of_role(role: str, **topics: TopicFacts) -> list[tuple[str, str]]:
    return troubles(check_topics(kafka(topics=topics), LAYOUT, 30.0, Question(role=role)))


def test_of_a_role_only_the_topics_that_it_needs_are_judged() -> None:
    hidden = {name: topic(name, error="refused") for name in TOPICS}
    for role in ROLES:
        needed = {one.name for one in rights_of(role, LAYOUT, "irregulars")}
        seen = hidden | {name: topic(name, config=None) for name in TOPICS if LAYOUT.name(name) in needed}
        assert of_role(role, **seen) == ([("unknown", "not_read")] if role == "admin" else [])
    assert of_role("reader", actions=topic("actions", error="missing")) == [("problem", "topic_missing")]
    assert of_role("reader", mutes=topic("mutes", error="missing")) == []
    assert of_role("reader", actions=topic("actions", error="refused")) == [("unknown", "topic_hidden")]


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


def test_rights_and_groups_that_a_role_lacks_are_named() -> None:
    (one,) = check_rights(with_rights_of("reader"), LAYOUT, Question(role="agent"), "node")
    assert (one.level, one.code) == ("problem", "right_missing")
    assert one.to_do == "By an administrator: irregulars topics grant agent User:node"
    assert "write topic irregulars.bandwidth" in one.text
    group = "irregulars-alerts"
    seen = replace(with_rights_of("reader"), others=(GroupFacts(group, "refused"),))
    (one,) = check_rights(seen, LAYOUT, Question(role="reader"))
    assert one.text == f"for reader we lack: describe group {group}"


def test_rights_for_all_are_every_role_rights_for_nothing_are_a_problem_and_silence_is_not_known() -> None:
    (one,) = check_rights(kafka(), LAYOUT, Question())
    assert "everything" in one.text
    half = kafka(topics={name: topic(name, operations=frozenset({"describe"})) for name in TOPICS if name != "jobs"}
                 | {"jobs": topic("jobs", operations=frozenset())})  # fmt: skip
    assert troubles(check_rights(half, LAYOUT, Question())) == [("problem", "no_role")]
    silent = kafka(topics={name: topic(name, operations=None) for name in TOPICS})
    assert troubles(check_rights(silent, LAYOUT, Question())) == [("unknown", "not_read")]
    hidden = kafka(topics={name: topic(name, error="refused", operations=None) for name in TOPICS})
    assert troubles(check_rights(hidden, LAYOUT, Question())) == [("problem", "no_role")]
