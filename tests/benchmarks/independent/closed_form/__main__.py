"""Writes labelled traces of simulated training jobs, by a simulator whose author never read the product.

    python -m tests.benchmarks.independent.closed_form --suite tidy --seed 1 --count 10 --out DIR

Suites are tidy, untidy, ddp, dims (many dimensions) and large. `--first N` begins at job N; job N of a suite and seed
is the same whatever else is made. Each has a folder: job.json, label.json, commops.parquet, and sometimes
iterations.parquet and bandwidth.parquet.

Model: compute is work × permanent factor of the rank × noise; a collective ends for all members at the last arrival
plus latency plus bytes over the rate of its slowest NIC (NVLink inside a host); a message at the later post plus its
transfer; gradient buckets and FSDP gathers are in order on a second stream. Every iteration's randomness depends on
the seed and the iteration alone: the twin without the fault differs by the fault only. A fault's strength is searched
for the effect that was drawn.

Label: kind, device, ranks, iterations [first, past), effect (over the iterations on, training only, the first 5 left
out where others are; null for a hang; 1 if healthy), noise (of the twin's training iterations from the sixth on,
steps and waves of work included), hard and why_hard, healthy, what, logged, onset (lasting, while, fluctuating,
start, hang), mode (clock, loader, cpu, network, stage, replica, hang), on (iterations, if fluctuating), direction,
strength, peer, sender and receiver of a link, switch, host and nic, job (shape). `size_bytes` is the whole buffer,
also for all_gather and reduce_scatter.

Simplified: no contention between kinds of groups on one NIC; rings as slow as their slowest NIC; world operators are
latency only; stalls of the network hit collectives, not messages; no gather beside the next iteration.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tests.benchmarks.independent.closed_form.suites import SUITES, make


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.independent.closed_form",
        description="Writes labelled traces of simulated training jobs.",
    )
    parser.add_argument("--suite", choices=SUITES, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="number of the first job (default 0)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for number in range(options.first, options.first + options.count):
        began = time.monotonic()
        name, label = make(options.suite, options.seed, number, options.out)
        effect = f"{label['effect']:.2f}" if isinstance(label["effect"], float) else "-"
        hard = f" hard: {label['why_hard']}" if label["hard"] else ""
        print(
            f"{name}: {label['kind'] or 'healthy'} {label['device'] or ''} effect {effect}"
            f" noise {label['noise']:.3f}{hard} | {label['what']} | {label['rows']} rows,"
            f" {time.monotonic() - began:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
