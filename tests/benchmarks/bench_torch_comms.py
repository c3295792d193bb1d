"""What the hook adds to each operator, on gloo: ``make bench-torch``. Markdown on standard output.

Three processes, each alone in its own group of one rank: nothing hooked, the native hook, the hook in Python. They
take turns in short blocks (so that what else runs on the machine hits all three alike), 10^6 all_reduces of 1 KiB
each. The figure is the mean over blocks of the difference between a hooked block and the unhooked one beside it,
trimmed by a tenth at both ends, with a 95 % bootstrap interval; of processor time (all threads, what training pays
even on a busy machine) and of wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
MODES = ("none", "native", "python")
BLOCK = 500
LEAST_BLOCKS = 20
WARM_UP = 20
SEED = 1


class Worker:
    """A process that runs blocks of operators when told to."""

    def __init__(self, mode: str, directory: Path, core: int | None) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.bench_torch_comms", "--worker", mode]
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        environment = os.environ | {"TORCH_COMMS_BENCH_DIR": str(directory), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._read()

    def run(self, operators: int, call: str) -> tuple[float, float]:
        """Run a block; mean wall time and processor time of an operator, µs."""
        self._write(f"{call} {operators}")
        wall, cpu = json.loads(self._read())
        return wall, cpu

    def close(self) -> dict[str, Any]:
        self._write("end")
        counted = json.loads(self._read())
        self._process.wait(60)
        return counted

    def _write(self, line: str) -> None:
        pipe: IO[str] | None = self._process.stdin
        assert pipe is not None
        pipe.write(line + "\n")
        pipe.flush()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with status {self._process.wait()}")
        return line


def work(mode: str) -> None:
    import torch
    from torch import distributed

    from irregulars import torch_comms

    torch.set_num_threads(1)
    directory = Path(os.environ["TORCH_COMMS_BENCH_DIR"])
    if mode != "none":
        torch_comms.start(trace_dir=directory / mode, hook=mode, job="bench")
    store = distributed.FileStore(str(directory / f"store-{mode}"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    tensor = torch.zeros(256)
    calls = {
        "sync": lambda: distributed.all_reduce(tensor),
        "async": lambda: distributed.all_reduce(tensor, async_op=True).wait(),
    }
    if mode != "none":  # rows leave once an iteration has ended, or after ten seconds: more than the ring holds here
        with torch_comms.iteration(0):
            distributed.all_reduce(tensor)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        name, count = line.split()
        print(json.dumps(_timed(calls[name], int(count))), flush=True)
    lost = torch_comms.lost_rows()
    distributed.destroy_process_group()
    torch_comms.stop()
    print(json.dumps({"lost_rows": lost}), flush=True)


def _timed(call: Callable[[], object], count: int) -> tuple[float, float]:
    for _ in range(WARM_UP):
        call()
    before_ns, before_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(count):
        call()
    wall_ns, cpu_ns = time.perf_counter_ns() - before_ns, time.process_time_ns() - before_cpu_ns
    return wall_ns / count / 1e3, cpu_ns / count / 1e3


def measure_operators(operators: int, core: int | None, call: str) -> dict[str, np.ndarray]:
    """Wall and processor time per operator of each block, µs, per mode; shape (blocks, 2)."""
    times: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as scratch:
        workers = {mode: Worker(mode, Path(scratch), core) for mode in MODES}
        for _ in range(max(LEAST_BLOCKS, operators // BLOCK)):
            for mode, worker in workers.items():
                times[mode].append(worker.run(BLOCK, call))
        for mode, worker in workers.items():
            lost = worker.close()["lost_rows"]
            if lost:
                print(f"{mode}: {lost} rows were dropped by a full ring", file=sys.stderr)
    return {mode: np.array(values) for mode, values in times.items()}


def trimmed_mean(values: np.ndarray) -> float:
    """Mean without the lowest and the highest tenth."""
    ordered = np.sort(values)
    cut = len(ordered) // 10
    return float(ordered[cut : len(ordered) - cut].mean())


def interval(values: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the trimmed mean."""
    random = np.random.default_rng(SEED)
    means = [trimmed_mean(random.choice(values, len(values))) for _ in range(1_000)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def operator_table(times: dict[str, np.ndarray], operators: int, call: str) -> str:
    lines = [
        f"all_reduce of 1 KiB on gloo, one rank, {call}; {operators:,} operators each, in blocks of {BLOCK} that "
        "take turns. µs an operator; added: with 95 % interval.", "",
        "| hook | processor time | added | wall time | added |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for mode in MODES:
        cells = []
        for column in (1, 0):
            values = times[mode][:, column]
            added = values - times["none"][:, column]
            low, high = interval(added)
            cells += [f"{np.median(values):.2f}"]
            cells += ["" if mode == "none" else f"{trimmed_mean(added):.2f} ({low:.2f} to {high:.2f})"]
        lines.append(f"| {mode} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=1_000_000, help="of each of the three")
    parser.add_argument("--core", type=int, help="pin the three processes to this core")
    parser.add_argument("--worker", choices=MODES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker)
    else:
        from irregulars.producers.torch_hook.hooks.native_library import build_library, find_library

        if find_library() is None:
            print(f"built {build_library()}", file=sys.stderr)
        for call in ("sync", "async"):
            times = measure_operators(given.operators, given.core, call)
            print(operator_table(times, given.operators, call), end="\n\n", flush=True)
        print(f"Processes that ran or waited on the machine's {os.cpu_count()} cores: {os.getloadavg()[0]:.0f}.")


if __name__ == "__main__":
    main()
