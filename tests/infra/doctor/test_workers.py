from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from irregulars.infra.doctor.facts import GroupFacts, KafkaFacts, Letter, Progress, WorkerPage
from irregulars.infra.doctor.workers import check_alerts, check_jobs, check_workers, waiting_messages
from irregulars.kafka.topics import partition_of
from tests.infra.doctor.installations import LAYOUT, NOW_S, RELEASE, job, kafka, topic, troubles

POSITIONS = dict.fromkeys(("jobs", "commops", "iterations", "bandwidth", "gpu_health", "events", "heartbeats"), 10)


def found(seen: KafkaFacts) -> list[tuple[str, str]]:
    return troubles(check_workers(seen, RELEASE))


def progress(ages_s: list[float], release: str | None = RELEASE, **positions: int) -> dict[int, Progress]:
    return {number: Progress(NOW_S - age_s, POSITIONS | positions, release) for number, age_s in enumerate(ages_s)}


@pytest.mark.parametrize(("seen", "expected"), [
    (kafka(), []),
    (kafka(workers=GroupFacts("irregulars")), [("problem", "no_worker")]),
    (kafka(workers=GroupFacts("irregulars", is_stable=True), stream={"progress": {}}), []),
    (kafka(workers=GroupFacts("irregulars", is_settling=True), stream={"progress": {}}), []),
    (kafka(workers=GroupFacts("irregulars", "refused")), [("unknown", "not_read")]),
    (kafka(workers=GroupFacts("irregulars", "refused"), stream={"progress": progress([90.0] * 4)}),
     [("unknown", "not_read"), ("problem", "no_worker")]),
    (kafka(stream={"progress": progress([1.0, 1.0, 99.0])}), [("problem", "partitions_unread")]),
    (kafka(stream={"waiting_s": {("commops", 2): NOW_S - 10}}), []),
    (kafka(stream={"waiting_s": {("commops", 2): NOW_S - 100}}), [("warning", "behind")]),
    (kafka(stream={"waiting_s": {("commops", 2): NOW_S - 1000}}), [("problem", "behind")]),
    (kafka(stream={"waiting_s": {("evidence", 2): NOW_S - 1000}}), [("problem", "judging_behind")]),
    (  # it stands still, and its thread keeps its place in the group
        kafka(
            stream={"waiting_s": {("commops", 2): NOW_S - 1000}, "progress": progress([1000.0] * 4, commops=8)}
        ),
        [("problem", "behind")],
    ),
    (kafka(stream={"unread": {"progress": "we may not"}}), [("unknown", "not_read")]),
    (kafka(stream={"progress": progress([1.0] * 4, "0.0.9")}), [("warning", "releases_differ")]),
    (kafka(topics={"progress": topic("progress", error="missing")}), [("unknown", "topics_first")]),
    (kafka(page=WorkerPage("http://127.0.0.1:1", RELEASE, "irregulars", "stuck")), [("problem", "worker_stuck")]),
    (kafka(page=WorkerPage("x", RELEASE, "irregulars", None, "starts")), [("warning", "worker_not_ready")]),
    (kafka(page=WorkerPage("x", RELEASE, "irregulars", notes="judging job 'j' for 12 s")),
     [("warning", "judgement_slow")]),
    (kafka(page=WorkerPage("x", RELEASE, "irregulars", unstored_s=11.0, unstored_ratio=0.01)), []),
    (kafka(page=WorkerPage("x", RELEASE, "irregulars", unstored_s=61.0, unstored_ratio=0.02)),
     [("problem", "not_stored")]),
    (kafka(page=WorkerPage("x", RELEASE, "of another installation", "stuck")), []),
])  # fmt: skip
def test_what_is_found_of_workers(seen: KafkaFacts, expected: list[tuple[str, str]]) -> None:
    assert found(seen) == expected


def test_what_waits_is_counted_from_where_workers_are_and_where_the_log_begins() -> None:
    read_to_8: dict[str, Any] = {"progress": progress([1.0] * 4, commops=8)}
    assert waiting_messages(kafka(stream=read_to_8)) == {"commops": 4 * 2}
    cut = topic("commops", begins=dict.fromkeys(range(4), 9))
    assert waiting_messages(kafka(topics={"commops": cut}, stream=read_to_8)) == {"commops": 4}


def test_while_the_group_settles_nothing_is_unread_and_where_nobody_reads_it_says_what_waits() -> None:
    seen = kafka(stream={"progress": progress([1.0, 99.0, 1.0, 1.0])})
    assert seen.workers is not None
    assert found(replace(seen, workers=replace(seen.workers, is_settling=True))) == []
    seen = kafka(workers=GroupFacts("irregulars"), stream={"progress": progress([200.0] * 4, commops=0)})
    (one,) = [one for one in check_workers(seen, RELEASE) if one.level == "problem"]
    assert "the last one was heard 3 min ago; 40 messages wait" in one.text


LETTERS = tuple(Letter(NOW_S - 5, "schema must be 'commops'", "irregulars.commops") for _ in range(20))
FLOWING = {"ends": {0: 40}, "since": {0: 20}}


def of_job(**others: object) -> KafkaFacts:
    return kafka(stream={"jobs": (job(**others),)})


@pytest.mark.parametrize(("seen", "expected"), [
    (kafka(), []),
    (kafka(stream={"jobs": ()}), []),
    (of_job(ended=frozenset(range(4)), heard_s={}, evidence_s=None), []),
    (of_job(announced=frozenset({0, 1, 2})), [("problem", "not_announced")]),
    (of_job(announced=frozenset({0, 1, 2}), announced_s=NOW_S - 5), []),
    (of_job(heard_s={0: NOW_S - 1, 1: NOW_S - 1, 2: NOW_S - 200, 3: NOW_S - 1}), [("problem", "ranks_silent")]),
    (of_job(heard_s=dict.fromkeys(range(4), NOW_S - 200), evidence_s=NOW_S - 250), [("warning", "job_silent")]),
    (of_job(lost_rows={"commops": 12}), [("warning", "rows_lost")]),
    (of_job(evidence_s=NOW_S - 500), [("problem", "none_closes")]),
    (of_job(evidence_s=None, announced_s=NOW_S - 200), [("warning", "none_closes")]),
    (of_job(evidence_s=None, announced_s=NOW_S - 60), []),
    (of_job(evidence_s=None, without_marks=frozenset(range(4))), [("problem", "no_marks")]),
    (of_job(unsampled=frozenset(range(4))), [("warning", "no_samples")]),
    (of_job(unsampled=frozenset({2})), [("warning", "no_samples")]),
    (of_job(contradicts="host"), [("problem", "job_contradicts")]),
    (of_job(beside=frozenset({"node-9"})), [("problem", "two_jobs")]),
    (kafka(stream={"host_clocks_s": {"node-0": 5.0}}), [("warning", "clock_off")]),
    (kafka(stream={"unread": {"heartbeats": "we may not"}}), [("unknown", "not_read")]),
    (kafka(topics={"jobs": topic("jobs", error="missing")}), [("unknown", "topics_first")]),
    (kafka(topics={"deadletter": topic("deadletter", **FLOWING)}, stream={"letters": LETTERS[:1]}),
     [("problem", "all_refused")]),
    (kafka(topics={"deadletter": topic("deadletter", ends={0: 21}, since={0: 20})}, stream={"letters": LETTERS}),
     [("warning", "dead_letters")]),
    (kafka(topics={"deadletter": topic("deadletter", ends={0: 21}, since={0: 21})},
           stream={"letters": (Letter(NOW_S - 5000, "old", "irregulars.commops"),)}), []),
])  # fmt: skip
def test_what_is_found_of_jobs(seen: KafkaFacts, expected: list[tuple[str, str]]) -> None:
    assert troubles(check_jobs(seen, 30.0)) == expected


def test_silent_ranks_are_named_with_their_hosts() -> None:
    heard_s = {0: NOW_S - 1, 1: NOW_S - 1, 2: NOW_S - 240, 3: NOW_S - 250}
    (one,) = [one for one in check_jobs(of_job(heard_s=heard_s), 30.0) if one.level == "problem"]
    assert one.subject == "job llama"
    assert one.text == "2 of 4 ranks silent for 4 min: 2, 3 on node-1"


def test_that_no_iteration_closes_is_told_only_where_workers_read_and_the_job_s_evidence_was() -> None:
    own = partition_of(b"llama", LAYOUT.partitions)
    for cut, expected in (({own}, []), ({(own + 1) % LAYOUT.partitions}, [("problem", "none_closes")])):
        seen = kafka(stream={"jobs": (job(evidence_s=None),), "cut_evidence": frozenset(cut)})
        assert troubles(check_jobs(seen, 30.0)) == expected
    seen = kafka(stream={"jobs": (job(evidence_s=None),), "progress": {}})
    assert troubles(check_jobs(seen, 30.0)) == []


GROUP = "irregulars.notify"
READ_TO_7 = {(LAYOUT.name("alerts"), 0): 7}


@pytest.mark.parametrize(("seen", "expected"), [
    (kafka(), []),
    (kafka(notify=GroupFacts(GROUP)), []),
    (kafka(notify=GroupFacts(GROUP, committed=READ_TO_7)), [("problem", "notify_stopped")]),
    (kafka(notify=GroupFacts(GROUP, is_settling=True, committed=READ_TO_7)), []),
    (kafka(notify=GroupFacts(GROUP, is_stable=True, committed=READ_TO_7)), []),
    (kafka(notify=GroupFacts(GROUP, "refused")), [("unknown", "not_read")]),
    (kafka(stream={"troubled": {"pager": "has not answered for 9 min"}}), [("warning", "channel_fails")]),
    (kafka(stream={"letters": (Letter(NOW_S, "status 400", "", "pager"),)}), [("warning", "channel_fails")]),
    (kafka(stream={"unread": {"mutes": "we may not"}}), [("unknown", "not_read")]),
    (kafka(stream={"mutes": ("host=node-3",)}), []),
    (kafka(topics={"mutes": topic("mutes", error="missing")}), []),
])  # fmt: skip
def test_what_is_found_of_alerts(seen: KafkaFacts, expected: list[tuple[str, str]]) -> None:
    assert troubles(check_alerts(seen, "ticket")) == expected


def said(seen: KafkaFacts) -> str:
    return "; ".join(f"{one.subject}: {one.text}" for one in check_alerts(seen, "ticket"))


def test_it_says_how_many_alerts_wait_who_is_muted_and_whether_verdicts_were_not_urgent_enough() -> None:
    assert "notify: has run and does not run now; 3 alerts since then" in said(
        kafka(notify=GroupFacts(GROUP, committed=READ_TO_7))
    )
    assert "mutes: 1 mute in force: host=node-3" in said(kafka(stream={"mutes": ("host=node-3",)}))
    none = {"alerts": topic("alerts", ends={0: 0}, newest_s=None)}
    assert "alerts: none yet, and 10 revisions of verdicts below ticket" in said(kafka(topics=none))
