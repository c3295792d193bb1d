"""Operators per second of CPU time that `irregulars analyze` reads and judges, case by case.

    python -m tests.benchmarks.bench_analyze [DIRECTORY ...]
    make bench-analyze OPTIONS='DIRECTORY ...'

Without directories some jobs of different size and shape are simulated first. Each case runs in a process of its own,
on one core: what is counted is the CPU time of `producers.trace.directory.read_trace` and of
`infra.runs.analysis.analyze`, not that of starting Python and importing libraries, which is told apart. Prints a
Markdown table with the rate of each case, of all together, and the most memory. Not a test: nothing here fails
because a figure is low.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

SIMULATED: Final = {
    "64 ranks, link": "--set dp=4 --set pp=4 --set tp=4 --iterations 60 "
    "--fault slow_link:src=3,dst=19,from=30,to=50,excess=0.3",
    "256 ranks, rank": "--set dp=16 --set pp=4 --set tp=4 --iterations 60 "
    "--fault slow_rank:rank=5,from=30,to=50,excess=0.3",
    "256 ranks, healthy": "--set dp=32 --set pp=1 --set tp=8 --iterations 80",
    "384 ranks, untidy": "--set dp=12 --set pp=4 --set tp=8 --iterations 50 --preset untidy --preset off_clocks "
    "--fault slow_nic:rank=17,from=25,to=45,excess=0.3",
    "1024 ranks, NIC": "--set dp=32 --set pp=4 --set tp=8 --iterations 40 "
    "--fault slow_nic:rank=17,from=20,to=35,excess=0.3",
}
"""Arguments of ``irregulars simulate``."""

_RUNS: Final = 3


class Measured(NamedTuple):
    """CPU seconds of the stages of one case, the best of some runs, and the most memory of its process."""

    operators: int
    ranks: int
    start_s: float
    read_s: float
    analyze_s: float
    most_mib: float

    @property
    def rate(self) -> float:
        """Operators per CPU second."""
        return self.operators / (self.read_s + self.analyze_s)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path, metavar="DIRECTORY")
    parser.add_argument("--runs", type=int, default=_RUNS, help="the best of so many counts")
    options = parser.parse_args(arguments)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB, Python {platform.python_version()}"
    )
    print(f"\n    python -m tests.benchmarks.bench_analyze {shlex.join(map(str, arguments or sys.argv[1:]))}\n")
    print("| Case | Ranks | Operators | Start, s | Read, s | Analyze, s | Operators per CPU second | Most MiB |")
    print("|:--|--:|--:|--:|--:|--:|--:|--:|")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        cases = ((str(one), one) for one in options.directories) if options.directories else simulated(Path(folder))
        for name, directory in cases:
            one = measure(directory, options.runs)
            found.append(one)
            print(
                f"| {name} | {one.ranks} | {one.operators:,} | {one.start_s:.2f} | {one.read_s:.2f} "
                f"| {one.analyze_s:.2f} | {one.rate:,.0f} | {one.most_mib:,.0f} |",
                flush=True,
            )
    operators, took_s = sum(one.operators for one in found), sum(one.read_s + one.analyze_s for one in found)
    print(f"\nAll: {operators:,} operators in {took_s:.1f} CPU seconds, {operators / took_s:,.0f} per second.")
    return 0


def simulated(folder: Path) -> Iterator[tuple[str, Path]]:
    for number, (name, arguments) in enumerate(SIMULATED.items()):
        directory = folder / str(number)
        command = [sys.executable, "-m", "irregulars", "simulate", str(directory), *shlex.split(arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield name, directory


def measure(directory: Path, runs: int = _RUNS) -> Measured:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(directory, runs, sender))
    process.start()
    sender.close()
    try:
        found: Measured = receiver.recv()
    except EOFError:
        raise RuntimeError(f"{directory}: the process that measures it ended without a result") from None
    process.join()
    return found


def _run(directory: Path, runs: int, sender: Connection) -> None:
    from irregulars.detectors.judging.iteration_judge import IterationJudge
    from irregulars.infra.runs.analysis import analyze
    from irregulars.producers.trace.directory import read_trace
    from irregulars.settings import JudgeSettings

    IterationJudge("", 0, JudgeSettings())  # imports what is imported when it is first needed
    start_s = time.process_time()
    best: tuple[float, float] | None = None
    for _ in range(runs):
        began_s = time.process_time()
        trace = read_trace(directory)
        read_s = time.process_time() - began_s
        analyze(trace)
        took_s = read_s, time.process_time() - began_s - read_s
        best = took_s if best is None or sum(took_s) < sum(best) else best
    assert best is not None
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    operators = sum(len(batch) for batch in trace.commops.values())
    sender.send(Measured(operators, len(trace.commops), start_s, *best, most_mib))


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


if __name__ == "__main__":
    sys.exit(main())
