"""The figures of the table: which benchmark gives each, how it is read from that one's JSON, what it must reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np


@dataclass(frozen=True)
class Program:
    """A benchmark, run as ``python -m MODULE OPTIONS --json FILE``."""

    name: str
    module: str
    options: tuple[str, ...] = ()
    # Seconds after which it is ended; several times what two cores with nothing else to do need
    limit_s: float = 600.0
    is_quick: bool = True  # whether it is part of the quick set


@dataclass(frozen=True)
class Figure:
    key: str
    about: str
    unit: str
    program: str
    read: Callable[[Any], float]  # takes the value from the JSON that `program` wrote
    # What it must reach: no less where more is better, else no more; `None`: it is only shown
    must: float | None = None
    is_more_better: bool = False  # whether a larger value is the better one
    # Whether it is compared with the committed value. The others depend on the machine, and are only shown.
    is_ratio: bool = False


def worker_rate(reader: str) -> Callable[[Any], float]:
    """Read M operators a second of one reader."""
    return lambda told: told["operators"] / told["took_s"][reader] / 1e6


def worker_ratio(reader: str) -> Callable[[Any], float]:
    """Read the worker's rate as a share of another reader's."""
    return lambda told: told["took_s"][reader] / told["took_s"][_WORKER]


def field(*names: str, scale: float = 1.0) -> Callable[[Any], float]:
    """Read a value below some names."""

    def read(told: Any) -> float:
        for name in names:
            told = told[name]
        return float(told) * scale

    return read


def of_size(ranks: int, value: Callable[[Any], float]) -> Callable[[Any], float]:
    """Read a value of the job of `ranks` ranks, of those that `bench_scale` ran."""
    return lambda told: value(next(one for one in told if one["ranks"] == ranks))


def rank_cost_s(cost: Any) -> float:
    """CPU seconds of both hops, as many as they are for each rank of all iterations together."""
    return float((cost["reduce_s"] + sum(cost["regular_s"] + cost["irregular_s"])) / cost["ranks"])


def growth(small: int, large: int) -> Callable[[Any], float]:
    """Read how much more a rank costs in the larger of two jobs."""
    return lambda told: of_size(large, rank_cost_s)(told) / of_size(small, rank_cost_s)(told)


def alert_s(percent: float) -> Callable[[Any], float]:
    def read(told: Any) -> float:
        delays = [one["seconds"] for one in told["delays"] if one["topic"] == "alerts"]
        return float(np.percentile(delays, percent))

    return read


def regular_s(cost: Any) -> float:
    """CPU seconds of a regular iteration in the second hop."""
    return float(np.median(cost["regular_s"]))


def irregular_s(cost: Any) -> float:
    """CPU seconds of the slowest irregular iteration in the second hop."""
    return float(max(cost["irregular_s"]))


def scaled(workers: int) -> Callable[[Any], float]:
    """Read how much more several workers did than one, each with the same quota of a core."""

    def read(told: Any) -> float:
        rates: dict[int, list[float]] = {}
        for run in told["runs"]:
            if run["is_limited"]:
                even = run["messages"] / run["took_s"] * run["largest_share"] * run["workers"] / run["quota"]
                rates.setdefault(run["workers"], []).append(even)
        return float(np.median(rates[workers]) / np.median(rates[1]))

    return read


_WORKER: Final = "worker, broker to evidence"
_FAUST: Final = "Faust agent, counting bytes"
_PLAIN: Final = "confluent-kafka, reading"
_THOUSAND: Final = "200"  # micro-batches of the simulated job that give a rank about 1,000 operators in an iteration

PROGRAMS: Final[Sequence[Program]] = (
    Program("worker", "tests.benchmarks.bench_worker", ("--batches", "12000"), limit_s=400),
    Program("command-line", "tests.benchmarks.bench_command_line", limit_s=300),
    Program("rank-state", "tests.benchmarks.bench_rank_state", limit_s=120),
    Program("idle", "tests.benchmarks.bench_idle", limit_s=300),
    Program("publish", "tests.benchmarks.bench_publish", limit_s=300),
    Program("store", "tests.benchmarks.bench_store", limit_s=300),
    Program("scale", "tests.benchmarks.bench_scale", ("--ranks", "128", "1024", "8192"), limit_s=1800),
    Program("alerts", "tests.benchmarks.alert_delay", ("--jobs", "3"), limit_s=900),
    Program("agent", "tests.benchmarks.bench_agent", ("--only", "4"), limit_s=200),
    Program(
        "thousand",
        "tests.benchmarks.bench_scale",
        ("--ranks", "8192", "--micro-batches", _THOUSAND, "--iterations", "15"),
        7200.0,
        False,
    ),
    Program("large", "tests.benchmarks.bench_scale", ("--ranks", "128", "100000"), 7200.0, False),
    Program("scale-out", "tests.benchmarks.bench_scale_out", limit_s=3600.0, is_quick=False),
    Program("questions", "tests.benchmarks.bench_questions", limit_s=3600.0, is_quick=False),
)

FIGURES: Final[Sequence[Figure]] = (
    Figure("worker", "one worker, Kafka to evidence", "M operators/s", "worker", worker_rate(_WORKER), None, True),
    Figure(
        "worker_of_faust", "… of a Faust agent that only counts bytes", "", "worker", worker_ratio(_FAUST),
        0.60, True, True,
    ),
    Figure(
        "worker_of_plain", "… of plain confluent-kafka", "", "worker", worker_ratio(_PLAIN), 0.15, True, True,
    ),
    Figure(
        "operator_bytes", "an operator on Kafka, not compressed", "bytes", "worker",
        lambda told: told["size_bytes"] / told["operators"],
    ),
    Figure(
        "rank_state", "first hop, state of a rank with 1,000 operators", "KiB", "rank-state",
        field("memory_bytes", scale=1 / 1024), 64.0,
    ),
    Figure(
        "rank_open", "… messages of its open iteration", "KiB", "rank-state", field("open_bytes", scale=1 / 1024),
    ),
    Figure(
        "operator_compressed", "an operator on Kafka, as producers compress it", "bytes", "rank-state",
        field("compressed_bytes"),
    ),
    Figure("idle", "idle worker of 1,024 ranks", "MiB", "idle", field("idle_mib"), 300.0),
    Figure("scaled_4", "4 workers of a fifth of a core each, of one", "", "scale-out", scaled(4), 3.6, True, True),
    Figure("worker_core", "a worker's operators in a second of CPU time", "M operators", "scale-out",
           lambda told: told["runs"][0]["operators"] / told["costs"]["worker_message_s"] / 1e6, None, True),
    Figure("broker_message", "broker, CPU for a message", "us", "scale-out",
           field("costs", "broker_message_s", scale=1e6)),
    Figure("worker_message", "worker, CPU for a message", "us", "scale-out",
           field("costs", "worker_message_s", scale=1e6)),
    Figure("rank_second", "worker, CPU for a rank's snapshots in a second", "us", "scale-out",
           field("costs", "ranks_ratio", scale=1e6 / 256)),
    Figure("alert_p50", "from the deciding iteration's end to the alert: median", "s", "alerts", alert_s(50)),
    Figure("alert_p99", "… 99th percentile", "s", "alerts", alert_s(99), 2.0),
    Figure("rank_cost_8192", "both hops, a rank of 8,192 and an iteration", "us CPU", "scale",
           of_size(8192, lambda cost: rank_cost_s(cost) / 26 * 1e6)),
    Figure("growth_8192", "… of one of 1,024", "", "scale", growth(1024, 8192), 1.3, False, True),
    Figure("growth_100000", "a rank of 100,000, of one of 128", "", "large", growth(128, 100_000), 1.3, False, True),
    Figure(
        "snapshot", "snapshot of a job, largest of 128, 1,024 and 8,192 ranks", "bytes/rank", "scale",
        lambda told: max(one["snapshot_bytes"] / one["ranks"] for one in told), 1000.0,
    ),
    Figure("localization", "8,192 ranks × 1,000 operators, slowest irregular iteration", "s CPU", "thousand",
           of_size(8192, irregular_s), 2.0),
    Figure("regular_100000", "100,000 ranks, a regular iteration", "s CPU", "large",
           of_size(100_000, regular_s), 0.5),
    Figure("irregular_100000", "… the slowest irregular one", "s CPU", "large", of_size(100_000, irregular_s), 20.0),
    Figure("memory_100000", "… memory of the second hop", "GiB", "large",
           of_size(100_000, field("memory_mib", scale=1 / 1024)), 8.0),
    Figure("evidence_bytes", "evidence of a rank and iteration", "bytes", "scale",
           of_size(8192, lambda cost: cost["evidence_bytes"] / cost["ranks"] / 26)),
    Figure("read_share", "operators read back, 8,192 ranks, 6 of 26 iterations irregular", "%", "scale",
           of_size(8192, lambda cost: 100 * cost["read_operators"] / cost["operators"])),
    Figure("second_hop_8192", "8,192 ranks, a regular iteration", "s CPU", "scale", of_size(8192, regular_s)),
    Figure("stored", "operators stored in ClickHouse", "rows/s", "store",
           lambda told: told["rows"] / told["took_s"]["sink, from numpy"], 400_000.0, True),
    Figure("stored_of_limit", "… of what the database takes", "", "store",
           lambda told: told["took_s"]["insert of ready tables"] / told["took_s"]["sink, from numpy"],
           None, True, True),
    Figure("stored_bytes", "… on disk", "bytes/row", "store", field("bytes_per_row")),
    Figure("questions", "the slowest question that ships, over 100 M rows", "s", "questions",
           lambda told: max(one["warm_ms"] for one in told["asked"]) / 1000),
    Figure("publish", "publishing, of one core", "M operators/s", "publish",
           lambda told: min(one["million_operators_per_core_s"] for one in told), 2.0, True),
    Figure("agent", "a node's agent", "% of a core", "agent", lambda told: told[0]["core_ratio"] * 100, 2.0),
    Figure("help", "`irregulars --help`", "s", "command-line", field("help", "took_s"), 0.25),
    Figure("help_cpu", "… CPU", "s CPU", "command-line", field("help", "cpu_s")),
    Figure("analyze", "`irregulars analyze` of a small recording", "s", "command-line",
           field("analyze", "took_s"), 1.0),
    Figure("analyze_cpu", "… CPU", "s CPU", "command-line", field("analyze", "cpu_s")),
)  # fmt: skip
