"""`irregulars notify` on a real broker: what is told, and what is told again after a crash."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from irregulars.sinks.notices.actions.actions import Action, decode_actions, encode_actions
from irregulars.sinks.notices.notice import Notice
from irregulars.sinks.notices.policy import DeliveryRecord, decode_delivery, encode_delivery
from irregulars.sinks.notices.process import lag_of
from tests.integration.notify_runs import NotifyRun, channel, pagerduty, send_alert, webhook
from tests.integration.worker_runs import Bus, wait_until
from tests.sinks.notices.alerts import alert
from tests.sinks.notices.receiver import Receiver, Reply, Request

pytestmark = pytest.mark.integration

Start = Callable[..., NotifyRun]


def events(receiver: Receiver) -> list[tuple[str, str]]:
    return [(one["incident"], one["event"]) for one in receiver.bodies()]


def test_an_incident_is_told_to_open_change_and_end_and_not_again(bus: Bus, start_notify: Start) -> None:
    with Receiver() as receiver:
        first = start_notify(webhook(receiver.url))
        send_alert(bus, "v1")
        wait_until(lambda: events(receiver) == [("v1", "opened")], "an opened one")
        send_alert(bus, "v1", 2, "raised", severity="page")
        wait_until(lambda: len(receiver.requests) == 2, "an update")
        wait_until(lambda: first.output().count("event=told") == 2, "its record")
        assert first.stop() == 0
        second = start_notify(webhook(receiver.url))
        send_alert(bus, "v1", 1)  # a worker that began anew may say what it said
        send_alert(bus, "v1", 3, "closed", severity="page")
        wait_until(lambda: len(receiver.requests) >= 3, "the end")
        assert second.stop() == 0
        assert events(receiver) == [("v1", "opened"), ("v1", "updated"), ("v1", "resolved")]
    (record,) = {m.key(): decode_delivery(m.value()) for m in bus.read("notices")}.values()
    assert (record.state, record.revision, record.severity) == ("closed", 3, "page")
    assert "Traceback" not in first.output() + second.output()


def test_a_process_killed_before_it_wrote_down_what_it_told_pages_nobody_twice(bus: Bus, start_notify: Start) -> None:
    """Between the receiver's answer and the record the process is killed: the same notice comes with the same key."""
    runs: list[NotifyRun] = []

    def kill_first(_: object) -> Reply:
        if len(runs) == 1 and runs[0].process.poll() is None:
            runs[0].kill()
        return Reply()

    with Receiver(kill_first) as receiver:
        runs.append(start_notify(webhook(receiver.url)))
        for number in range(5):
            send_alert(bus, f"v{number}")
        wait_until(lambda: runs[0].process.poll() is not None, "the kill")
        runs.append(start_notify(webhook(receiver.url)))
        for number in range(5):
            send_alert(bus, f"v{number}", 2, "closed")
        wait_until(lambda: sum(event == "resolved" for _, event in events(receiver)) >= 1, "ends")
        wait_until(lambda: bus_is_settled(bus), "all settled")
        assert runs[1].stop() == 0
        keys = Counter(one.headers["Idempotency-Key"] for one in receiver.requests)
        told = {key: one for one in receiver.requests for key in [one.headers["Idempotency-Key"]]}
        by_incident = Counter((one.json()["incident"], one.json()["event"]) for one in told.values())
    assert set(by_incident.values()) == {1}, "a receiver that knows the key sees each notice once"
    assert ("v0", "opened") in by_incident
    assert ("v0", "resolved") in by_incident
    assert max(keys.values()) <= 2


def bus_is_settled(bus: Bus) -> bool:
    newest = {m.key(): decode_delivery(m.value()) for m in bus.read("notices")}
    return all(one.state == "closed" for one in newest.values()) and bool(newest)


def test_a_channel_that_is_away_stops_no_other_and_hears_all_when_it_is_back(bus: Bus, start_notify: Start) -> None:
    is_away = True

    def answer(_: object) -> Reply:
        return Reply(503, headers=(("Retry-After", "1"),)) if is_away else Reply()

    with Receiver() as well, Receiver(answer) as ill:
        run = start_notify(webhook(well.url) + webhook(ill.url, "ill"))
        send_alert(bus, "v1")
        send_alert(bus, "v2", nic="mlx5_2")
        wait_until(lambda: len(well.requests) == 2, "the well one")
        wait_until(lambda: run.metric('retried_total{channel="ill"}') >= 1, "a retry")
        assert run.metric('delivered_total{channel="ill",event="opened"}') == 0
        is_away = False
        wait_until(lambda: run.metric('delivered_total{channel="ill",event="opened"}') == 2, "both")
        assert run.metric('last_success_seconds{channel="ill"}') > time.time() - 300
        assert run.page("/healthz") == "ok\n"
        assert run.stop() == 0


def test_a_notice_that_a_channel_can_t_take_keeps_no_other_waiting(bus: Bus, start_notify: Start) -> None:
    is_ill = True

    def answer(request: Request) -> Reply:
        return Reply(500) if is_ill and request.json()["incident"] == "v1" else Reply()

    with Receiver(answer) as receiver:
        run = start_notify(webhook(receiver.url))
        send_alert(bus, "v1", severity="page")
        wait_until(lambda: len(receiver.requests) >= 3, "its tries")
        for number in (2, 3):
            send_alert(bus, f"v{number}")
        wait_until(lambda: run.metric('delivered_total{channel="hook",event="opened"}') == 2, "the others")
        is_ill = False
        wait_until(lambda: run.metric('delivered_total{channel="hook",event="opened"}') == 3, "all")
        assert run.stop() == 0


def test_what_a_channel_refuses_goes_to_the_dead_letters_with_the_reason(bus: Bus, start_notify: Start) -> None:
    with Receiver(lambda _: Reply(400, b"no such thing")) as receiver:
        run = start_notify(webhook(receiver.url))
        send_alert(bus, "v1")
        bus.send("alerts", b"v2", b"no alert at all")
        bus.flush()
        wait_until(lambda: len(bus.read("deadletter")) == 2, "dead letters")
        headers: list[dict[str, Any]] = [dict(one.headers() or ()) for one in bus.read("deadletter")]  # type: ignore[arg-type]
        send_alert(bus, "v1", 2, "closed")
        send_alert(bus, "v3")
        wait_until(lambda: len(bus.read("deadletter")) == 3, "the third")
        assert run.stop() == 0
        assert [one for one, _ in events(receiver)] == ["v1", "v3"], "who never heard of it hears of no end"
    reasons = {str(one["channel"], "utf-8"): str(one["reason"], "utf-8") for one in headers}
    assert "status 400" in reasons["hook"]
    assert "no such thing" in reasons["hook"]
    assert "must be JSON" in reasons["all"]


def test_a_page_ends_the_ticket_that_got_no_answer(bus: Bus, start_notify: Start, tmp_path: Path) -> None:
    """The trigger of the ticket arrives, its answer does not, and before the next try it is a page."""
    is_open: set[str] = set()

    def answer(request: Request) -> Reply:
        event = request.json()
        (is_open.add if event["event_action"] == "trigger" else is_open.discard)(event["dedup_key"])
        return Reply(500, headers=(("Retry-After", "2"),)) if len(receiver.requests) == 1 else Reply(202)

    with Receiver(answer) as receiver:
        run = start_notify(pagerduty(receiver.url, tmp_path))
        send_alert(bus, "v1")
        wait_until(lambda: is_open == {"v1/ticket"}, "the ticket")
        send_alert(bus, "v1", 2, "raised", severity="page")
        wait_until(lambda: is_open == {"v1"}, "the page instead of the ticket")
        send_alert(bus, "v1", 3, "closed", severity="page")
        wait_until(lambda: is_open == set(), "the end")
        assert run.stop() == 0


@pytest.mark.parametrize("told", [None, "open"])
def test_a_proposal_that_a_killed_process_published_is_withdrawn_when_its_verdict_has_none(
    bus: Bus, start_notify: Start, told: str | None
) -> None:
    """What such a process leaves: the proposal, and a record of an intention, or of a notice before the proposal."""
    record = DeliveryRecord("v1", "act", told or "trying", "opened", 0 if told else 1, "page", "llama", None,
                  "[]" if told else None, time.time_ns(), 0, 0)  # fmt: skip
    send_alert(bus, "v1", severity="page")
    bus.send("actions", b"v1", encode_actions(Notice("opened", alert("v1", severity="page"), "page")))
    bus.send("notices", record.key, encode_delivery(record))
    assert [one.action for one in newest_actions(bus)] == ["cordon", "drain", "checkpoint_now"]
    changed = {**alert("v1", 2, "changed", severity="page"), "kind": "imbalance", "suspects": []}
    bus.send("alerts", b"v1", json.dumps(changed).encode())
    bus.flush()
    run = start_notify(channel("actions", "act"))
    wait_until(lambda: newest_actions(bus) == (), "the newest message, which proposes nothing")
    assert run.stop() == 0


def newest_actions(bus: Bus) -> tuple[Action, ...]:
    bus.flush()
    return decode_actions(bus.read("actions")[-1].value()).actions


def test_the_lag_is_what_stands_behind_a_position(bus: Bus) -> None:
    for number in range(3):
        send_alert(bus, "v1", number + 1)
    topic = bus.topics.name("alerts")  # it is made with one partition
    consumer = Consumer({"bootstrap.servers": bus.bootstrap, "group.id": "lag", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    wait_until(lambda: bool(consumer.consume(1, 0.2)), "a message")
    assert lag_of(consumer, topic, {0: 1}) == 2
    assert lag_of(consumer, topic, {0: 3}) == 0
    consumer.close()
