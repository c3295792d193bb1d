"""What the first hop keeps of each rank: memory in the worker, bytes in a snapshot.

    python -m tests.benchmarks.bench_rank_state --operators 1000

simulates a job whose ranks have about so many operators in an iteration, each at a position of its own, and reduces
its iterations in memory, but for the last one, which is open. Measured is what Python allocated for the monitors
(`tracemalloc`, which sees numpy's arrays too), apart from the messages of the open iteration and their columns, and
their states as a snapshot has them, that iteration included. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from irregulars.messages import records
from irregulars.messages.records import decode_batch, encode_batch
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import Simulation
from irregulars.settings import JudgeSettings
from irregulars.streams.rank_hop.evidence_reduction import reduce_closings
from irregulars.streams.rank_hop.rank_monitor import RankMonitor
from irregulars.streams.snapshots.records import draft_of, encode_part

_START_NS: Final = 1_800_000_000_000_000_000
_PER_MICRO_BATCH: Final = 5  # operators of a rank in each micro-batch of the simulated job, about


@dataclass(frozen=True)
class Kept:
    """Of each rank, on average."""

    ranks: int
    operators: float
    iterations: int
    # memory_bytes, open_bytes: Of the monitors' state, and of the messages whose iteration is open
    memory_bytes: float
    open_bytes: float
    snapshot_bytes: float
    # message_bytes, compressed_bytes: Of an operator in a message, as it is and as a producer compresses it (zstd)
    message_bytes: float
    compressed_bytes: float


def settings_of(operators: int, iterations: int, seed: int) -> SimulatorSettings:
    return SimulatorSettings(
        job="state", dp=2, pp=4, tp=8, micro_batches=max(operators // _PER_MICRO_BATCH, 1), tp_operators=1,
        iterations=iterations, seed=seed,
    )  # fmt: skip


def measure(operators: int, iterations: int, seed: int) -> Kept:
    """Reduce a job, and weigh what is left."""
    settings = settings_of(operators, iterations, seed)
    simulation, of_job, rows = Simulation(settings, _START_NS), JudgeSettings(), 0
    announcements = list(simulation.announcements())
    parts = [
        [(batch.header.schema, batch.header.rank, encode_batch(batch)) for batch in part.batches]
        for part in simulation.parts(max_span_s=0.0, max_rows=1)
    ]
    tracemalloc.start()
    monitors = {one.rank: RankMonitor(settings.job, one.rank, of_job) for one in announcements}
    for one in announcements:
        monitors[one.rank].announce(one)
    for part in parts:
        for offset, (schema, rank, value) in enumerate(part):
            batch = decode_batch(value[:-1] + value[-1:], schema)  # a copy, which is traced if somebody keeps it
            rows += len(batch) if schema == "commops" else 0
            monitors[rank].add(batch, offset)
        reduce_closings(settings.job, [one for monitor in monitors.values() for one in monitor.take_closed()])
        del batch
    gc.collect()
    all_bytes, open_bytes = traced_bytes(), traced_bytes(__file__, records.__file__)
    tracemalloc.stop()
    drafts = [draft_of({}, monitor.state()) for monitor in monitors.values()]
    snapshot_bytes = sum(len(one.root) + sum(len(encode_part(each)) for each in one.parts) for one in drafts)
    ranks = len(monitors)
    sizes = [one / ranks for one in (all_bytes - open_bytes, open_bytes, snapshot_bytes)]
    values = [value for part in parts for schema, _, value in part if schema == "commops"]
    bytes_each = [
        sum(map(len, values)) / rows,
        sum(len(pa.compress(value, "zstd", asbytes=True)) for value in values) / rows,
    ]
    return Kept(ranks, rows / ranks / iterations, iterations, *sizes, *bytes_each)


def traced_bytes(*files: str) -> int:
    """Return the bytes that were allocated in some files and are still in use; none named: in all."""
    filters = [tracemalloc.Filter(True, f"*{'/'.join(Path(file).parts[-2:])}") for file in files]
    return sum(one.size for one in tracemalloc.take_snapshot().filter_traces(filters).traces)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=1000, help="of a rank in an iteration, about")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    own = parser.parse_args(arguments)
    kept = measure(own.operators, own.iterations, own.seed)
    print(f"`python -m tests.benchmarks.bench_rank_state`: {os.cpu_count()} cores, {platform.machine()}\n")
    print("| ranks | operators per rank and iteration | state | messages of an open iteration | snapshot |")
    print("|--:|--:|--:|--:|--:|")
    kib = " | ".join(f"{one / 1024:.1f}" for one in (kept.memory_bytes, kept.open_bytes, kept.snapshot_bytes))
    print(
        f"| {kept.ranks} | {kept.operators:.0f} | {kib} |\n\nKiB of each rank. Bytes of an operator in a message: "
        f"{kept.message_bytes:.1f}, with zstd {kept.compressed_bytes:.1f}."
    )
    if own.json:
        own.json.write_text(json.dumps(asdict(kept), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
