"""Missing topics end a worker in the end; a broker that does not answer, or refuses us, is no affair of theirs."""

from __future__ import annotations

import asyncio

import pytest

from irregulars.errors import ServiceRefused, ServiceUnavailable, TopicMismatch
from irregulars.streams.worker import needed_services
from irregulars.streams.worker.missing_topics import MissingTopics
from irregulars.streams.worker_settings import WorkerSettings


def looks(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int, away_s: float = 1e-9) -> None:
    def ask(*_: object) -> None:
        raise error

    monkeypatch.setattr(needed_services, "check_topics", ask)
    watch = MissingTopics(WorkerSettings("broker:9092", broker_away_s=away_s))
    for _ in range(times):
        asyncio.run(watch.look())


@pytest.mark.parametrize("kind", [ServiceUnavailable, ServiceRefused])
def test_a_broker_that_is_away_or_refuses_a_new_login_ends_no_worker(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    looks(monkeypatch, kind("no"), 5)


def test_topics_that_stay_away_end_a_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TopicMismatch):
        looks(monkeypatch, TopicMismatch("none named irregulars.evidence"), 3)
    assert [one.levelname for one in caplog.records if "event=topics_missing" in one.getMessage()] == ["ERROR"]


def test_topics_may_be_away_for_as_long_as_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, TopicMismatch("none"), 5, away_s=300.0)


def test_a_look_keeps_no_worker_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(needed_services, "check_topics", lambda *arguments: asked.append(arguments))
    asyncio.run(MissingTopics(WorkerSettings("broker:9092", broker_timeout_s=30.0)).look())
    (_, _, _, timeout_s, _) = asked[0]
    assert timeout_s == 5.0, "its thread ends no sooner, and the process waits for it"
