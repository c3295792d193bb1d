"""Train with faults of arithmetic: ``python -m tests.benchmarks.numerics --seed 1 --trials 40 --out DIR``.

Four processes (torch, gloo) train a small transformer, as replicas of each other. A trial leaves the run that it
shares with others at the step of its fault, and goes on for 30 steps, or 60 where the fault recurs. `torch_comms`
records all of it with its sensors and audits; each trial becomes a trace directory with its truth in ``label.json``.
Clean runs follow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RANKS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--clean", type=int, default=500, help="steps of each clean run; 0: none")
    parser.add_argument("--checksum-steps", type=int, default=16, help="as of torch_comms.watch_numerics")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    numbers = (given.seed, given.trials, given.clean, given.checksum_steps)
    return launch("tests.benchmarks.numerics.worker", str(given.out.resolve()), *map(str, numbers))


def launch(module: str, *what: str, count: int = RANKS) -> int:
    """Run a module in processes that find each other, and wait for them; return the largest status."""
    with tempfile.TemporaryDirectory() as scratch:
        own = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "NUMERICS_STORE": f"{scratch}/store"}
        own = os.environ | own | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-m", module, *what]
        ranks = [subprocess.Popen(command, cwd=ROOT, env=own | {"RANK": str(rank)}) for rank in range(count)]
        try:
            return max(one.wait() for one in ranks)
        finally:
            for one in ranks:
                one.kill()


if __name__ == "__main__":
    sys.exit(main())
