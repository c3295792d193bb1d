from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from irregulars.infra.doctor.checks.facts import TopicFacts
from irregulars.infra.doctor.checks.question import Question
from irregulars.infra.doctor.checks.topics import check_topics
from irregulars.kafka.access_roles import ROLES, rights_of
from irregulars.kafka.topics import TOPICS
from tests.infra.doctor.installations import LAYOUT, kafka, topic, troubles


def found(**topics: TopicFacts) -> list[Any]:
    return list(check_topics(kafka(topics=topics), LAYOUT, 30.0))


def changed(name: str, **config: str | None) -> TopicFacts:
    before = topic(name)
    wanted = {**before.config, **{key.replace("_", "."): value for key, value in config.items()}}  # type: ignore[dict-item]
    return replace(before, config={key: value for key, value in wanted.items() if value is not None})


def test_topics_as_they_are_made_are_well() -> None:
    assert troubles(found()) == []


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"commops": topic("commops", error="missing")}, [("problem", "topic_missing")]),
        ({"mutes": topic("mutes", error="missing")}, [("warning", "topic_missing")]),
        ({"alerts": topic("alerts", error="refused")}, [("unknown", "topic_hidden")]),
        ({"alerts": topic("alerts", error="timed out")}, [("unknown", "not_read")]),
        ({"commops": topic("commops", partitions=8)}, [("problem", "partitions_differ")]),
        ({"evidence": topic("evidence", partitions=8)}, [("problem", "partitions_differ")]),
        ({"alerts": topic("alerts", partitions=3)}, [("warning", "partitions_many")]),
        ({"thresholds": topic("thresholds", partitions=3)}, [("warning", "partitions_many")]),
        ({"jobs": topic("jobs", leaderless=(1, 2))}, [("problem", "no_leader")]),
        ({"jobs": topic("jobs", behind=(3,))}, [("warning", "under_replicated")]),
        ({"jobs": topic("jobs", replicas=1)}, [("warning", "one_copy")]),
        ({"jobs": changed("jobs", min_insync_replicas="1")}, [("warning", "min_insync")]),
        ({"jobs": changed("jobs", min_insync_replicas="3")}, [("warning", "min_insync")]),
        ({"jobs": changed("jobs", cleanup_policy="delete")}, [("problem", "topic_config")]),
        ({"jobs": changed("jobs", cleanup_policy="compact,delete")}, [("problem", "topic_config")]),
        ({"commops": changed("commops", cleanup_policy="compact")}, [("problem", "topic_config")]),
        ({"commops": changed("commops", retention_ms="3600000")}, [("warning", "topic_config")]),
        ({"commops": changed("commops", retention_ms="60000")}, [("problem", "topic_config")]),
        ({"commops": changed("commops", retention_ms="-1")}, []),
        ({"commops": changed("commops", retention_bytes="1000000")}, [("warning", "topic_config")]),
        ({"commops": changed("commops", max_message_bytes="100000")}, [("problem", "topic_config")]),
        ({"job_snapshots": changed("job_snapshots", segment_ms="604800000")}, [("warning", "snapshot_cleaning")]),
        ({"jobs": topic("jobs", config=None)}, [("unknown", "not_read")]),
    ],
)
def test_each_fault_gives_the_one_finding(broken: dict[str, TopicFacts], expected: list[tuple[str, str]]) -> None:
    assert troubles(found(**broken)) == expected


def test_of_an_empty_broker_it_says_only_that_all_are_missing() -> None:
    missing = {name: topic(name, error="missing") for name in TOPICS}
    assert troubles(found(**missing)) == [("problem", "topic_missing"), ("warning", "topic_missing")]


def of_role(role: str, **topics: TopicFacts) -> list[tuple[str, str]]:
    return troubles(check_topics(kafka(topics=topics), LAYOUT, 30.0, Question(role=role)))


def test_of_a_role_only_the_topics_that_it_needs_are_judged() -> None:
    hidden = {name: topic(name, error="refused") for name in TOPICS}
    for role in ROLES:
        needed = {one.name for one in rights_of(role, LAYOUT, "irregulars")}
        seen = hidden | {name: topic(name, config=None) for name in TOPICS if LAYOUT.name(name) in needed}
        assert of_role(role, **seen) == ([("unknown", "not_read")] if role == "admin" else [])


def test_what_a_role_needs_and_is_missing_for_certain_is_a_problem_and_what_is_hidden_a_note() -> None:
    assert of_role("reader", actions=topic("actions", error="missing")) == [("problem", "topic_missing")]
    assert of_role("reader", mutes=topic("mutes", error="missing")) == []
    assert of_role("reader", actions=topic("actions", error="refused")) == [("unknown", "topic_hidden")]


def test_what_to_do_names_topic_and_configuration() -> None:
    (one,) = [one for one in found(commops=changed("commops", retention_ms="60000")) if one.level != "ok"]
    assert "--topic irregulars.commops --add-config retention.ms=172800000" in one.to_do
