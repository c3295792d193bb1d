"""What tests of the whole product stand on."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from irregulars.sinks.connection import DatabaseSettings
from tests.conftest import ClickHouseAddress
from tests.integration.pipelines import Pipeline, drop


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
