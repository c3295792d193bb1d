"""How long people wait for the command line: `--help`, and the analysis of a small recording.

    python -m tests.benchmarks.bench_command_line

Each command runs in a process of its own, in turn, and the median counts; the first run of each is left out, as it
may read files from disk and write bytecode. CPU time stands beside it: other work on the machine changes it little.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

_ROOT: Final = Path(__file__).resolve().parents[2]
_RECORDING: Final = _ROOT / "tests" / "recordings" / "gloo-slow-nic"
COMMANDS: Final = {"help": ("--help",), "analyze": ("analyze", str(_RECORDING)), "sql_list": ("sql", "--list")}


def run(arguments: Sequence[str]) -> tuple[float, float]:
    """Return the seconds, and those of CPU time, of one command."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, "-P", "-m", "irregulars", *arguments], cwd=_ROOT, check=True, stdout=subprocess.DEVNULL
    )
    took_s, after = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    own = parser.parse_args(arguments)
    found = {name: np.array([run(command) for _ in range(own.runs + 1)])[1:] for name, command in COMMANDS.items()}
    medians = {name: np.median(rows, axis=0).tolist() for name, rows in found.items()}
    print(f"`python -m tests.benchmarks.bench_command_line`: {os.cpu_count()} cores, {platform.machine()}\n")
    print("| command | median, s | CPU, s | quickest, s |", "|:--|--:|--:|--:|", sep="\n")
    for name, (took_s, cpu_s) in medians.items():
        print(f"| `{name}` | {took_s:.2f} | {cpu_s:.2f} | {found[name][:, 0].min():.2f} |")
    if own.json:
        told = {name: {"took_s": took_s, "cpu_s": cpu_s} for name, (took_s, cpu_s) in medians.items()}
        own.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
