"""CPU time and memory of the node's agent, at several rates of sampling.

    python -m tests.benchmarks.bench_agent --seconds 20

Runs `irregulars agent` as it is, on a real Apache Kafka: operators of 8 ranks from a source that has them ready,
counters of 8 NICs read from the real sysfs (those of the loopback interface), 8 GPUs of a stub of NVML. What the real
NVML and a NIC's driver take for an answer is not in it. CPU time is that of the agent's process, all threads; other
processes on the machine change it little, unlike wall time. Prints a Markdown table. Not a test.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings
from tests.apache_kafka.broker import KafkaBroker
from tests.benchmarks.agent_load import make_sysfs
from tests.producers.node.nvml_stub import build_stub

ROOT = Path(__file__).resolve().parents[2]
RANKS = 8
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Case:
    """One line of the table; a period of 0: not sampled."""

    about: str
    operators_per_s: int = 1000
    nic_ms: float = 10
    gpu_s: float = 1


CASES = (
    Case("the agent alone", 0, 0, 0),
    Case("operators alone", 1000, 0, 0),
    Case("NICs at 10 ms alone", 0, 10, 0),
    Case("GPUs at 1 s alone", 0, 0, 1),
    Case("**all: the target**"),
    Case("NICs at 100 ms", nic_ms=100),
    Case("NICs at 5 ms", nic_ms=5),
    Case("NICs at 2 ms", nic_ms=2),
    Case("NICs at 1 ms", nic_ms=1),
    Case("GPUs at 0.1 s", gpu_s=0.1),
    Case("operators 10,000/s a rank", operators_per_s=10_000),
    Case("**operators 10,000/s a rank alone: the target**", 10_000, 0, 0),
)


@dataclass(frozen=True)
class Cost:
    core_ratio: float
    rss_mib: float
    peak_mib: float


def agent_file(case: Case, directory: Path, bootstrap: str, prefix: str) -> Path:
    path = directory / "agent.toml"
    path.write_text(
        f"""
kafka_bootstrap = "{bootstrap}"
topic_prefix = "{prefix}"

[agent]
sysfs = "{directory / "sys"}"

[spool]
directory = "{directory / "spool"}"

[metrics]
port = 0

[nics]
enabled = {str(case.nic_ms > 0).lower()}
period_ms = {case.nic_ms or 10}

[gpus]
enabled = {str(case.gpu_s > 0).lower()}
period_s = {case.gpu_s or 1}

[[sources]]
kind = "tests.benchmarks.agent_load:Operators"
ranks = {RANKS}
per_s = {case.operators_per_s}
"""
    )
    return path


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mib(pid: int, name: str) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


@contextmanager
def running_agent(path: Path, stub: Path) -> Iterator[int]:
    environment = {
        **os.environ, "LD_LIBRARY_PATH": str(stub.parent), "NVML_STUB_GPUS": str(RANKS), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "irregulars", "agent", str(path)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
            if process.returncode or "level=WARNING" in log or "level=ERROR" in log:
                print(log, file=sys.stderr)


def sleeping_ratio(period_s: float = 0.01, seconds: float = 3.0) -> float:
    """Share of a core that waking up takes alone: what a busy machine makes of the same work."""
    before_s, began_s = time.thread_time(), time.monotonic()
    while time.monotonic() < began_s + seconds:
        time.sleep(period_s)
    return (time.thread_time() - before_s) / (time.monotonic() - began_s)


def measure(case: Case, bootstrap: str, prefix: str, seconds: float) -> Cost:
    with tempfile.TemporaryDirectory(prefix="irregulars-bench-") as name:
        directory = Path(name)
        make_sysfs(directory / "sys", RANKS)
        path, stub = agent_file(case, directory, bootstrap, prefix), build_stub(directory)
        with running_agent(path, stub) as pid:
            time.sleep(5)  # imports, the first batches
            before_s, began_s = cpu_s(pid), time.monotonic()
            time.sleep(seconds)
            ratio = (cpu_s(pid) - before_s) / (time.monotonic() - began_s)
            return Cost(ratio, memory_mib(pid, "VmRSS"), memory_mib(pid, "VmHWM"))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case")
    parser.add_argument("--only", type=int, nargs="*", help="cases by their place, from 0")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    print(
        f"Reference: a thread that only sleeps 10 ms takes {sleeping_ratio():.2%} of a core; load {os.getloadavg()}\n"
    )
    told = []
    print("| case | operators/s a rank | NICs, ms | GPUs, s | one core | resident, MiB | peak, MiB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with KafkaBroker() as broker:
        for place, case in enumerate(CASES):
            if given.only is None or place in given.only:
                prefix = f"bench-{place}."
                create_topics(broker.bootstrap, TopicSettings(prefix))
                cost = measure(case, broker.bootstrap, prefix, given.seconds)
                told.append({**asdict(case), **asdict(cost)})
                print(
                    f"| {case.about} | {case.operators_per_s:,} | {case.nic_ms or 'off'} | {case.gpu_s or 'off'} "
                    f"| {cost.core_ratio:.2%} | {cost.rss_mib:.0f} | {cost.peak_mib:.0f} |",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
