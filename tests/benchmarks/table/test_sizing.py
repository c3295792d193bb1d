"""Sizes of an installation."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from irregulars.infra.configuration.agent_settings import NicsTable
from tests.benchmarks.table.__main__ import read_committed
from tests.benchmarks.table.sizing import (
    DAY_S,
    GPU_ROWS_PER_S,
    SAMPLE_KAFKA_BYTES,
    SAMPLE_US,
    THINNED_MS,
    Site,
    disk,
    page_part,
    partitions_for,
    size,
    table,
)

FIGURES = {
    "worker_core": 2.0, "rank_cost_8192": 50.0, "rank_second": 100.0, "operator_compressed": 8.0,
    "evidence_bytes": 80.0, "read_share": 1.0, "stored_bytes": 16.0, "idle": 256.0, "rank_state": 10.0,
    "rank_open": 40.0, "memory_100000": 1.0,
}  # fmt: skip
SITE = Site(operators_per_s=200.0, iteration_s=2.0, nic_period_ms=100.0, used_ratio=0.5, replicas=3)
ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "infra" / "docs"


def test_a_worked_example() -> None:
    found = size(10_000, SITE, FIGURES)
    assert found.cores == pytest.approx(10_000 * (200 / 2e6 + 50e-6 / 2 + 100e-6 + 10 * SAMPLE_US * 1e-6))  # 2.29
    assert (found.workers, found.partitions) == (5, 16)
    assert found.rows_per_s == pytest.approx(10_000 * (1 / 2 + 200 * 0.01 + 10 + GPU_ROWS_PER_S))
    on_kafka = (200 * 8 + 10 * SAMPLE_KAFKA_BYTES) * 2 + 80 / 2 * 7
    assert found.kafka_gib * 2**30 == pytest.approx(3 * DAY_S * 10_000 * on_kafka)
    stored = (1 / 2 + 2) * 30 + (10 + GPU_ROWS_PER_S) * 7
    assert found.clickhouse_gib * 2**30 == pytest.approx(DAY_S * 10_000 * 16 * stored)
    assert found.memory_gib == pytest.approx(256 / 1024 + 1.5 * 2_000 * 50 / 2**20 + 0.1)


def test_samples_come_as_often_as_the_shipped_agent_takes_them() -> None:
    shipped = tomllib.loads((ROOT / "infra" / "node" / "agent.toml").read_text())
    assert Site().nic_period_ms == NicsTable().period_ms == shipped["nics"]["period_ms"]


def test_the_pages_say_the_same() -> None:
    figures = read_committed()["figures"]
    shipped, thinned = (size(8_192, replace(Site(), nic_period_ms=ms), figures) for ms in (10.0, THINNED_MS))
    guide, operating = ((DOCS / name).read_text() for name in ("install.md", "operating.md"))
    assert f"[{disk(shipped.clickhouse_gib)}](operating.md#how-many-workers" in guide
    assert f"[{disk(thinned.clickhouse_gib)}](operating.md#to-store-fewer-samples)" in guide
    (daily,) = re.findall(r"^\| `bandwidth` \|.* ([\d,]+) \|$", operating, re.MULTILINE)
    per_day = DAY_S * Site().samples_per_s * figures["stored_bytes"]
    assert float(daily.replace(",", "")) == pytest.approx(per_day, rel=0.02)
    (workers,) = re.findall(r"8,192 GPUs.*\| (\w+) workers", guide)
    assert (workers, shipped.workers) == ("thirteen", 13)
    assert shipped.memory_gib < 1.0, "half of the kit's limit"


def test_there_are_two_workers_at_least_so_that_one_may_be_lost() -> None:
    assert size(8, SITE, FIGURES).workers == 2


def test_there_are_two_partitions_for_each_worker_or_more() -> None:
    for workers in range(1, 70):
        assert 2 * workers <= partitions_for(workers) <= max(8, 4 * workers)


def test_disk_has_the_unit_that_reads_best() -> None:
    assert [disk(one) for one in (3.21, 2048.0)] == ["3.21 GiB", "2.00 TiB"]


def test_sizes_are_a_line_each() -> None:
    assert table([size(1024, SITE, FIGURES)]).splitlines()[2].startswith("| 1,024 | 0.234 | 2 | 8 | ")


def test_the_committed_figures_are_enough() -> None:
    assert read_committed()["machine"]["cores"] >= 1
    assert "| 100,000 |" in page_part()
