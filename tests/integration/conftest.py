"""What tests of the whole product stand on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from irregulars.sinks.connection import DatabaseSettings
from tests.conftest import ClickHouseAddress
from tests.integration.pipelines import Pipeline, drop
from tests.integration.worker_runs import Bus, StartWorker


@pytest.fixture
def pipeline(
    kafka_bootstrap: str, clickhouse: ClickHouseAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    """Topics and a database of the test's own, without any worker yet."""
    own = DatabaseSettings(clickhouse.url, clickhouse.user, clickhouse.password, f"test_{uuid4().hex[:12]}")
    pipeline = Pipeline(kafka_bootstrap, own, tmp_path_factory.mktemp("pipeline"))
    yield pipeline
    pipeline.close()
    drop(own)


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
    """Start workers on the bus; they end with the test."""
    start = StartWorker(bus, tmp_path, **usual_settings)
    yield start
    start.close()
