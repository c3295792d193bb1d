"""Real jobs in which one rank is slow, and the causes that verdicts name: ``python -m tests.benchmarks.causes``.

Processes (torch, gloo) train a small model; in each trial one rank collects garbage, waits for data, writes
checkpoints, has no quota or processor left, writes to its disk, or computes for longer. Each trial becomes a trace
directory, which `analyze` judges. A table tells how often rank, layer and cause were right, and what healthy jobs
were told. Quotas take root and a cgroup; without one these trials are left out, and that is told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from irregulars.infra.runs.child_process import free_port
from irregulars.messages.judgements import Verdict
from irregulars.producers.torch_hook.trace_parts import assemble
from irregulars.sinks.advice import plan_of
from irregulars.validation import checked
from tests.benchmarks.causes.trials import KINDS, LAYERS, WRITTEN_BYTES_PER_S, Trial, clean, draw
from tests.gloo_ranks import environment_of

ROOT = Path(__file__).resolve().parents[3]
GROUPS = {name: Path("/sys/fs/cgroup") / name for name in ("cpu", "blkio")}
NEEDED = {"cpu_throttled": "cpu", "io_wait": "blkio"}
DELAYS = Path("/proc/sys/kernel/task_delayacct")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--trials", type=int, default=14)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--clean", type=int, default=0, help="steps of a healthy job that follows")
    parser.add_argument("--load", type=int, default=0, help="processes that keep processors busy meanwhile")
    parser.add_argument("--out", type=Path, help="keep the recordings here")
    given = parser.parse_args()
    kinds = tuple(one for one in given.kinds if one not in NEEDED or can_limit(NEEDED[one]))
    if left_out := set(given.kinds) - set(kinds):
        print(f"left out, as no quota can be set here: {', '.join(left_out)}")
    trials = draw(given.seed, given.trials, given.ranks, kinds) if given.trials else []
    trials += [clean(given.seed, given.clean)] if given.clean else []
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        out = given.out or Path(scratch)
        out.mkdir(parents=True, exist_ok=True)
        stack.enter_context(counted_delays())
        for _ in range(given.load):
            stack.enter_context(busy())
        status = run(trials, given.ranks, out)
        if status == 0:
            tell([(trial, analyzed(out / trial.name)) for trial in trials])
    return status


def run(trials: Sequence[Trial], ranks: int, out: Path) -> int:
    """Run the processes of a job to their end; return the worst of their statuses."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        listed = Path(scratch) / "trials.json"
        listed.write_text(json.dumps([asdict(one) for one in trials]))
        port = free_port()
        running = [stack.enter_context(process(rank, ranks, port, out, listed)) for rank in range(ranks)]
        return max(one.wait() for one in running)


@contextmanager
def process(rank: int, ranks: int, port: int, out: Path, listed: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start one rank, where that is possible in cgroups of its own."""
    own = environment_of(rank, ranks, port)
    groups = {name: root / f"causes-{os.getpid()}-{rank}" for name, root in GROUPS.items() if can_limit(name)}
    for name, group in groups.items():
        group.mkdir()
        own[f"CAUSES_{name.upper()}"] = str(group)
    if "blkio" in groups:
        device = out.stat().st_dev
        limit = f"{os.major(device)}:{os.minor(device)} {WRITTEN_BYTES_PER_S}"
        (groups["blkio"] / "blkio.throttle.write_bps_device").write_text(limit)

    def join() -> None:
        for group in groups.values():
            (group / "cgroup.procs").write_text(str(os.getpid()))

    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.causes.worker", str(out), str(listed)]
    one = subprocess.Popen(command, cwd=ROOT, env=os.environ | own, preexec_fn=join)
    try:
        yield one
    finally:
        one.kill()
        one.wait()
        for group in groups.values():
            while (group / "cgroup.procs").read_text().strip():
                time.sleep(0.05)
            group.rmdir()


def can_limit(name: str) -> bool:
    """Whether quotas of processors (``cpu``), or of disks (``blkio``), can be set."""
    return os.access(GROUPS[name] / "cgroup.procs", os.W_OK)


@contextmanager
def counted_delays() -> Iterator[None]:
    """Let the kernel count how long threads wait for disks."""
    before = DELAYS.read_text() if os.access(DELAYS, os.W_OK) else None
    if before is not None:
        DELAYS.write_text("1")
    try:
        yield
    finally:
        if before is not None:
            DELAYS.write_text(before)


@contextmanager
def busy() -> Iterator[None]:
    one = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        one.kill()
        one.wait()


def analyzed(directory: Path) -> dict[str, Any]:
    if not (directory / "job.json").exists():  # the ranks had ended before the last of them was done with it
        assemble(directory)
    command = [sys.executable, "-m", "irregulars", "analyze", str(directory), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tell(results: Sequence[tuple[Trial, dict[str, Any]]]) -> None:
    """Print what verdicts said of each trial, and the sums."""
    counts: Counter[str] = Counter()
    for trial, found in results:
        verdicts = [one for one in found["verdicts"] if one["suspects"]]
        if trial.kind == "clean":
            loud = [one for one in found["verdicts"] if one["severity"] != "note"]
            print(f"{trial.name}: {found['iterations']} iterations, {len(loud)} verdicts above note")
            continue
        about = [one for one in verdicts if set(one["suspects"][0]["ranks"]) == set(trial.ranks)]
        one = max(about, key=lambda own: own["lost_s"], default=None)
        counts["trials"] += 1
        counts["rank right"] += one is not None
        if one is None:
            print(f"{trial.name}: rank {trial.ranks} not named; {[_short(v) for v in found['verdicts']]}")
            continue
        true_cause = None if trial.kind == "compute" else trial.kind
        counts["named"] += one["cause"] is not None
        counts["cause right"] += one["cause"] is not None and one["cause"] == true_cause
        counts["cause wrong"] += one["cause"] not in (None, true_cause)
        counts["layer right"] += one["layer"] == LAYERS[trial.kind]
        actions = set(plan_of(checked(one, Verdict, "")).actions)
        counts["drained for software or data"] += bool(actions & {"cordon", "drain"}) and (
            LAYERS[trial.kind] in ("software", "data")
        )
        print(f"{trial.name}: {_short(one)}")
    print(dict(counts))


def _short(one: dict[str, Any]) -> str:
    ranks = one["suspects"][0]["ranks"] if one["suspects"] else []
    return f"{one['kind']} {ranks} {one['iterations']} layer {one['layer']} cause {one['cause']} {one['cause_share']}"


if __name__ == "__main__":
    sys.exit(main())
