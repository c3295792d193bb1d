from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from confluent_kafka.admin import AclBinding, AclBindingFilter  # type: ignore[attr-defined]  # it has them

from irregulars.errors import ServiceUnavailable
from irregulars.kafka import access_roles, topic_admin
from irregulars.kafka.topic_admin import create_topics, delete_topics, topic_config
from irregulars.kafka.topics import HOUR_MS, SNAPSHOT_TOPICS, TOPICS, TopicSettings

KAFKAS_DEFAULT_BYTES = 1_048_576
T = TypeVar("T")


def test_no_message_is_larger_than_kafka_takes_unasked() -> None:
    assert {topic_config(one)["max.message.bytes"] for one in TOPICS.values()} == {str(KAFKAS_DEFAULT_BYTES)}


@pytest.mark.parametrize("name", SNAPSHOT_TOPICS)
def test_stale_snapshots_are_cleaned_within_an_hour(name: str) -> None:
    """Kafka compacts no open file of the log, and closes one by default after 7 days or 1 GiB."""
    config = {key: float(value) for key, value in topic_config(TOPICS[name]).items() if key != "cleanup.policy"}
    assert config["segment.ms"] + config["max.compaction.lag.ms"] <= HOUR_MS
    assert config["segment.bytes"] <= 64 << 20
    assert config["delete.retention.ms"] >= config["max.compaction.lag.ms"]


def test_a_topic_is_compacted_or_ends_after_its_retention() -> None:
    for name, topic in TOPICS.items():
        config = topic_config(topic)
        is_compacted = config["cleanup.policy"] == "compact"
        assert is_compacted == topic.is_compacted, name
        assert ("retention.ms" in config) != is_compacted, name
        assert is_compacted or int(config["retention.ms"]) >= HOUR_MS, name


class FarAdmin:
    """Of a cluster whose first broker says what there is, and whose others, which it names, nobody reaches."""

    def create_topics(self, wanted: Iterable[Any], **_: object) -> dict[str, Future[None]]:
        return {one.topic: Future() for one in wanted}

    def delete_topics(self, names: Iterable[str], **_: object) -> dict[str, Future[None]]:
        return {name: Future() for name in names}

    def create_acls(self, wanted: Iterable[Any]) -> dict[Any, Future[None]]:
        return {one: Future() for one in wanted}


RIGHTS = access_roles.rights_of("reader", TopicSettings(), "irregulars")
CALLS: dict[str, Callable[[], object]] = {
    "create": lambda: create_topics("kafka:9092", TopicSettings(), timeout_s=0.01),
    "delete": lambda: delete_topics("kafka:9092", ["a"], {}, timeout_s=0.01),
    "grant": lambda: access_roles.grant("kafka:9092", {}, "User:pager", RIGHTS, timeout_s=0.01),
}


@pytest.mark.parametrize("call", CALLS)
def test_brokers_that_are_named_and_not_reached_are_one_line(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (topic_admin, access_roles):
        monkeypatch.setattr(module, "open_admin", lambda *_: (FarAdmin(), SimpleNamespace(topics={})))
    with pytest.raises(ServiceUnavailable, match=r"^Kafka at kafka:9092 must answer within 0\.01 s; got nothing"):
        CALLS[call]()


class SlowAdmin:
    """Of a broker that still tells of a deleted topic for a while."""

    def __init__(self) -> None:
        self.told = [{"a": object(), "b": object()}, {"a": object()}, {}]

    def delete_topics(self, names: Iterable[str], **_: object) -> dict[str, Future[None]]:
        done: Future[None] = Future()
        done.set_result(None)
        return dict.fromkeys(names, done)

    def list_topics(self, **_: object) -> SimpleNamespace:
        return SimpleNamespace(topics=self.told.pop(0))


def test_deleted_topics_are_gone_for_whoever_makes_them_anew_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = SlowAdmin()
    monkeypatch.setattr(topic_admin, "open_admin", lambda *_: (admin, SimpleNamespace(topics={})))
    delete_topics("kafka:9092", ["a", "b"], {})
    assert admin.told == []


class LaxAdmin:
    """Of a broker that acknowledges changes of rights, and heeds each one question later."""

    def __init__(self) -> None:
        self.known: list[AclBinding] = []
        self.heeded: list[AclBinding] = []

    def create_acls(self, wanted: Iterable[AclBinding]) -> dict[AclBinding, Future[None]]:
        self.known = [*wanted]
        return {one: done(None) for one in self.known}

    def delete_acls(self, wanted: Iterable[AclBindingFilter]) -> dict[AclBindingFilter, Future[list[AclBinding]]]:
        deleted, self.known = self.known, []
        return {asked: done([one]) for asked, one in zip(wanted, deleted, strict=True)}

    def describe_acls(self, _: AclBindingFilter) -> Future[list[AclBinding]]:
        heeded, self.heeded = self.heeded, self.known
        return done(heeded)


def done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


def test_rights_hold_once_granted_and_are_gone_once_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = LaxAdmin()
    monkeypatch.setattr(access_roles, "open_admin", lambda *_: (admin, None))
    access_roles.grant("kafka:9092", {}, "User:pager", RIGHTS)
    assert len(admin.heeded) == len(RIGHTS)
    assert access_roles.revoke("kafka:9092", {}, "User:pager", RIGHTS) == RIGHTS
    assert admin.heeded == []
