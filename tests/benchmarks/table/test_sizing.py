"""Sizes of an installation."""

from __future__ import annotations

import pytest

from tests.benchmarks.table.__main__ import read_committed
from tests.benchmarks.table.sizing import DAY_S, Site, disk, page_part, partitions_for, size, table

FIGURES = {
    "worker_core": 2.0, "rank_cost_8192": 50.0, "rank_second": 100.0, "operator_compressed": 8.0,
    "evidence_bytes": 80.0, "read_share": 1.0, "stored_bytes": 16.0,
}  # fmt: skip
SITE = Site(operators_per_s=200.0, iteration_s=2.0, used_ratio=0.5, replicas=3)


def test_a_worked_example() -> None:
    found = size(10_000, SITE, FIGURES)
    assert found.cores == pytest.approx(10_000 * (200 / 2e6 + 50e-6 / 2 + 100e-6))  # 2.25
    assert (found.workers, found.partitions) == (5, 16)
    assert found.rows_per_s == pytest.approx(10_000 * (1 / 2 + 200 * 0.01 + 1))
    assert found.kafka_gib * 2**30 == pytest.approx(3 * DAY_S * 10_000 * (200 * 8 * 2 + 80 / 2 * 7))
    assert found.clickhouse_gib * 2**30 == pytest.approx(DAY_S * 10_000 * 16 * ((1 / 2 + 2) * 30 + 7))


def test_there_are_two_workers_at_least_so_that_one_may_be_lost() -> None:
    assert size(8, SITE, FIGURES).workers == 2


@pytest.mark.parametrize("workers", range(1, 70))
def test_there_are_two_partitions_for_each_worker_or_more(workers: int) -> None:
    assert 2 * workers <= partitions_for(workers) <= max(8, 4 * workers)


def test_disk_has_the_unit_that_reads_best() -> None:
    assert [disk(one) for one in (3.21, 2048.0)] == ["3.21 GiB", "2.00 TiB"]


def test_sizes_are_a_line_each() -> None:
    assert table([size(1024, SITE, FIGURES)]).splitlines()[2].startswith("| 1,024 | 0.230 | 2 | 8 | ")


def test_the_committed_figures_are_enough() -> None:
    assert read_committed()["machine"]["cores"] >= 1
    assert "| 100,000 |" in page_part()
