"""The broker and the database that tests share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from irregulars.infra.runs.demo_database import DemoDatabase
from tests.apache_kafka.broker import KafkaBroker

SCRATCH = ("irregulars_", "sinks_", "test_")
"""Databases of tests begin with one of these: the user of our own server may make no others."""


class SharedBroker(KafkaBroker):
    """A broker that nothing stops: if its controller hears nothing of it for 3 s, the machine is busy.

    With the usual limit it would take all partitions from it then, and give it no new ones for minutes.
    """

    def _own_properties(self) -> Mapping[str, str]:
        return {"broker.session.timeout.ms": "120000"}


@contextmanager
def shared_services() -> Iterator[Mapping[str, str]]:
    """Start one of each for all processes of tests, and yield the environment that tells them of it.

    Otherwise each process starts its own (`tests.conftest`), which costs more than most tests.
    """
    with SharedBroker() as broker, DemoDatabase(scratch=SCRATCH) as database:
        address = database.url.replace("//", f"//{database.user}:{database.password}@")
        yield {"KAFKA_BOOTSTRAP": broker.bootstrap, "CLICKHOUSE_URL": f"{address}/{database.database}"}
