"""Break everything around the workers, and have an independent account say whether anything was lost or invented.

    python -m tests.chaos --seed 1 --faults 50
    python -m tests.chaos --faults 4 --brokers 1 --workers 2 --only 'kill worker' 'database away'

Three brokers of Apache Kafka, a ClickHouse server, three workers at default settings, and real recordings that are
replayed at their pace while the faults happen, one after the other, all chosen by the seed. At the end a process of
its own compares what stands on Kafka and in ClickHouse with what `irregulars analyze` says of the same recordings.
Prints a report as Markdown; status 1 if anything is missing, doubled or false. Ctrl-C ends it cleanly.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import database_settings
from irregulars.kafka.topic_admin import create_topics
from tests.chaos.account import ALL_JUDGED
from tests.chaos.faults import FAULTS, port_of, possible
from tests.chaos.surroundings import Gates, compile_library, disks
from tests.chaos.system import KafkaCluster, ProgressWatch, System

ROOT: Final = Path(__file__).resolve().parents[2]
_PREFIX: Final = "chaos."
_RECOVERED_WITHIN_S: Final = 180.0
_JUDGED_WITHIN_S: Final = 600.0
_ACCOUNT_EVERY_S: Final = 20.0


@dataclass(frozen=True)
class Happened:
    """One fault: what it did, how long it took, and how long afterwards all partitions were read again."""

    name: str
    did: str
    took_s: float
    recovered_s: float | None
    fallen: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=50, help="how many happen")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=tuple(FAULTS), help="only these kinds")
    parser.add_argument("--most-jobs", type=int, default=4, help="jobs that run at the same time")
    parser.add_argument("--out", type=Path, help="write the report there as well")
    options = parser.parse_args(arguments)
    choose = random.Random(options.seed)
    allowed, left_out = possible(options.brokers)
    names = options.only or allowed
    print(*(f"left out: {one}\n" for one in left_out), sep="", end="", file=sys.stderr)
    faults = [names[number % len(names)] for number in range(options.faults)]  # each as often, in any order
    choose.shuffle(faults)
    with _running(options, choose) as (system, watch):
        happened = [_happen(system, watch, name, options) for name in faults]
        system.wait_for_jobs(_JUDGED_WITHIN_S)
        result = _final_account(system)
        statuses = [worker.stop(30) for worker in system.workers]
        report = _report(options, happened, result, watch, system, statuses)
    print(report)
    if options.out:
        options.out.write_text(report + "\n")
    return 0 if result["says"] == ALL_JUDGED else 1


@contextmanager
def _running(options: argparse.Namespace, choose: random.Random) -> Iterator[tuple[System, ProgressWatch]]:
    with (
        tempfile.TemporaryDirectory(prefix="irregulars-chaos-") as folder,
        disks(Path(folder), *(f"kafka-{one + 1}" for one in range(options.brokers)), "database") as mounted,
        Gates() as gates,
        KafkaCluster(options.brokers, Path(folder), gates) as cluster,
        DemoDatabase(Path(folder) / "database") as database,
    ):
        gate = gates.open(port_of(database.url))
        settings = Settings(
            kafka_bootstrap=cluster.bootstrap,
            topic_prefix=_PREFIX,
            replicas=min(options.brokers, 3),
            clickhouse_url=f"http://127.0.0.1:{gate.port}",
            clickhouse_user=database.user,
            clickhouse_password=database.password,
            clickhouse_database=database.database,
            data_dir=Path(folder) / "data",
        )
        create_topics(cluster.direct, settings.topics())
        system = System(
            cluster, database, gate, gates, settings, Path(folder), choose,
            disks=mounted, clock_library=compile_library(Path(folder)),
        )  # fmt: skip
        try:
            with ProgressWatch(cluster.direct, settings.topics().name("progress")) as watch:
                began_s = time.time()
                for _ in range(options.workers):
                    system.start_worker()
                watch.wait(began_s, range(settings.partitions), _RECOVERED_WITHIN_S)
                yield system, watch
        finally:
            system.close()


def _happen(system: System, watch: ProgressWatch, name: str, options: argparse.Namespace) -> Happened:
    while len(system.running_jobs()) < options.most_jobs and name != "overload":
        system.start_job()
    time.sleep(system.random.uniform(1, 5))
    began_s = time.time()
    did = FAULTS[name](system)
    mended_s = time.time()
    fallen = system.supervise()
    # A kill is over at once; of what lasts, the end counts.
    since_s = began_s if name == "kill worker" else mended_s
    recovered_s = watch.wait(since_s, range(system.settings.partitions), _RECOVERED_WITHIN_S)
    fallen += system.supervise()
    told = "never" if recovered_s is None else f"{recovered_s:.1f} s"
    print(f"{name}: {did}; all partitions read again after {told}", *fallen, sep="\n  ", file=sys.stderr, flush=True)
    return Happened(name, did, mended_s - began_s, recovered_s, tuple(fallen))


def _final_account(system: System) -> dict[str, Any]:
    """Ask the account until it is content, or the time is over."""
    target = database_settings(system.settings)
    spec = {
        "bootstrap": system.cluster.direct,
        "prefix": _PREFIX,
        "database": {
            "url": system.database.url,
            "user": target.user,
            "password": target.password,
            "database": target.database,
        },
        "jobs": {job.name: job.recording for job in system.jobs},
    }
    path = system.folder / "spec.json"
    path.write_text(json.dumps(spec))
    path.chmod(0o600)
    deadline = time.monotonic() + _JUDGED_WITHIN_S
    while True:
        command = [sys.executable, "-m", "tests.chaos.account", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not done.stdout:
            raise RuntimeError(f"the account must give a result; got {done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout)
        print(f"account: {result['says']} {result['wrong']}", file=sys.stderr, flush=True)
        if result["says"] == ALL_JUDGED or time.monotonic() > deadline:
            return result
        system.supervise()
        time.sleep(_ACCOUNT_EVERY_S)


def _report(
    options: argparse.Namespace,
    happened: Sequence[Happened],
    result: dict[str, Any],
    watch: ProgressWatch,
    system: System,
    statuses: Sequence[int],
) -> str:
    wrong = f": {json.dumps(result['wrong'])}" if result["wrong"] else "."
    lines = [
        "# Chaos",
        "",
        f"    python -m tests.chaos --seed {options.seed} --faults {options.faults} --brokers {options.brokers} "
        f"--workers {options.workers}",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; default settings, "
        f"{len(system.jobs)} jobs replayed: {json.dumps(result['counts'])}.",
        "",
        f"The account says: **{result['says']}**{wrong}",
        "",
        "| Fault | Times | Read again after, longest, s | Median, s | Workers that fell |",
        "|:--|--:|--:|--:|--:|",
    ]
    for name in sorted({one.name for one in happened}):
        own = [one for one in happened if one.name == name]
        times = sorted(one.recovered_s if one.recovered_s is not None else float("inf") for one in own)
        fallen = sum(len(one.fallen) for one in own)
        lines.append(f"| {name} | {len(own)} | {times[-1]:.1f} | {times[len(times) // 2]:.1f} | {fallen} |")
    lines += ["", f"Longest time in which a partition was not read: {watch.longest_gap_s():.1f} s.",
              f"Workers ended with status {', '.join(map(str, statuses))}."]  # fmt: skip
    if result["examples"]:
        lines += ["", "```json", json.dumps(result["examples"], indent=2), "```"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
