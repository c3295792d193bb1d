"""Simulates training jobs event by event, independently of the product, and writes labelled trace directories.

    python -m tests.benchmarks.independent.event_level --seed 7 --count 20 --out /tmp/B
    python -m tests.benchmarks.independent.event_level --seed 7 --first 12 --count 1 --out /tmp/B

Writes `B-<seed>-<number>/` with `label.json`; same seed and number: same bytes. `--kind slow_nic/nic` (hang,
healthy/eval, ...) writes only that, and draws other jobs than without.

Model: ranks run programs (compute, kernels on streams, waits); a collective begins when the last member's kernel has
started; its bytes are flows over NVLink, NICs and leaf uplinks, which share max-min fairly with all others. Rings
between hosts are spread over the members' NICs. NIC, switch and link faults begin when the lowest rank of the device
begins the iteration: others may still be in the one before.

`label.json` says kind, device, ranks, iterations (first, past the last), what, and
* ring: "coupled", all edges of a ring have one rate (chunks go round in step), or "flows", each edge its own.
* effect: mean of the job over mean of its twin (same random numbers, no fault) over `iterations`, checkpoints and
  evaluation left out; null for a hang. effect_active: the same over `active`, the iterations with the fault on.
* noise: coefficient of variation of the twin's training iterations without warm-up; new workloads and stalls count.
* hard: effect - 1 below 0.08 or twice the noise; or the same communicators and pairs cross another NIC or leaf
  (unless bandwidth samples show the NIC's highest rate below 0.75 of all others'); or the stage is the host and slow
  from the start; or the ranks are not logged; or a hang where rows may be missing. why_hard says which.
* pair, direction: of a slow link, the ordered pair, and "one" or "both".
Of a hang, `iterations` is the one in which the rank stopped. A healthy job has `iterations` [0, 0], `effect` 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.benchmarks.independent.event_level.running import run
from tests.benchmarks.independent.event_level.scenario import Draw


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True, help="how many jobs")
    parser.add_argument("--out", type=Path, required=True, help="where the directories go")
    parser.add_argument("--first", type=int, default=0, help="number of the first job; default 0")
    parser.add_argument("--kind", help="only this: slow_nic/nic, hang, healthy/eval, ...")
    options = parser.parse_args()
    for number in range(options.first, options.first + options.count):
        began, began_cpu = time.monotonic(), time.process_time()
        name = f"B-{options.seed}-{number}"
        draw = Draw(options.seed, number, options.kind)
        label, rows = run(draw, options.out / name)
        took = f"wall {time.monotonic() - began:.1f} cpu {time.process_time() - began_cpu:.1f}"
        print(
            f"{name} {draw.shape} world {draw.cluster.world} its {draw.iterations} rows {rows} "
            f"kind {label['kind']}/{label['device']} effect {label['effect']} noise {label['noise']} "
            f"hard {label['hard']} [{label.get('why_hard', '')}] | {label['what']} | {took}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
