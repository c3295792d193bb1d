"""How long the two largest inputs of a hang take: ``python -m tests.benchmarks.bench_field [--ranks 1024]``.

Dumps of the flight recorder with 2,000 entries each, and a training log of 2 GB with a few lines of watchdogs at its
end. Prints seconds and the peak of memory of ``irregulars analyze``; the files go to a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import pickle
import pickletools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_GROUPS = {"0": {"name": "0", "desc": "default_pg"}, "1": {"name": "1", "desc": "dp"}}
_MEASURED = """
import resource, runpy, sys
sys.argv = ["irregulars", "analyze", sys.argv[1], "--json"]
try:
    runpy.run_module("irregulars", run_name="__main__")
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
"""


def write_dumps(folder: Path, ranks: int, entries: int) -> None:
    """Write pickles as PyTorch does, with stacks; rank 5 never entered the last call."""
    members = json.dumps(list(range(ranks)))
    groups = {name: {**one, "ranks": members} for name, one in _GROUPS.items()}
    frames = [{"name": f"function_{n}", "filename": f"/opt/train/module_{n}.py", "line": n} for n in range(12)]
    for rank in range(ranks):
        rows = [_entry(rank, n, entries, frames) for n in range(entries - (rank == 5))]
        value = {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": rows}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickletools.optimize(pickle.dumps(value, 2)))


def _entry(rank: int, number: int, entries: int, frames: list[dict[str, object]]) -> dict[str, object]:
    is_last = number == entries - 1
    start_ns = 1_780_000_000_000_000_000 + number * 5_000_000 + rank
    return {
        "record_id": number, "pg_id": number % 2,
        "process_group": [str(number % 2), "dp" if number % 2 else "default_pg"],
        "thread_name": "python", "thread_id": "1", "collective_seq_id": number // 2 + 1, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": "nccl:all_reduce", "time_created_ns": start_ns,
        "input_sizes": [[4096]], "input_dtypes": ["Float"], "output_sizes": [[4096]], "output_dtypes": ["Float"],
        "state": "started" if is_last else "completed", "time_discovered_started_ns": start_ns + 1,
        "time_discovered_completed_ns": None if is_last else start_ns + 900_000, "retired": not is_last,
        "timeout_ms": 600_000, "is_p2p": False, "frames": frames,
    }  # fmt: skip


def write_log(path: Path, size_bytes: int, ranks: int) -> None:
    """Write a log of a training job whose rank 5 is missing from an all_reduce."""
    lines = [
        f"[rank{n % ranks}]: 2026-11-27 12:00:{n % 60:02d} INFO step {n} loss 2.{n % 1000:03d} lr 3e-4 tokens/s "
        f"51234 mfu 0.41 grad_norm 0.{n % 97:02d}\n"
        for n in range(100_000)
    ]
    block = "".join(lines).encode()
    with path.open("wb") as out:
        for _ in range(max(size_bytes // len(block), 1)):
            out.write(block)
        for rank in (rank for rank in range(ranks) if rank != 5):
            out.write(
                f"[rank{rank}]:[E ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation "
                "timeout: WorkNCCL(SeqNum=652, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, "
                "Timeout(ms)=600000) ran for 600034 milliseconds before timing out.\n".encode()
            )


def measure(source: Path) -> str:
    """Analyze a source in a process of its own; return what it took and found."""
    begin_s = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", _MEASURED, str(source)], capture_output=True, text=True, check=True)
    took_s = time.perf_counter() - begin_s
    cpu_s, peak_kib = map(float, done.stderr.split()[-2:])
    (verdict,) = json.loads(done.stdout)["verdicts"]
    ranks = [rank for one in verdict["suspects"] for rank in one["ranks"]]
    cost = f"{took_s:.1f} s, of it {cpu_s:.1f} s of processor, {peak_kib / 1024:.0f} MiB"
    return f"{cost}: {verdict['kind']} of ranks {ranks}"


def main() -> None:
    """Measure both, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--log-bytes", type=int, default=2_000_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        dumps, log = Path(scratch) / "dumps", Path(scratch) / "train.log"
        dumps.mkdir()
        write_dumps(dumps, options.ranks, options.entries)
        print(f"{options.ranks} dumps of {options.entries} entries: {measure(dumps)}", flush=True)
        write_log(log, options.log_bytes, 8)
        print(f"log of {log.stat().st_size / 1e9:.1f} GB: {measure(log)}")


if __name__ == "__main__":
    main()
