from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import time_ns
from typing import Any, cast

import pytest
from confluent_kafka import Message

from irregulars.errors import InputError, ServiceRefused, ServiceUnavailable
from irregulars.messages.judgements import Verdict
from irregulars.sinks.notices.actions.actions import HOUR_NS, actions_of, decode_actions, encode_actions, remember
from irregulars.sinks.notices.actions.feed import ActionFeed, Polled
from irregulars.sinks.notices.actions.nvsentinel import HealthEvents, open_output, run_health_events
from irregulars.sinks.notices.notice import Notice
from tests.sinks.notices.actions.memory_nodes import Received
from tests.sinks.notices.made_up_notices import GPU, NOW_NS, VERDICT, notice_of
from tests.sinks.notices.receiver import Receiver, Reply


@dataclass
class MemoryFeed:
    """The topic in memory, read once to its end."""

    values: list[bytes]
    done: int = 0  # messages that an earlier consumer was done with
    committed: int = 0

    def poll(self, _timeout_s: float) -> Polled:
        values, self.values = self.values, []
        given = (cast(Message, Received(one, place)) for place, one in enumerate(values))
        return Polled(tuple(given), is_current=True)

    def is_done(self, message: Message) -> bool:
        return (message.offset() or 0) < self.done

    def commit(self, _message: Message) -> None:
        self.committed += 1


class Endpoint(Receiver):
    """An HTTP endpoint that answers with the next of these statuses, and then with 202."""

    def __init__(self) -> None:
        super().__init__(lambda _: Reply(self.statuses.pop(0) if self.statuses else 202))
        self.statuses: list[int] = []

    @property
    def place(self) -> str:
        return f"{self.url}/secret-path"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as found:
        yield found


def feed_of(*values: bytes) -> MemoryFeed:
    return MemoryFeed(list(values))


def run(feed: MemoryFeed, place: str) -> None:
    with open_output(place) as write:
        run_health_events(cast(ActionFeed, feed), write, "west", 0.9, is_executed=False, is_ending=True)


def message(revision: int = 1) -> bytes:
    return encode_actions(notice_of(replace(VERDICT, revision=revision, time_ns=time_ns())))


def test_events_stand_in_a_file_of_ours_one_a_line(tmp_path: Path) -> None:
    place = tmp_path / "events.jsonl"
    feed = feed_of(message(), b"?", message(2))
    run(feed, str(place))
    run(feed_of(message(3)), str(place))
    events = [json.loads(line) for line in place.read_text().splitlines()]
    assert [one["data"]["healthEvent"]["metadata"]["revision"] for one in events] == ["1", "2", "3"]
    assert feed.committed == 3  # what can't be read is done with too
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


@pytest.mark.parametrize("before", [[b"?", message()], []])
def test_a_node_is_healthy_again_if_its_accusation_is_known_or_not(tmp_path: Path, before: list[bytes]) -> None:
    """The probability that was enough then may be another one, and the topic keeps a month.

    What an earlier consumer gave is not given again.
    """
    place = tmp_path / "events.jsonl"
    closed = notice_of(replace(VERDICT, time_ns=time_ns(), **RECOVERED), "resolved")
    feed = MemoryFeed([*before, encode_actions(closed)], done=len(before))
    run(feed, str(place))
    (event,) = [json.loads(line) for line in place.read_text().splitlines()]
    assert event["data"]["healthEvent"]["isHealthy"] is True
    assert feed.committed == 1


def test_an_endpoint_gets_cloud_events(endpoint: Endpoint) -> None:
    run(feed_of(message()), endpoint.place)
    (request,) = endpoint.requests
    assert request.headers["Content-Type"] == "application/cloudevents+json"
    assert request.json()["type"] == "com.nvidia.nvsentinel.health.v1"


def test_an_endpoint_that_is_away_is_tried_until_it_answers(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("irregulars.sinks.notices.actions.nvsentinel.AWAY_S", 0.01)
    endpoint.statuses = [503, 429]
    feed = feed_of(message())
    with open_output(endpoint.place) as write, pytest.raises(ServiceRefused, match="got status 403"):
        _run_until_refused(feed, write, endpoint)
    assert (len(endpoint.requests), feed.committed) == (4, 1)
    assert capsys.readouterr().err.count("must take events; got status 503; trying until it does") == 1


def _run_until_refused(feed: MemoryFeed, write: Any, endpoint: Endpoint) -> None:
    """Give one message, and when it is taken another, which is refused."""
    poll = feed.poll

    def then_refused(timeout_s: float) -> Polled:
        if feed.committed:
            endpoint.statuses, feed.values = [403], [message(2)]
        return poll(timeout_s)

    feed.poll = then_refused  # type: ignore[method-assign]
    run_health_events(cast(ActionFeed, feed), write, "west", 0.9, is_executed=False, is_ending=False)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_event_that_is_refused_is_skipped_and_keeps_no_other_from_its_place(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    endpoint.statuses = [status]
    feed = feed_of(message(), message(2))
    run(feed, endpoint.place)
    assert [one.json()["data"]["healthEvent"]["metadata"]["revision"] for one in endpoint.requests] == ["1", "2"]
    assert feed.committed == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"irregulars: event {endpoint.requests[0].json()['id']} skipped: refused with status {status}"


def test_an_endpoint_that_refuses_three_events_in_turn_is_at_fault_itself(endpoint: Endpoint) -> None:
    endpoint.statuses = [422, 422, 202, 422, 422, 202]
    feed = feed_of(*map(message, range(1, 7)))
    run(feed, endpoint.place)
    assert (len(endpoint.requests), feed.committed) == (
        6,
        6,
    )  # refused among others that are taken: they don't add up
    endpoint.statuses = [422, 422, 422]
    feed = feed_of(message(), message(2), message(3))
    with pytest.raises(ServiceRefused, match="must take events; got status 422"):
        run(feed, endpoint.place)
    assert feed.committed == 2  # the third comes again once the endpoint is repaired


def test_an_event_that_is_refused_again_and_again_counts_once(endpoint: Endpoint) -> None:
    """As when another event of its message finds the endpoint away: then all of them are tried again."""
    endpoint.statuses = [422, 422, 422]
    with open_output(endpoint.place) as write:
        for _ in range(3):
            write([{"id": "cordon/1/proposed"}])
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("status", "error"),
    [(503, ServiceUnavailable), (401, ServiceRefused), (404, ServiceRefused), (302, ServiceRefused)],
)
def test_what_was_not_taken_is_not_noted_as_done_and_no_path_is_shown(
    endpoint: Endpoint, status: int, error: type[Exception]
) -> None:
    endpoint.statuses = [status]
    feed = feed_of(message())
    with pytest.raises(error, match=f"must take events; got status {status}") as caught:
        run(feed, endpoint.place)
    assert feed.committed == 0
    assert "secret-path" not in str(caught.value)


def test_an_address_that_nobody_listens_at_is_away() -> None:
    with pytest.raises(ServiceUnavailable, match=r"http://127.0.0.1:1 must take events; got \w+"):
        run(feed_of(message()), "http://127.0.0.1:1/x")


@pytest.mark.parametrize(("place", "text"), [
    ("/nowhere/at/all", "--output must be a file that can be written; got .*No such file"),
    ("ftp://x/y", "--output must be http://… or https://…"),
    ("https://me:secret@x/y", "without credentials"),
])  # fmt: skip
def test_a_place_that_cannot_be_one_is_refused(place: str, text: str) -> None:
    with pytest.raises(InputError, match=text) as caught, open_output(place):
        pass
    assert "secret" not in str(caught.value)


FIELDS = {
    "version", "agent", "componentClass", "checkName", "isFatal", "isHealthy", "message", "recommendedAction",
    "errorCode", "entitiesImpacted", "metadata", "generatedTimestamp", "nodeName", "quarantineOverrides",
    "drainOverrides", "processingStrategy",
}  # fmt: skip
"""Those of ``HealthEvent`` in NVSentinel's health_event.proto, as protobuf writes them in JSON."""


RECOVERED: dict[str, Any] = {"revision": 2, "state": "closed", "close_reason": "recovered", "event": "closed"}


def events_of(notice: Notice, now_ns: int = NOW_NS, made: HealthEvents | None = None) -> list[dict[str, Any]]:
    """The events of a notice, behind those that `made` has made."""
    return list((made or HealthEvents("west", 0.9)).of(decode_actions(encode_actions(notice)), now_ns))


def of(verdict: Verdict) -> list[dict[str, Any]]:
    return [one["data"]["healthEvent"] for one in events_of(notice_of(verdict))]


def test_an_accused_gpu_is_unhealthy_and_only_stored_unless_nvsentinel_is_asked_to_act() -> None:
    (event,) = events_of(notice_of())
    assert (event["specversion"], event["type"]) == ("1.0", "com.nvidia.nvsentinel.health.v1")
    assert (event["source"], event["data"]["metadata"]) == ("nvsentinel://west/healthevents", {"cluster": "west"})
    health = event["data"]["healthEvent"]
    assert set(health) == FIELDS
    assert (health["nodeName"], health["componentClass"], health["isHealthy"]) == ("node-1", "GPU", False)
    assert (health["processingStrategy"], health["isFatal"]) == ("STORE_ONLY", False)
    assert health["entitiesImpacted"] == [{"entityType": "GPU", "entityValue": "0"}]
    assert health["message"].startswith("[IRREGULARS_SLOW_RANK] slow rank in llama: GPU 0 on node-1")
    assert health["message"].endswith(" - RecommendedAction: RUN_DCGMEUD")
    assert event["time"] == health["generatedTimestamp"] == "2026-11-18T11:06:40.000000000Z"
    assert all(isinstance(value, str) for value in health["metadata"].values())
    json.dumps(event, allow_nan=False)
    (event,) = events_of(notice_of(), made=HealthEvents("west", 0.9, is_executed=True))
    assert event["data"]["healthEvent"]["processingStrategy"] == "EXECUTE_REMEDIATION"


def test_a_nic_is_named_as_one() -> None:
    (health,) = of(replace(VERDICT, kind="slow_nic", suspects=(replace(GPU, device="nic"),)))
    assert (health["componentClass"], health["recommendedAction"]) == ("NIC", "CONTACT_SUPPORT")
    assert health["entitiesImpacted"] == [{"entityType": "NIC", "entityValue": "mlx5_1"}]


def test_a_withdrawn_accusation_makes_the_device_healthy_again() -> None:
    made = HealthEvents("west", 0.9)
    assert len(events_of(notice_of(), made=made)) == 1
    closed = notice_of(replace(VERDICT, **RECOVERED), "resolved", remember(actions_of(notice_of())))
    (event,) = events_of(closed, NOW_NS + 99 * HOUR_NS, made)
    health = event["data"]["healthEvent"]
    assert (health["isHealthy"], health["recommendedAction"], health["errorCode"]) == (True, "NONE", [])
    assert (health["nodeName"], health["checkName"]) == ("node-1", "IrregularsStraggler")
    assert events_of(notice_of(), made=made) == []  # an older revision that comes late


def test_a_host_that_another_incident_accuses_too_is_healthy_after_both() -> None:
    made = HealthEvents("west", 0.9)

    def told(verdict_id: str, probability: float = 0.95, **changes: Any) -> list[bool]:
        suspect = replace(GPU, probability=probability)
        notice = notice_of(
            replace(VERDICT, verdict_id=verdict_id, suspects=(suspect,), **changes),
            "resolved" if changes else "opened",
        )
        return [one["data"]["healthEvent"]["isHealthy"] for one in events_of(notice, made=made)]

    assert told("v1") == [False]
    assert (told("v2", 0.8), told("v2", 0.8, **RECOVERED)) == ([], [])  # NVSentinel never heard of it
    assert told("v3") == [False]
    assert told("v1", **RECOVERED) == []
    assert told("v3", **RECOVERED) == [True, True]


def test_a_device_is_not_healthy_while_its_incident_accuses_another_one_of_the_host() -> None:
    made = HealthEvents("west", 0.9)
    first = notice_of()
    assert len(events_of(first, made=made)) == 1
    other = replace(VERDICT, revision=2, event="changed", suspects=(replace(GPU, device="host"),))
    second = notice_of(other, "updated", remember(actions_of(first)))
    (event,) = events_of(second, made=made)
    assert event["data"]["healthEvent"]["isHealthy"] is False
    last = notice_of(replace(other, **RECOVERED | {"revision": 3}), "resolved", remember(actions_of(second)))
    healthy = [one["data"]["healthEvent"] for one in events_of(last, made=made)]
    assert [(one["isHealthy"], one["componentClass"]) for one in healthy] == [(True, "GPU"), (True, "Node")]


@pytest.mark.parametrize("changes", [
    *({"kind": kind} for kind in ("slow_link", "slow_communicator", "slow_stage", "imbalance")),
    {"suspects": (replace(GPU, probability=0.8),)}, {"suspects": (replace(GPU, host=None),)},
])  # fmt: skip
def test_what_accuses_no_host_or_is_improbable_or_over_gives_no_event(changes: dict[str, Any]) -> None:
    assert of(replace(VERDICT, **changes)) == []
    assert events_of(notice_of(), now_ns=NOW_NS + 2 * HOUR_NS) == []


def test_the_same_message_gives_the_same_event_under_the_same_id() -> None:
    assert events_of(notice_of()) == events_of(notice_of())
    later = events_of(notice_of(replace(VERDICT, revision=2)))
    assert later[0]["id"] != events_of(notice_of())[0]["id"]
