"""How many workers, partitions, and how much disk for some GPUs, from the committed figures.

    python -m tests.benchmarks.table.sizing --gpus 2048 --operators-per-s 400 --iteration-s 2

`infra/docs/operating.md` explains the formula; the table there is made here.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from irregulars.infra.agent_settings import NicsTable
from tests.benchmarks.table.comparing import number, read_committed

DAY_S: Final = 86_400
_GIB: Final = 1 << 30
EXAMPLES: Final = (1_024, 8_192, 100_000)
THINNED_MS: Final = 100.0
SAMPLE_US: Final = 0.37
"""CPU of a worker to decode a sample of a NIC and store it, µs: `python -m tests.benchmarks.sample_cost`."""

SAMPLE_KAFKA_BYTES: Final = 18.8  # of a sample on Kafka, compressed: the same
GPU_ROWS_PER_S: Final = 3
"""Rows that a GPU gives a second, as the agent is shipped: its state, and its rates over PCIe and over NVLink."""

_LARGEST_SHARE: Final = 1.5  # of a worker's mean, by ranks: keys spread over twice as many partitions as workers
_JOB_RANKS: Final = 100_000  # of the figure memory_100000


@dataclass(frozen=True)
class Site:
    """What is known of an installation beside its GPUs."""

    operators_per_s: float = 250.0  # of one GPU
    iteration_s: float = 4.0  # of its jobs
    # From one sample of a GPU's NIC to the next: ``[nics] period_ms`` of the agent's file, as shipped
    nic_period_ms: float = NicsTable().period_ms
    used_ratio: float = 0.5  # share of a worker's core that may be used: the rest catches up after a restart
    replicas: int = 3  # copies that Kafka keeps
    # operators_days, evidence_days, rows_days, samples_days: How long Kafka keeps operators and evidence, and
    # ClickHouse rows and samples of NICs: our defaults
    operators_days: float = 2.0
    evidence_days: float = 7.0
    rows_days: float = 30.0
    samples_days: float = 7.0

    @property
    def samples_per_s(self) -> float:
        """Samples of one GPU's NIC."""
        return 1000 / self.nic_period_ms


@dataclass(frozen=True)
class Size:
    """What is needed; disk and memory in GiB, the latter of the worker that has the most, and the largest job."""

    gpus: int
    cores: float
    workers: int
    partitions: int
    memory_gib: float
    kafka_gib: float
    clickhouse_gib: float
    rows_per_s: float


def size(gpus: int, site: Site, figures: Mapping[str, float]) -> Size:
    """Return what some GPUs need, by the figures of ``infra/docs/bench.json``."""
    operators_per_s, iterations_per_s = gpus * site.operators_per_s, gpus / site.iteration_s
    samples_per_s = gpus * site.samples_per_s
    cores = (
        operators_per_s / (figures["worker_core"] * 1e6)
        + iterations_per_s * figures["rank_cost_8192"] / 1e6
        + gpus * figures["rank_second"] / 1e6
        + samples_per_s * SAMPLE_US / 1e6
    )
    workers = max(2, math.ceil(cores / site.used_ratio))
    read_per_s = operators_per_s * figures["read_share"] / 100
    kafka_bytes = DAY_S * site.replicas * (
        operators_per_s * figures["operator_compressed"] * site.operators_days
        + samples_per_s * SAMPLE_KAFKA_BYTES * site.operators_days
        + iterations_per_s * figures["evidence_bytes"] * site.evidence_days
    )  # fmt: skip
    sampled_per_s = samples_per_s + gpus * GPU_ROWS_PER_S
    rows = DAY_S * ((iterations_per_s + read_per_s) * site.rows_days + sampled_per_s * site.samples_days)
    return Size(
        gpus, cores, workers, partitions_for(workers), memory_gib(gpus, workers, figures), kafka_bytes / _GIB,
        rows * figures["stored_bytes"] / _GIB, iterations_per_s + read_per_s + sampled_per_s,
    )  # fmt: skip


def memory_gib(gpus: int, workers: int, figures: Mapping[str, float]) -> float:
    """Return the memory of the worker that has most ranks, and the second hop of a job of all GPUs, GiB."""
    own = _LARGEST_SHARE * gpus / workers * (figures["rank_state"] + figures["rank_open"]) / (1 << 20)
    return figures["idle"] / 1024 + own + gpus * figures["memory_100000"] / _JOB_RANKS


def partitions_for(workers: int) -> int:
    """Return twice as many as workers, so that none has much more than another; a power of two from 8 on.

    >>> [partitions_for(workers) for workers in (1, 4, 5, 40)]
    [8, 8, 16, 128]
    """
    return max(8, 1 << math.ceil(math.log2(2 * workers)))


def table(sizes: Sequence[Size]) -> str:
    head = (
        "| GPUs | cores in use | workers | partitions | memory of a worker | Kafka, disk | ClickHouse, disk | "
        "rows/s stored |\n|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    rows = [
        f"| {one.gpus:,} | {number(one.cores)} | {one.workers:,} | {one.partitions:,} | {disk(one.memory_gib)} | "
        f"{disk(one.kafka_gib)} | "
        f"{disk(one.clickhouse_gib)} | {one.rows_per_s:,.0f} |"
        for one in sizes
    ]
    return "\n".join([head, *rows]) + "\n"


def disk(gib: float) -> str:
    return f"{number(gib / 1024)} TiB" if gib >= 1024 else f"{number(gib)} GiB"


def inputs(figures: Mapping[str, float]) -> str:
    names = {
        "worker_core": ("`R`", "operators of a worker in a second of CPU time", "M"),
        "rank_cost_8192": ("`c`", "CPU of a rank and iteration, both hops", "µs"),
        "rank_second": ("`s`", "CPU of a rank's snapshots in a second", "µs"),
        "operator_compressed": ("`k`", "an operator on Kafka, compressed", "bytes"),
        "evidence_bytes": ("`e`", "evidence of a rank and iteration", "bytes"),
        "read_share": ("`r`", "operators that are read back, taken for stored", "%"),
        "stored_bytes": ("`d`", "a row in ClickHouse", "bytes"),
        "idle": ("`m`", "memory of a worker with little to do", "MiB"),
        "rank_state": ("`q`", "state of a rank in it", "KiB"),
        "rank_open": ("`o`", "messages of a rank's open iteration", "KiB"),
        "memory_100000": ("`j`", "memory of the second hop of a job of 100,000 ranks", "GiB"),
    }
    rows = [f"| {sign} | {about} | {number(figures[key])} {unit} |" for key, (sign, about, unit) in names.items()]
    rows += [
        f"| `u` | CPU of a worker for a sample of a NIC | {number(SAMPLE_US)} µs |",
        f"| `v` | a sample on Kafka, compressed | {number(SAMPLE_KAFKA_BYTES)} bytes |",
    ]
    return "\n".join(["| | figure | value |", "|---|:--|--:|", *rows]) + "\n"


def page_part() -> str:
    """Return both tables, of the committed figures and the examples of the page."""
    figures = read_committed()["figures"]
    sizes = [size(gpus, Site(), figures) for gpus in EXAMPLES]
    thin = replace(Site(), nic_period_ms=THINNED_MS)
    thinned = table([size(gpus, thin, figures) for gpus in EXAMPLES])
    shipped = f"As shipped, a sample of each GPU's NIC each {Site().nic_period_ms:g} ms:"
    return (
        f"{inputs(figures)}\n{shipped}\n\n{table(sizes)}\n"
        f"With `[nics] period_ms = {THINNED_MS:g}` in the agent's file:\n\n{thinned}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Site()
    parser.add_argument("--gpus", type=int, nargs="+", default=list(EXAMPLES))
    parser.add_argument("--operators-per-s", type=float, default=usual.operators_per_s, help="of one GPU")
    parser.add_argument("--iteration-s", type=float, default=usual.iteration_s)
    parser.add_argument("--nic-period-ms", type=float, default=usual.nic_period_ms, help="between samples of a NIC")
    parser.add_argument("--used-ratio", type=float, default=usual.used_ratio, help="of a worker's core")
    parser.add_argument("--replicas", type=int, default=usual.replicas, help="copies that Kafka keeps")
    own = vars(parser.parse_args(arguments))
    gpus = own.pop("gpus")
    print(table([size(one, replace(usual, **own), read_committed()["figures"]) for one in gpus]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
