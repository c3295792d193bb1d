"""What the doctor reads of an installation that is well, to be broken in one place by a test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from irregulars.infra.doctor.database import DatabaseFacts
from irregulars.infra.doctor.facts import (
    BrokerFacts,
    GroupFacts,
    JobFacts,
    KafkaFacts,
    Progress,
    StreamFacts,
    TopicFacts,
)
from irregulars.infra.doctor.findings import Finding
from irregulars.kafka.topic_admin import partitions_of, topic_config
from irregulars.kafka.topics import TOPICS, TopicSettings

NOW_S = 1_800_000_000.0
LAYOUT = TopicSettings(partitions=4, replicas=3)
RELEASE = "0.1.0"
EVERYTHING = frozenset({"read", "write", "describe", "create"})


def topic(name: str, **others: Any) -> TopicFacts:
    """One topic as `irregulars topics create` makes it, with ten messages a partition."""
    partitions = partitions_of(name, LAYOUT)
    values: dict[str, Any] = {
        "partitions": partitions,
        "replicas": 3,
        "config": {**topic_config(TOPICS[name]), "min.insync.replicas": "2"},
        "operations": EVERYTHING,
        "begins": dict.fromkeys(range(partitions), 0),
        "ends": dict.fromkeys(range(partitions), 10),
        "since": dict.fromkeys(range(partitions), 5),
        "newest_s": NOW_S - 1,
    }
    if name == "deadletter":
        values |= {"ends": {0: 0}, "since": {0: 0}}
    return TopicFacts(LAYOUT.name(name), **values | others)


def job(**others: Any) -> JobFacts:
    """A job of four ranks on two hosts that runs well."""
    ranks = range(4)
    values: dict[str, Any] = {
        "announced": frozenset(ranks),
        "announced_s": NOW_S - 1000,
        "heard_s": dict.fromkeys(ranks, NOW_S - 1),
        "clocks": frozenset({"shared"}),
        "hosts": {rank: f"node-{rank // 2}" for rank in ranks},
        "evidence_s": NOW_S - 2,
    }
    return JobFacts("llama", 0, 4, **values | others)


def kafka(*, topics: dict[str, TopicFacts] | None = None, stream: dict[str, Any] | None = None,
          **others: Any) -> KafkaFacts:  # fmt: skip
    """All of Kafka; `topics` and `stream` replace parts of it."""
    positions = dict.fromkeys(
        ("jobs", "commops", "iterations", "bandwidth", "gpu_health", "events", "heartbeats"), 10
    )
    heard = StreamFacts(
        progress={number: Progress(NOW_S - 1, positions, RELEASE) for number in range(LAYOUT.partitions)},
        jobs=(job(),),
        heard_since_s=NOW_S - 3600,
        host_clocks_s={"node-0": 0.0, "node-1": -0.1},
    )
    values: dict[str, Any] = {
        "broker": BrokerFacts("kafka:9092", brokers=3, answered_in_s=0.02, broker_clock_s=0.0),
        "topics": {name: topic(name) for name in TOPICS} | (topics or {}),
        "workers": GroupFacts("irregulars", members=("faust on 10.0.0.1",), operations=EVERYTHING),
        "notify": GroupFacts("irregulars.notify", members=("rdkafka on 10.0.0.2",), operations=EVERYTHING,
                             committed={(LAYOUT.name("alerts"), 0): 10}),
        "stream": replace(heard, **stream or {}),
    }  # fmt: skip
    return KafkaFacts(NOW_S, **values | others)


def database(**others: Any) -> DatabaseFacts:
    """A database that is well."""
    values: dict[str, Any] = {
        "version": "26.9.2.1",
        "round_trip_s": 0.004,
        "clock_s": 0.001,
        "rights": {"SELECT": True, "INSERT": True},
        "disks": [("default", 600 << 30, 1000 << 30)],
        "parts": ("operators", 20),
        "stored_s": NOW_S - 5,
    }
    return DatabaseFacts("http://clickhouse:8123", "irregulars_writer", **values | others)


def troubles(found: Iterable[Finding]) -> list[tuple[str, str]]:
    """Level and code of what is not well."""
    return [(one.level, str(one.code)) for one in found if one.level != "ok"]
