"""A job whose state is many messages, through a worker that is killed in the middle."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from irregulars.kafka.topics import MAX_MESSAGE_BYTES
from irregulars.sinks.connection import DatabaseSettings
from tests.benchmarks.large_job import run, simulate
from tests.conftest import ClickHouseAddress
from tests.integration.pipelines import Pipeline, drop
from tests.integration.worker_runs import DEADLINE_S

pytestmark = pytest.mark.integration

RANKS, ITERATIONS = 256, 24
SPEED = 0.25  # 15 seconds: the worker is killed while the job runs


def test_a_job_whose_state_is_many_messages_is_judged_as_by_analyze(
    kafka_bootstrap: str, clickhouse: ClickHouseAddress, tmp_path: Path
) -> None:
    """`python -m tests.benchmarks.large_job` does the same with thousands of ranks."""
    simulate(RANKS, ITERATIONS, tmp_path / "job")
    own = DatabaseSettings(clickhouse.url, clickhouse.user, clickhouse.password, f"test_{uuid4().hex[:12]}")
    pipeline = Pipeline(kafka_bootstrap, own, tmp_path)
    try:
        outcome = run(pipeline, tmp_path / "job", ITERATIONS, DEADLINE_S, SPEED)
    finally:
        pipeline.close()
        drop(own)
    assert outcome.wanted
    assert outcome.stored == outcome.wanted
    assert outcome.largest_bytes < MAX_MESSAGE_BYTES
    assert outcome.restored_bytes > RANKS * 300  # it went on from pieces, and did not begin anew
