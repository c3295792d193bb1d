from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from irregulars.infra.doctor.facts import GroupFacts, KafkaFacts, Progress, WorkerPage
from irregulars.infra.doctor.workers import check_workers, waiting_messages
from tests.infra.doctor.installations import NOW_S, RELEASE, kafka, topic, troubles

POSITIONS = dict.fromkeys(("jobs", "commops", "iterations", "bandwidth", "gpu_health", "events", "heartbeats"), 10)


def found(seen: KafkaFacts) -> list[tuple[str, str]]:
    return troubles(check_workers(seen, RELEASE))


def progress(ages_s: list[float], release: str | None = RELEASE, **positions: int) -> dict[int, Progress]:
    return {number: Progress(NOW_S - age_s, POSITIONS | positions, release) for number, age_s in enumerate(ages_s)}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (kafka(), []),
        (kafka(workers=GroupFacts("irregulars")), [("problem", "no_worker")]),
        (kafka(workers=GroupFacts("irregulars", is_stable=True), stream={"progress": {}}), []),
        (kafka(workers=GroupFacts("irregulars", is_settling=True), stream={"progress": {}}), []),
        (kafka(workers=GroupFacts("irregulars", "refused")), [("unknown", "not_read")]),
        (
            kafka(workers=GroupFacts("irregulars", "refused"), stream={"progress": progress([90.0] * 4)}),
            [("unknown", "not_read"), ("problem", "no_worker")],
        ),
        (kafka(stream={"progress": progress([1.0, 1.0, 99.0])}), [("problem", "partitions_unread")]),
        (kafka(stream={"waiting_s": {("commops", 2): NOW_S - 10}}), []),
        (kafka(stream={"waiting_s": {("commops", 2): NOW_S - 100}}), [("warning", "behind")]),
        (kafka(stream={"waiting_s": {("commops", 2): NOW_S - 1000}}), [("problem", "behind")]),
        (kafka(stream={"waiting_s": {("evidence", 2): NOW_S - 1000}}), [("problem", "judging_behind")]),
        (kafka(stream={"unread": {"progress": "we may not"}}), [("unknown", "not_read")]),
        (kafka(stream={"progress": progress([1.0] * 4, "0.0.9")}), [("warning", "releases_differ")]),
        (kafka(topics={"progress": topic("progress", error="missing")}), [("unknown", "topics_first")]),
        (kafka(page=WorkerPage("http://127.0.0.1:1", RELEASE, "irregulars", "stuck")), [("problem", "worker_stuck")]),
        (kafka(page=WorkerPage("x", RELEASE, "irregulars", None, "starts")), [("warning", "worker_not_ready")]),
        (
            kafka(page=WorkerPage("x", RELEASE, "irregulars", notes="judging job 'j' for 12 s")),
            [("warning", "judgement_slow")],
        ),
        (kafka(page=WorkerPage("x", RELEASE, "irregulars", unstored_s=11.0, unstored_ratio=0.01)), []),
        (
            kafka(page=WorkerPage("x", RELEASE, "irregulars", unstored_s=61.0, unstored_ratio=0.02)),
            [("problem", "not_stored")],
        ),
        (kafka(page=WorkerPage("x", RELEASE, "of another installation", "stuck")), []),
    ],
)
def test_what_is_found_of_workers(seen: KafkaFacts, expected: list[tuple[str, str]]) -> None:
    assert found(seen) == expected


def test_what_waits_is_counted_from_where_workers_are_and_where_the_log_begins() -> None:
    read_to_8: dict[str, Any] = {"progress": progress([1.0] * 4, commops=8)}
    assert waiting_messages(kafka(stream=read_to_8)) == {"commops": 4 * 2}
    cut = topic("commops", begins=dict.fromkeys(range(4), 9))
    assert waiting_messages(kafka(topics={"commops": cut}, stream=read_to_8)) == {"commops": 4}


def test_while_the_group_settles_no_partition_counts_as_unread() -> None:
    seen = kafka(stream={"progress": progress([1.0, 99.0, 1.0, 1.0])})
    assert seen.workers is not None
    assert found(replace(seen, workers=replace(seen.workers, is_settling=True))) == []


def test_that_nobody_reads_is_told_with_what_waits_and_since_when() -> None:
    seen = kafka(workers=GroupFacts("irregulars"), stream={"progress": progress([200.0] * 4, commops=0)})
    (one,) = [one for one in check_workers(seen, RELEASE) if one.level == "problem"]
    assert "the last one was heard 3 min ago; 40 messages wait" in one.text
