"""The console on a real broker: alerts, dead letters, and what people say of a verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from irregulars.infra.console.database import KafkaAddress, newest_letters
from irregulars.infra.console.rendering import incident_path
from irregulars.infra.showing.from_database import find_verdict
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.judgements import Verdict, encode_verdict
from irregulars.sinks.connection import DatabaseSettings, connected
from tests import warm
from tests.conftest import ClickHouseAddress
from tests.infra.console.visits import Visit, text_of, visit
from tests.integration.pipelines import COMMAND, own_database
from tests.integration.worker_runs import ROOT, Bus, wait_until
from tests.sinks.notices.alerts import alert_bytes
from tests.sinks.recorded_jobs import rows_of_recording

pytestmark = pytest.mark.integration

ID = "gloo-slow-nic:0:60:0"
HOSTILE = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture(scope="module")
def stored(clickhouse: ClickHouseAddress) -> Iterator[DatabaseSettings]:
    """A database with one recorded job."""
    with own_database(clickhouse, rows_of_recording("gloo-slow-nic")) as own:
        yield own


@pytest.fixture
def partitions() -> int:
    return 2


@pytest.fixture
def kafka(bus: Bus) -> KafkaAddress:
    return KafkaAddress(bus.bootstrap, bus.topics)


def say(somebody: Visit, word: str, verdict_id: str = ID, **others: str) -> Any:
    csrf = somebody.csrf(incident_path(ID))
    return somebody.client.post("/feedback", data={"csrf": csrf, "verdict_id": verdict_id, "word": word, **others})


def words_in(bus: Bus) -> list[dict[str, Any]]:
    return [json.loads(one.value() or b"{}") for one in bus.read("feedback")]


def test_what_is_said_here_stands_on_the_topic(bus: Bus, kafka: KafkaAddress, stored: DatabaseSettings) -> None:
    bus.send("verdicts", ID.encode(), encode_verdict(verdict_in(stored)))
    bus.flush()
    own = ["--bootstrap", bus.bootstrap, "--topic-prefix", bus.topics.prefix]
    by_command = [*COMMAND, "feedback", ID, "wrong", "--who", "ann", "--note", "NIC fine", *own]
    warm.run(by_command, cwd=ROOT, timeout=60, check=True)
    with visit(stored, kafka, takes_feedback=True) as somebody:
        somebody.log_in("bob")
        assert 'name="who" value="bob"' in somebody.get(incident_path(ID)).text
        answer = say(somebody, "wrong", who="bob", note="NIC  fine")
        assert (answer.status_code, answer.headers["location"]) == (303, f"{incident_path(ID)}?said=wrong#said")
        assert "Your word is kept: wrong." in text_of(somebody.get(answer.headers["location"].partition("#")[0]))
        of_ann, of_bob = words_in(bus)
        assert (of_ann["who"], of_bob["who"]) == ("ann", "bob")
        told = ("who", "time_ns")
        assert {k: v for k, v in of_ann.items() if k not in told} == {
            k: v for k, v in of_bob.items() if k not in told
        }
        assert say(somebody, "withdraw", who="bob").status_code == 303
        assert words_in(bus)[-1]["is_right"] is None


def test_a_word_that_can_not_be_kept_is_refused(bus: Bus, kafka: KafkaAddress, stored: DatabaseSettings) -> None:
    with visit(stored, kafka, takes_feedback=True) as somebody:
        somebody.log_in()
        for word, others, told in (
            ("perhaps", {"who": "ann"}, "must be one of right, wrong, withdraw"),
            ("right", {"who": " "}, "name must be given"),
            ("right", {"who": "ann", "note": "x" * 9_000}, "note"),
            ("right", {"who": "a" * 5_000}, "who"),
            ("withdraw", {"who": "nobody"}, "opinion must be there to be withdrawn"),
            ("right", {"who": "ann", "verdict_id": "unknown"}, "verdict must be the id of one that is stored"),
            ("right", {"who": "ann", "verdict_id": "gloo-slow-nic"}, "by its id"),
            ("right", {"who": "ann", "verdict_id": HOSTILE}, "&lt;script&gt;"),
        ):
            answer = say(somebody, word, **others)
            assert (answer.status_code, told in answer.text) == (400, True), (word, others, text_of(answer))
            assert "<script>" not in answer.text
    assert words_in(bus) == []


def test_a_proxys_word_counts_for_who_it_was(bus: Bus, kafka: KafkaAddress, stored: DatabaseSettings) -> None:
    with visit(stored, kafka, takes_feedback=True, user_header="X-User", proxies=["127.0.0.1"]) as somebody:
        somebody.client.headers["X-User"] = "carol"
        assert say(somebody, "right", who="mallory").status_code == 303
    assert [(one["who"], one["is_right"]) for one in words_in(bus)] == [("carol", True)]


def test_without_its_topics_the_console_says_what_lacks(bus: Bus, stored: DatabaseSettings) -> None:
    absent = KafkaAddress(bus.bootstrap, TopicSettings(prefix="absent."))
    with visit(stored, absent, takes_feedback=True) as somebody:
        somebody.log_in()
        answer = say(somebody, "right", who="ann")
        assert answer.status_code == 403, text_of(answer)
        assert "absent.feedback" in answer.text
        assert "irregulars topics create" in answer.text
        pipeline = somebody.get("/pipeline")
        assert pipeline.status_code == 200
        assert "absent.deadletter" in pipeline.text
        wait_until(lambda: "absent.alerts" in somebody.get("/").text, "why there are no alerts")
        assert somebody.get("/").status_code == 200


def test_alerts_are_there_at_once_and_all_is_text(bus: Bus, kafka: KafkaAddress, stored: DatabaseSettings) -> None:
    bus.send("alerts", b"v1", alert_bytes("v1", job="early"))
    bus.flush()
    with visit(stored, kafka) as somebody:
        somebody.log_in()
        wait_until(lambda: "/incidents/v1" in somebody.get("/").text, "an alert from before")
        for value in (b"\xff\xfe", b"{}", b"null", b"[1]", b'{"verdict_id": 1}', None):
            bus.send("alerts", b"bad", value)
        hostile = alert_bytes(HOSTILE, job=HOSTILE, host=HOSTILE)
        bus.send("alerts", HOSTILE.encode(), hostile)
        bus.send("alerts", b"v1", alert_bytes("v1", 2, "closed", job="early"))
        bus.flush()
        wait_until(lambda: incident_path(HOSTILE) in somebody.get("/").text, "it")
        page = somebody.get("/").text
        assert "<script>" not in page
        assert "\x1b" not in page
        assert "irregulars_console_alerts_total" in somebody.get("/metrics").text
        alerts = somebody.client.get("/").text
        assert alerts.count('href="/incidents/v1"') == 1  # a verdict's newest alone


def test_dead_letters_are_shown_the_newest_first(bus: Bus, kafka: KafkaAddress, stored: DatabaseSettings) -> None:
    with visit(stored, kafka) as somebody:
        somebody.log_in()
        assert "the topic holds no dead letter" in somebody.get("/pipeline").text
    for at in range(3):
        place = {"topic": bus.topics.name("commops"), "partition": "1", "offset": str(at)}
        time_ns = str((1_800_000_000 + at) * 10**9)
        headers: dict[str, str | bytes | None] = {"reason": f"reason {at} {HOSTILE}", "time_ns": time_ns, **place}
        bus.producer.produce(bus.topics.name("deadletter"), b"\x00\xff", b"<b>key</b>", headers=headers)
    bus.producer.produce(bus.topics.name("deadletter"), None, None)  # a stranger's: nothing is known of it
    bus.flush()
    assert newest_letters(kafka, 2)[0] == 4
    with visit(stored, kafka) as somebody:
        somebody.log_in()
        page = somebody.get("/pipeline")
        text = text_of(page)
        assert page.status_code == 200
        assert "4 are kept" in text
        assert text.index("reason 2") < text.index("reason 1") < text.index("reason 0")
        assert f"{bus.topics.name('commops')}/1 at 2" in text
        assert "<script>" not in page.text
        assert "<b>key" not in page.text
        assert "\x1b" not in page.text


def verdict_in(database: DatabaseSettings) -> Verdict:
    with connected(database) as client:
        verdict = find_verdict(client, ID)
    assert verdict is not None
    return verdict
