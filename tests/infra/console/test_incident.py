"""An incident's page without a database: what it shows of one verdict, and what people say of it there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import Producer

from irregulars.infra.console import incident
from irregulars.infra.console.database import ConsoleDatabase, KafkaAddress
from irregulars.infra.console.rendering import incident_path
from irregulars.infra.console.server import console_settings_of, policy_of
from irregulars.infra.settings import Settings
from irregulars.infra.showing.found import Found, gather
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.sinks.investigations import Answer
from irregulars.sinks.notices.mutes import Mute, encode_mute
from irregulars.sinks.notices.state_log import StateLog
from tests.infra.console.visits import NOWHERE, Visit, text_of, visit
from tests.sinks import made_up_job

ID = made_up_job.VERDICT_ID
PATH = incident_path(ID)
TOPICS = TopicSettings()


def at(second: int) -> datetime:
    return datetime(2026, 11, 28, 3, 0, second, tzinfo=UTC)


COLUMNS = ("revision", "seen_at", "event", "severity", "gpu_hours_lost", "device", "host", "rank", "peer",
           "probability", "stored_at")  # fmt: skip
LINK, NIC_NAME = "link from eth0 on node-0 to node-1", "NIC eth0 on node-0"
HISTORY = Answer(COLUMNS, (
    (1, at(10), "opened", "note", 0.0004, LINK, "node-0", 1, 3, 0.63, None),
    (1, at(10), "opened", "note", 0.0004, NIC_NAME, "node-0", 1, None, 0.3, None),
    (2, at(30), "raised", "ticket", 0.0009, LINK, "node-0", 1, 3, 0.76, None),
    (3, at(50), "continued", "ticket", 0.002, None, None, None, None, None, None),
))  # fmt: skip
REPORTED = [
    (at(5), at(5), 1, "node-0", "gpu1", "xid", 79, "GPU has fallen off the bus."),
    (at(40), at(45), 1200, "node-0", "", "out_of_memory", None, ""),
]
SAID = [{"who": "ann", "word": "wrong", "said_s": at(35).timestamp(), "note": "NIC fine"}]


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the database: the second revision of a made-up verdict, with what happened to it."""
    monkeypatch.setattr(ConsoleDatabase, "_connected", lambda self: object())
    monkeypatch.setattr(incident, "find_verdict", lambda client, which: made_up_job.verdict(2))
    monkeypatch.setattr(incident, "found_in_database", lambda client, verdict, source, now_ns: Found(verdict))
    monkeypatch.setattr(incident, "run", lambda client, question, values: HISTORY)
    monkeypatch.setattr(incident, "reported_on", lambda client, screen: REPORTED)
    monkeypatch.setattr(incident, "words_on", lambda client, job, verdict_id: SAID)


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaAddress]:
    """The client library's own broker, which lives as long as its producer."""
    broker = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    for topic in ("mutes", "feedback"):
        broker.produce(TOPICS.name(topic), b"none of ours", partition=0)
    assert broker.flush(60) == 0
    (one,) = broker.list_topics(timeout=60).brokers.values()
    yield KafkaAddress(f"{one.host}:{one.port}", TOPICS)
    del broker


@contextmanager
def state_of(kafka: KafkaAddress) -> Iterator[StateLog]:
    log = StateLog(kafka.bootstrap, kafka.topics, {}, threading.Event())
    try:
        yield log
    finally:
        log.close()


def say(somebody: Visit, path: str, **fields: str) -> Any:
    given = {"csrf": somebody.csrf(PATH), "verdict_id": ID, "who": "ann", **fields}
    return somebody.client.post(path, data=given)


def test_what_happened_is_told_in_one_order_of_time() -> None:
    told = [(one.kind, one.text) for one in incident.timeline_of(made_up_job.verdict(2), HISTORY, REPORTED, SAID)]
    assert told == [
        ("device", "gpu1 on node-0: xid 79: GPU has fallen off the bus."),
        ("verdict", f"opened, note: {LINK}, 63%; or {NIC_NAME}, 30%; 0.0004 GPU-hours lost until then"),
        ("alert", f"raised, ticket: {LINK}, 76%; 0.0009 GPU-hours lost until then"),
        ("person", "ann: wrong: NIC fine"),
        ("device", "node-0: out of memory (1,200 times until 03:00:45)"),
        ("verdict", "continued, ticket: no device is accused; 0.002 GPU-hours lost until then"),
    ]
    with visit() as somebody:
        somebody.log_in()
        text = text_of(somebody.get(PATH))
        places = [text.index(f"{kind} {what}") for kind, what in told]
        assert places == sorted(places)
        assert "2026-11-28 03:00:05" in text


def test_of_many_revisions_the_newest_are_told_and_alerts_as_the_workers_give_them() -> None:
    newest = Answer(COLUMNS, HISTORY.rows[:1:-1], cut_at=2)
    told = [one.text.split(",")[0] for one in incident.timeline_of(made_up_job.verdict(2), newest, (), ())]
    assert told == ["earlier revisions that are left out: 1", "raised", "continued"]
    for least, kinds in (("note", ["alert", "alert", "verdict"]), ("page", ["verdict"] * 3)):
        told = incident.timeline_of(made_up_job.verdict(2), HISTORY, (), (), least)
        assert [one.kind for one in told] == kinds
    settings = Settings(alert_least_severity="page")
    policy = policy_of(settings, ("127.0.0.1", 1))
    assert console_settings_of(settings, policy, reads_kafka=False).least_severity == "page"


def test_revisions_that_only_go_on_are_one_line() -> None:
    goes_on = [(number, at(10 * number), "continued", *HISTORY.rows[3][3:]) for number in (3, 4, 5)]
    told = incident.timeline_of(made_up_job.verdict(2), Answer(COLUMNS, (*HISTORY.rows[:2], *goes_on)), (), ())
    assert [one.time_s for one in told] == [at(10).timestamp(), at(50).timestamp()]


def test_a_hang_closes_behind_what_was_reported_though_no_later_iteration_was_seen() -> None:
    moments = [(1, "opened", at(0) + timedelta(minutes=10)), (2, "closed", at(0) + timedelta(minutes=40))]
    history = Answer(COLUMNS, tuple(
        (revision, at(0), event, "page", 1.0, "GPU 1 on node-0", "node-0", 1, None, 0.9, stored_at)
        for revision, event, stored_at in moments
    ))  # fmt: skip
    hang = replace(made_up_job.verdict(2), kind="hang")
    told = incident.timeline_of(hang, history, REPORTED[:1], ())
    assert [one.text.split("; ")[1] for one in told[1:]] == [
        "at least 1.0 GPU-hours lost until then", "1.0 GPU-hours lost until then",
    ]  # fmt: skip
    assert [(one.time_s, one.text.split(",")[0]) for one in told] == [
        (at(5).timestamp(), "gpu1 on node-0: xid 79: GPU has fallen off the bus."),
        *((stored_at.timestamp(), event) for _, event, stored_at in moments),
    ]


@pytest.mark.parametrize(("kind", "lost_s", "later_s"), [
    ("hang", 7200.0, 7200), ("mismatch", 7200.0, 7200), ("hang", float("nan"), 0), ("slow_link", 7200.0, 0),
])  # fmt: skip
def test_reports_are_sought_until_a_closed_hang_ended(
    monkeypatch: pytest.MonkeyPatch, kind: str, lost_s: float, later_s: int
) -> None:
    monkeypatch.undo()
    client = Mock()
    verdict = replace(made_up_job.verdict(3), kind=kind, lost_s=lost_s)
    incident.reported_on(client, gather(Found(verdict)))
    assert verdict.time_ns is not None
    asked = client.query.call_args.kwargs["parameters"]
    assert asked["end"] == verdict.time_ns + (later_s + 600) * 10**9
    assert asked["looks"] == ["stack", "function", "metric"], "a profile's metrics are no moments of an incident"


def test_notices_are_muted_from_the_page_as_with_irregulars_mutes(kafka: KafkaAddress) -> None:
    with visit(NOWHERE, kafka, takes_feedback=True) as somebody:
        somebody.log_in()
        begun_ns = time.time_ns()
        answer = say(somebody, "/mutes", about="job", lasting="4h", reason="I exchange \n the cable")
        assert (answer.status_code, answer.headers["location"]) == (303, f"{PATH}?said=muted#said")
        with state_of(kafka) as log:
            (made,) = log.mutes()
        assert (made.patterns, made.who) == ({"job": made_up_job.JOB, "kind": "slow_link"}, "ann")
        assert made.reason == "I exchange the cable"
        assert begun_ns <= made.from_ns <= time.time_ns()
        assert made.until_ns - made.from_ns == 4 * 3600 * 10**9
        text = text_of(somebody.get(f"{PATH}?said=muted"))
        assert f"Nobody is notified of it: {made.describe()}." in text
        assert f"irregulars mutes remove {made.mute_id}" in text


def test_a_link_is_muted_in_its_job_alone_and_a_nic_in_all() -> None:
    nic = incident.mutable_of(replace(made_up_job.verdict(2), suspects=(NIC,)))
    assert nic["device"][0] == "this device in all jobs: nic:node-[0]/mlx5_1"
    assert incident.mutable_of(made_up_job.verdict(2))["device"][0] == "this device in this job: link:made-up/1>3"


def test_a_form_that_is_sent_twice_makes_one_mute(kafka: KafkaAddress) -> None:
    with visit(NOWHERE, kafka, takes_feedback=True) as somebody:
        somebody.log_in()
        for _ in range(2):
            say(somebody, "/mutes", about="job", lasting="4h", reason="twice")
        say(somebody, "/mutes", about="job", lasting="4h", reason="twice", who="bob")
    with state_of(kafka) as log:
        assert sorted(one.who for one in log.mutes() if one.reason == "twice") == ["ann", "bob"]


def test_a_silence_that_follows_from_feedback_is_no_mute_to_be_removed(kafka: KafkaAddress) -> None:
    with state_of(kafka) as log:
        for one in range(3):
            log.record_opinion(replace(made_up_job.verdict(2), verdict_id=f"v{one}"), "wrong", "ann", "NIC fine")
    with visit(NOWHERE, kafka, takes_feedback=True) as somebody:
        somebody.log_in()
        text = text_of(somebody.get(PATH))
    assert "its last 3 verdicts were called wrong, the newest by ann. A verdict on it that is called right" in text
    assert "mutes remove feedback:" not in text
    assert "Kafka did not say" not in text


REFUSED = (
    ({"about": "everything", "lasting": "1h", "reason": "a"}, "mute must be of"),
    ({"about": "job", "lasting": "99999w", "reason": "a"}, "mute must be of"),
    ({"about": "job", "lasting": "1h", "reason": " "}, "reason"),
    ({"about": "job", "lasting": "1h", "reason": "a", "who": " "}, "name must be given"),
    ({"about": "job", "lasting": "1h", "reason": "a", "verdict_id": made_up_job.JOB}, "by its id"),
)


def test_a_mute_of_strangers_other_sites_or_without_its_parts_is_refused_with_a_reason(kafka: KafkaAddress) -> None:
    mute = {"verdict_id": ID, "who": "ann", "about": "job", "lasting": "1h", "reason": "a"}
    with visit(NOWHERE, kafka, takes_feedback=True) as somebody:
        assert somebody.client.post("/mutes", data=mute).status_code == 401
        somebody.log_in()
        assert somebody.client.post("/mutes", data=mute).status_code == 403
        mute["csrf"] = somebody.csrf(PATH)
        headers = {"origin": "https://elsewhere.example"}
        assert somebody.client.post("/mutes", data=mute, headers=headers).status_code == 403
        assert somebody.get("/mutes").status_code in (404, 405)
        for fields, told in REFUSED:
            answer = say(somebody, "/mutes", **fields)
            assert (answer.status_code, told in answer.text) == (400, True), (fields, text_of(answer))


@pytest.mark.parametrize("is_open", [True, False])
def test_a_console_that_only_reads_shows_no_buttons_and_publishes_nothing(kafka: KafkaAddress, is_open: bool) -> None:
    given: dict[str, Any] = {"kafka": kafka} if is_open else {"takes_feedback": True}
    with visit(NOWHERE, **given) as somebody:
        somebody.log_in()
        page = somebody.get(PATH)
        assert 'action="/feedback"' not in page.text
        assert 'action="/mutes"' not in page.text
        assert "irregulars console --feedback" in page.text
        for path, fields in (("/mutes", {"about": "job", "lasting": "1h", "reason": "a"}),
                             ("/feedback", {"word": "right"})):  # fmt: skip
            answer = say(somebody, path, **fields)
            assert (answer.status_code, "console_feedback" in answer.text) == (403, True), path


def test_without_kafka_the_page_is_there_at_once_and_says_what_it_does_not_know() -> None:
    with visit(NOWHERE, KafkaAddress("127.0.0.1:1", TOPICS), takes_feedback=True) as somebody:
        somebody.log_in()
        answer = somebody.get(PATH)
        assert answer.status_code == 200
        assert "Kafka did not say in time whether it is muted." in text_of(answer)


NIC = Suspect("nic", 3, (3,), 0.9, host="node-[0]", gpu=1, nic="mlx5_1", switch="leaf-1")


@pytest.mark.parametrize(("suspects", "patterns"), [
    ((NIC,), {"device": {"device": "nic:node-[[]0]/mlx5_1"}, "host": {"host": "node-[[]0]"}}),
    ((Suspect("switch", 3, (3,), 0.9, host="node-0", switch="leaf-1"),), {"device": {"device": "switch:leaf-1"}}),
    ((), {}),
])  # fmt: skip
def test_a_mute_is_of_the_names_that_a_verdict_has_and_of_no_others(
    suspects: tuple[Suspect, ...], patterns: dict[str, dict[str, str]]
) -> None:
    verdict = Verdict(**{name: getattr(made_up_job.verdict(2), name) for name in Verdict.__slots__}
                      | {"suspects": suspects})  # fmt: skip
    of_job = {"job": {"job": made_up_job.JOB, "kind": "slow_link"}}
    assert {word: own for word, (_, own) in incident.mutable_of(verdict).items()} == patterns | of_job
    for own in (patterns | of_job).values():
        mute = Mute("m", 0, 1, "why", "ann", **own)
        assert mute.matches(verdict.to_json())
        assert encode_mute(mute)
