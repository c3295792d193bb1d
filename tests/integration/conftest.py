"""What tests of the whole product stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from irregulars.sinks.connection import DatabaseSettings
from tests.conftest import ClickHouseAddress
from tests.integration.notify_runs import NotifyRun
from tests.integration.pipelines import Pipeline, own_database
from tests.integration.worker_runs import Bus, StartWorker, wait_until


@pytest.fixture
def database(clickhouse: ClickHouseAddress) -> Iterator[DatabaseSettings]:
    """The name of a database of the test's own, which does not exist yet."""
    with own_database(clickhouse) as own:
        yield own


@pytest.fixture
def pipeline(
    kafka_bootstrap: str, database: DatabaseSettings, partitions: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """Topics and a database of the test's own, without any worker yet."""
    pipeline = Pipeline(kafka_bootstrap, database, tmp_path_factory.mktemp("pipeline"), partitions)
    yield pipeline
    pipeline.close()


@pytest.fixture
def partitions() -> int:
    """Partitions of the bus; for tests to override."""
    return 4


@pytest.fixture
def usual_settings() -> Mapping[str, Any]:
    """Settings of each worker that is told nothing else; for tests to override."""
    return {}


@pytest.fixture
def bus(kafka_bootstrap: str, partitions: int) -> Iterator[Bus]:
    """Topics of the test's own."""
    bus = Bus(kafka_bootstrap, partitions)
    yield bus
    bus.close()


@pytest.fixture
def start_worker(bus: Bus, tmp_path: Path, usual_settings: Mapping[str, Any]) -> Iterator[StartWorker]:
    start = StartWorker(bus, tmp_path, **usual_settings)
    yield start
    start.close()


@pytest.fixture
def start_notify(bus: Bus, tmp_path: Path) -> Iterator[Callable[..., NotifyRun]]:
    """Start processes of notify, and wait until each is loaded if it is not to stand by; they end with the test."""
    runs: list[NotifyRun] = []

    def start(channels: str, *, stands_by: bool = False) -> NotifyRun:
        runs.append(NotifyRun(bus, tmp_path, channels))
        if not stands_by:
            wait_until(runs[-1].is_loaded, "start")
        return runs[-1]

    yield start
    for one in runs:
        one.close()
