"""What one job costs, from 128 to 100,000 ranks: seconds, memory, snapshot and bytes, by rank.

    python -m tests.benchmarks.bench_scale
    python -m tests.benchmarks.bench_scale --ranks 128 8192 --json scale.json
    python -m tests.benchmarks.bench_scale --ranks 8192 --micro-batches 200 --iterations 15

simulates a job of each size, in which one rank turns slow, an iteration at a time. Each iteration is reduced by the
ranks' monitors and judged by the job's, in memory, in a process of its own for each size, which collects garbage as a
worker does. Operators are kept encoded, as Kafka keeps them: reading some back decodes their messages. Prints a
Markdown table. The job of 100,000 ranks takes some fifteen minutes and 12 GiB, most of both for simulator and log.
With 200 micro-batches a rank runs 1,003 operators in an iteration, and 8,192 ranks log 0.37 GB: 15 iterations, of
which the last but four are judged regular and show what is usual, suffice to localize an irregular one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from irregulars.detectors.judging.iteration_rows import Span
from irregulars.kafka.topics import MAX_MESSAGE_BYTES
from irregulars.messages.evidence import Evidence, Membership, decode_evidence
from irregulars.messages.evidence_parts import encode_within_limit
from irregulars.messages.records import Batch, decode_batch, encode_batch
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import Simulation
from irregulars.streams.local_pipeline import LocalPipeline, OperatorLog
from irregulars.streams.snapshots.records import draft_of, encode_part
from irregulars.streams.worker.running import share_the_interpreter

_SIZES: Final = (128, 1_024, 8_192, 32_768, 100_000)
_ITERATIONS: Final = 26
_SLOW_ITERATIONS: Final = (8, 2)
"""The fault lasts from so many iterations before the end to so many before it; of shorter jobs half as long."""

_START_NS: Final = 1_800_000_000_000_000_000


@dataclass
class Cost:
    """What one job took; seconds are of CPU time."""

    ranks: int
    iterations: int
    operators: int = 0
    reduce_s: float = 0.0  # of the first hop, all iterations together
    # regular_s, irregular_s: Of the second hop for each iteration: taking in its evidence, and judging it
    regular_s: list[float] = field(default_factory=list)
    irregular_s: list[float] = field(default_factory=list)
    read_operators: int = 0
    evidence_bytes: int = 0
    snapshot_bytes: int = 0
    # By which the second hop raised the process's memory; the log of operators is not part of it
    memory_mib: float = 0.0
    verdicts: list[str] = field(default_factory=list)

    def row(self) -> str:
        each = self.ranks * self.iterations
        regular, irregular = float(np.median(self.regular_s)), max(self.irregular_s, default=float("nan"))
        return (
            f"| {self.ranks:,} | {self.operators / each:.0f} | {self.reduce_s / each * 1e6:.1f} | {regular:.3f} | "
            f"{irregular:.2f} | {sum(self.regular_s + self.irregular_s) / each * 1e6:.1f} | "
            f"{self.read_operators / self.operators:.1%} | {self.evidence_bytes / each:.0f} | "
            f"{self.snapshot_bytes / self.ranks:.0f} | {self.memory_mib:,.0f} | {', '.join(self.verdicts)} |"
        )


_HEAD: Final = (
    "| ranks | operators per rank and iteration | first hop, us per rank and iteration | second hop, a regular "
    "iteration, s | slowest irregular one, s | second hop, us per rank and iteration | read back | evidence, bytes "
    "per rank and iteration | snapshot, bytes per rank | second hop, MiB | verdict |\n" + "|--:" * 10 + "|:--|"
)


class Log(OperatorLog):
    def __init__(self) -> None:
        self._values: list[bytes] = []
        self.read = 0

    def append(self, batch: Batch) -> int:
        self._values.append(encode_batch(batch))
        return len(self._values) - 1

    def read_back(self, spans: Sequence[Span]) -> list[Batch]:
        found = [decode_batch(self._values[offset], "commops") for span in spans for offset in span.offsets]
        self.read += sum(map(len, found))
        return found


def settings_of(ranks: int, seed: int, micro_batches: int, iterations: int) -> SimulatorSettings:
    """Return a job of about so many ranks, one of which turns slow."""
    pp, tp = 4, 8
    begin, end = (iterations - before // (1 if iterations >= _ITERATIONS else 2) for before in _SLOW_ITERATIONS)
    fault = parse_fault(f"slow_rank:rank={ranks // 3},from={begin},to={end},excess=0.3")
    return SimulatorSettings(
        job=f"job-{ranks}", dp=max(ranks // (pp * tp), 1), pp=pp, tp=tp, micro_batches=micro_batches, tp_operators=1,
        iterations=iterations, seed=seed, faults=(fault,),
    )  # fmt: skip


def measure(ranks: int, seed: int, micro_batches: int, iterations: int) -> Cost:
    share_the_interpreter()
    settings = settings_of(ranks, seed, micro_batches, iterations)
    simulation, log = Simulation(settings, _START_NS), Log()
    announcements = list(simulation.announcements())
    cost = Cost(len(announcements), iterations)
    pipeline = LocalPipeline(settings.job, log=log)
    for one in announcements:
        pipeline.take(one)
    for part in simulation.parts(max_span_s=0.0, max_rows=1):
        for batch in part.batches:
            pipeline.take(batch)
            cost.operators += len(batch) if batch.header.schema == "commops" else 0
        judged(pipeline, reduced(pipeline, cost), cost)
        print(f"{ranks} ranks: {part.past} of {iterations} iterations", file=sys.stderr)
    cost.read_operators = log.read
    draft = draft_of({}, pipeline.monitor.state())
    cost.snapshot_bytes = len(draft.root) + sum(len(encode_part(part)) for part in draft.parts)
    return cost


def reduced(pipeline: LocalPipeline, cost: Cost) -> list[Evidence | Membership]:
    """Reduce what is complete; give it as it travels."""
    began_s = time.process_time()
    values = list(encode_within_limit(pipeline.reduce(), pipeline.job, MAX_MESSAGE_BYTES))
    cost.reduce_s += time.process_time() - began_s
    cost.evidence_bytes += sum(map(len, values))
    return [one for value in values for one in decode_evidence(value)]


def judged(pipeline: LocalPipeline, rows: Sequence[Evidence | Membership], cost: Cost) -> None:
    """Judge what came, and note what that took."""
    before_kib, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    judgements = pipeline.judge(rows)
    took_s = time.process_time() - began_s
    cost.memory_mib += (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    for one in judgements.iterations:
        (cost.irregular_s if one.is_irregular else cost.regular_s).append(took_s / len(judgements.iterations))
    cost.verdicts += [
        f"{one.kind} {one.suspects[0].ranks}" for one in judgements.verdicts if one.event == "opened" and one.suspects
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(_SIZES), help="multiples of 32")
    parser.add_argument("--micro-batches", type=int, default=4, help="more of them: more operators")
    parser.add_argument("--iterations", type=int, default=_ITERATIONS, help="at least 15; the last ones are slow")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    own = parser.parse_args(arguments)
    costs = []
    context = multiprocessing.get_context("spawn")
    for ranks in own.ranks:
        with ProcessPoolExecutor(1, context) as pool:
            costs.append(pool.submit(measure, ranks, own.seed, own.micro_batches, own.iterations).result())
    print(
        f"`python -m tests.benchmarks.bench_scale`: seed {own.seed}; {os.cpu_count()} cores, {platform.machine()}\n"
    )
    print(_HEAD, *(cost.row() for cost in costs), sep="\n")
    if own.json is not None:
        own.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
