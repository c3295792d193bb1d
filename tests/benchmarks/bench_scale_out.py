"""Operators per second through several workers, and the costs of a message that follow from it.

    python -m tests.benchmarks.bench_scale_out --workers 1 2 4 8

One broker, and workers that share a consumer group, as in `bench_worker`, with all ranks of one job spread over the
partitions. In each run the workers have joined and stand still (SIGSTOP) while the backlog is written, and begin at
the same moment; measured are the last four fifths of it. Two series:

* whole cores: workers are pinned in turn to all cores, of which the broker has the last. With two cores, two
  workers show what is left when one of them shares its core with the broker.
* a quota: each worker may use `--share` of a core (a control group's CPU quota) on all cores but the broker's, less
  if there are so many that they would fill them. No worker then waits for another's core, so that throughput shows
  whether more workers bring more, with two cores as with many.

CPU seconds come from ``/proc/PID/stat``; `fit_costs` splits them. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient
from numpy.typing import NDArray
from scipy.optimize import nnls

from irregulars.errors import ServiceUnavailable
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import partition_of, rank_key
from irregulars.messages.evidence import EvidenceRows, decode_evidence
from tests.apache_kafka.broker import KafkaBroker
from tests.benchmarks.bench_agent import cpu_s
from tests.benchmarks.bench_worker import JOB, Load, fill, work

_SESSION_S: Final = 120.0
"""How long a group waits for a worker; longer than the backlog takes to be written, during which workers stand."""

_IDLE_S: Final = 6.0
_TIMEOUT_S: Final = 300.0
_PERIOD_US: Final = 200_000
"""How often a quota is refilled: a worker with a tenth of a core then runs for 20 ms at a time, long enough not to
find all of its data gone from the processor's caches each time it is let on."""

_WARM: Final = 0.2
"""Share of the backlog before the measurement begins: what each process does for the first time is not in it."""

_FILLED: Final = 0.8
"""Share of the cores without the broker that all quotas together leave to workers at most: others need some too."""

_OWN: Final = sorted(os.sched_getaffinity(0))  # the cores that this process may use; the broker has the last one


SHARES: Final = 29_154
"""Weight of a group beside other work, in the unit of ``cpu.shares``: that of niceness -15, as the other ranks have.
A group's default is that of niceness 0, and its ranks would be slow without any quota."""

_REMOVE_S: Final = 5.0
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """Some workers that read one backlog."""

    workers: int
    quota: float  # cores that each worker may use at most
    # Whether the quota was what held the workers up; else they shared cores with the broker and each other
    is_limited: bool
    messages: int
    operators: int
    largest_share: float  # share of the messages that the worker with the most of them had
    took_s: float  # from the moment at which all may read to the last evidence
    # worker_s, broker_s: CPU time in `took_s`, of all workers together and of the broker
    worker_s: float
    broker_s: float
    # idle_s, idle_worker_s, idle_broker_s: The same of a time before, in which there was nothing to read
    idle_s: float
    idle_worker_s: float
    idle_broker_s: float
    load: float = 0.0

    @property
    def messages_per_s(self) -> float:
        return self.messages / self.took_s

    @property
    def even_messages_per_s(self) -> float:
        """What it would be if all workers had equally many messages."""
        return self.messages_per_s * self.largest_share * self.workers


@dataclass(frozen=True)
class Costs:
    """CPU seconds: of a message, of one more worker beside it, and of each second of a worker or the job's ranks."""

    worker_message_s: float
    worker_more_s: float
    worker_idle_ratio: float
    ranks_ratio: float
    broker_message_s: float
    broker_more_s: float
    broker_idle_ratio: float
    broker_worker_ratio: float


@dataclass(frozen=True)
class Case:
    """So many workers; `quota` in cores, `None`: pinned to whole cores in turn."""

    workers: int
    quota: float | None


def least_squares(columns: Sequence[Floats], wanted: Floats) -> list[float]:
    """Return the coefficients of some columns, none below zero, that fit best."""
    return list(nnls(np.stack(columns, axis=1), wanted)[0])


def fit_costs(runs: Sequence[Run]) -> Costs:
    """Fit by least squares, without coefficients below zero.

    A message takes the workers ``w0 + w1 (N - 1)`` with `N` of them, beside what a worker takes for each second that
    it runs, and what the job's ranks take for each second (their snapshots); the same of the broker.
    """

    def each(value: Callable[[Run], float]) -> Floats:
        return np.array([value(run) for run in runs], dtype=np.float64)

    ones, workers = np.ones(len(runs)), each(lambda run: run.workers)
    idle = least_squares([workers], each(lambda run: run.idle_worker_s / run.idle_s))[0]
    broker_idle, each_worker = least_squares([ones, workers], each(lambda run: run.idle_broker_s / run.idle_s))
    worker_s = each(lambda run: (run.worker_s - idle * run.workers * run.took_s) / run.messages)
    beside = each(lambda run: (broker_idle + each_worker * run.workers) * run.took_s)
    broker_s = (each(lambda run: run.broker_s) - beside) / each(lambda run: run.messages)
    seconds = each(lambda run: run.took_s / run.messages)
    own = least_squares([ones, workers - 1, seconds], worker_s)
    others = least_squares([ones, workers - 1], broker_s)
    return Costs(own[0], own[1], idle, own[2], others[0], others[1], broker_idle, each_worker)


class CpuGroups:
    """Quotas of CPU time by control groups, version 1 or 2; raises `ServiceUnavailable` where there are none."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        self._is_first = (root / "cpu" / "cpu.cfs_quota_us").exists() or (root / "cpu" / "cpu.shares").exists()
        self._parent = root / "cpu" if self._is_first else root
        self._prefix = f"irregulars-bench-{secrets.token_hex(4)}"
        self._made: list[Path] = []
        if not self._is_first and "cpu" not in _words(root / "cgroup.subtree_control"):
            raise ServiceUnavailable(f"{root}: must offer the controller cpu to new groups; it does not")

    def make(self, processes: Sequence[int]) -> Path:
        """Make a group of processes, without a limit."""
        path = self._parent / f"{self._prefix}-{len(self._made)}"
        try:
            path.mkdir()
            self._made.append(path)
            name, weight = ("cpu.shares", SHARES) if self._is_first else ("cpu.weight", SHARES * 100 // 1_024)
            (path / name).write_text(str(weight))
            for process in processes:
                (path / "cgroup.procs").write_text(str(process))
        except OSError as error:
            raise ServiceUnavailable(f"{path}: must take processes; it did not: {error.strerror}") from None
        return path

    def limit(self, group: Path, cores: float) -> None:
        quota_us = round(cores * _PERIOD_US)
        if self._is_first:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")

    def close(self) -> None:
        """Remove the groups; their processes have ended, or go back to the parent."""
        deadline_s = time.monotonic() + _REMOVE_S
        for path in self._made:
            for process in _words(path / "cgroup.procs"):
                with suppress(OSError):  # ended meanwhile
                    (self._parent / "cgroup.procs").write_text(process)
            while path.exists() and time.monotonic() < deadline_s:
                with suppress(OSError):  # busy for a moment after its last process has ended
                    path.rmdir()
                    break
                time.sleep(0.02)
        self._made = []


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


@contextmanager
def pinned(to: Sequence[int]) -> Iterator[None]:
    """Pin this thread, and whatever process it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, to)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cases(workers: Sequence[int], share: float) -> list[Case]:
    """Return what is run: whole cores as long as no core has more than two workers, and quotas."""
    own, free = len(_OWN), max(len(_OWN) - 1, 1)
    whole = [Case(count, None) for count in workers if count <= 2 * own]
    return whole + [Case(count, min(share, _FILLED * free / count)) for count in workers]


@contextmanager
def workers_of(load: Load, case: Case) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Let workers of one group run, each where the case has it."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_scale_out", "--load", json.dumps(asdict(load))]
    free = _OWN[:-1] or _OWN
    running: list[subprocess.Popen[bytes]] = []
    try:
        for place in range(case.workers):
            with pinned([_OWN[place % len(_OWN)]] if case.quota is None else free):
                running.append(subprocess.Popen(command))
        yield running
    finally:
        for one in running:
            one.send_signal(signal.SIGCONT)
            one.terminate()
        for one in running:
            end(one)


def end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for_group(load: Load, count: int) -> list[list[int]]:
    """Wait until all workers have partitions and the group rests; return the partitions of each."""
    admin = AdminClient({"bootstrap.servers": load.bootstrap})
    group, topic = f"{load.prefix}worker", load.topics.name("commops")
    before: list[list[int]] = []
    deadline_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline_s:
        time.sleep(2.0)
        try:
            found = admin.describe_consumer_groups([group], request_timeout=60)[group].result(70)
        except KafkaException:
            continue  # the group's coordinator is not there yet
        given = sorted(partitions_of(member, topic) for member in found.members)
        is_stable = found.state == ConsumerGroupState.STABLE and len(given) == count
        if is_stable and given == before and sum(map(len, given)) == load.partitions:
            return given
        before = given
    raise SystemExit(f"all of {count} workers must have partitions within {_TIMEOUT_S:g} s; got {before}")


def partitions_of(member: Any, topic: str) -> list[int]:
    assignment = member.assignment
    return [one.partition for one in assignment.topic_partitions if one.topic == topic] if assignment else []


class Evidence:
    """What stands on the topic so far: operators of each partition of the backlog, by the ranks that they are of."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.operators: Counter[int] = Counter()
        self.newest_s = 0.0
        self._reader = LogReader(load.bootstrap, {})
        self._topic = load.topics.name("evidence")
        self._offsets = dict.fromkeys(self._reader.partitions(self._topic), 0)
        self._ends = {
            one: self._reader.end_offset(load.topics.name("commops"), one) for one in range(load.partitions)
        }

    def wait_for(self, share: float) -> float:
        """Wait until this share of the backlog stands there; return when its newest message was written."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while self.operators.total() < share * self.load.total:
            if time.monotonic() > deadline_s:
                raise SystemExit(
                    f"evidence must hold {share:.0%} of {self.load.total} operators within {_TIMEOUT_S:g} s; "
                    f"got {self.operators.total()}"
                )
            time.sleep(0.25)
            for partition, offset in self._offsets.items():
                for message in self._reader.read_tail(self._topic, partition, offset):
                    self._offsets[partition] = (message.offset() or 0) + 1
                    self.newest_s = max(self.newest_s, message.timestamp()[1] / 1000)
                    for rows in decode_evidence(message.value() or b""):
                        if isinstance(rows, EvidenceRows):
                            ranks = rows.columns["rank"].tolist()
                            operators = rows.columns["operators"].tolist()
                            for rank, count in zip(ranks, operators, strict=True):
                                self.operators[partition_of(rank_key(JOB, rank), self.load.partitions)] += count
        return self.newest_s

    def left(self, given: Sequence[Sequence[int]]) -> list[float]:
        """Return how many messages of the backlog each worker still has, by its partitions."""
        done = {one: self.operators[one] / self.load.operators for one in self._ends}
        return [sum(self._ends[one] - done[one] for one in own) for own in given]

    def close(self) -> None:
        self._reader.close()


def measure(broker: KafkaBroker, load: Load, case: Case, groups: CpuGroups) -> Run:
    own = replace(load, prefix=f"scale-{uuid4().hex[:8]}.")
    create_topics(own.bootstrap, own.topics)
    with workers_of(own, case) as running:
        given = wait_for_group(own, case.workers)
        clocks = [one.pid for one in running] + [broker.pid or 0]
        before_s, began_s = [cpu_s(one) for one in clocks], time.monotonic()
        time.sleep(_IDLE_S)
        idle_s, idle_cpu_s = time.monotonic() - began_s, taken(clocks, before_s)
        for one in running:
            one.send_signal(signal.SIGSTOP)
        fill(own)
        for one in running if case.quota is not None else []:
            groups.limit(groups.make([one.pid]), case.quota)
        evidence = Evidence(own)
        with pinned(_OWN[-1:]):
            for one in running:
                one.send_signal(signal.SIGCONT)
            began_s = evidence.wait_for(_WARM)
            before_s, left = [cpu_s(one) for one in clocks], evidence.left(given)
            took_s = evidence.wait_for(1.0) - began_s
        busy_cpu_s, total = taken(clocks, before_s), evidence.operators.total()
        evidence.close()
        if total > own.total or wait_for_group(own, case.workers) != given:
            raise SystemExit(
                f"the group must rest while it is measured; it did not ({total} of {own.total} operators)"
            )
    remove(own)
    return Run(
        case.workers, case.quota or 1.0, case.quota is not None, round(sum(left)), own.operators,
        max(left) / sum(left), took_s, sum(busy_cpu_s[:-1]), busy_cpu_s[-1], idle_s, sum(idle_cpu_s[:-1]),
        idle_cpu_s[-1], os.getloadavg()[0],
    )  # fmt: skip


def taken(processes: Sequence[int], before_s: Sequence[float]) -> list[float]:
    return [cpu_s(one) - since_s for one, since_s in zip(processes, before_s, strict=True)]


def remove(load: Load) -> None:
    """Delete the topics of a run: the next one shall not pay for their files."""
    admin = AdminClient({"bootstrap.servers": load.bootstrap})
    names = [name for name in admin.list_topics(timeout=10).topics if name.startswith(load.prefix)]
    for future in admin.delete_topics(names).values():
        future.result(30)


# --- report ---------------------------------------------------------------------------------------------------------


def measured_table(runs: Sequence[Run]) -> Iterator[str]:
    yield (
        "| workers | cores of each | M operators/s | of one worker | as if partitions were even | "
        "workers, CPU us a message | broker, CPU us a message | load |"
    )
    yield "|--:|:--|--:|--:|--:|--:|--:|--:|"
    for run in runs:
        one = [other for other in runs if other.workers == 1 and other.is_limited == run.is_limited]
        rate = run.messages_per_s / run.quota
        alone = sum(other.messages_per_s / other.quota for other in one) / len(one) if one else float("nan")
        even = run.even_messages_per_s / run.quota
        yield (
            f"| {run.workers} | {f'{run.quota:.2f}' if run.is_limited else 'whole, shared'} | "
            f"{run.messages_per_s * run.operators / 1e6:.2f} | {rate / alone:.2f} | {even / alone:.2f} | "
            f"{run.worker_s / run.messages * 1e6:.0f} | {run.broker_s / run.messages * 1e6:.0f} | {run.load:.1f} |"
        )


def report(runs: Sequence[Run], out: Path | None) -> None:
    print(
        f"`python -m tests.benchmarks.bench_scale_out`: {runs[0].messages} messages of {runs[0].operators} "
        f"operators; {len(_OWN)} cores, {platform.machine()}\n"
    )
    print(*measured_table(runs), sep="\n")
    costs = fit_costs(runs)
    print(
        f"\nA message takes a worker {costs.worker_message_s * 1e6:.0f} us and {costs.worker_more_s * 1e6:.2f} more "
        f"with each further worker, its ranks together {costs.ranks_ratio:.1%} of "
        f"a core, the broker {costs.broker_message_s * 1e6:.0f} and {costs.broker_more_s * 1e6:.2f}; "
        f"a worker with nothing to read {costs.worker_idle_ratio:.1%} of a core, and the broker "
        f"{costs.broker_worker_ratio:.1%} for each."
    )
    if out:
        told = {"runs": [asdict(run) for run in runs], "costs": asdict(costs)}
        out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="1 must be among them")
    parser.add_argument("--share", type=float, default=0.2, help="of a core for each worker, in the second series")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--batches", type=int, default=3000)
    parser.add_argument("--operators", type=int, default=2000, help="in a batch")
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    own = parse(arguments)
    if own.load:
        return work(Load(**json.loads(own.load)), _SESSION_S)
    report(measure_all(own), own.json)
    return 0


def measure_all(own: argparse.Namespace) -> list[Run]:
    runs: list[Run] = []
    with ExitStack() as stack:
        groups = CpuGroups()
        stack.callback(groups.close)
        with pinned(_OWN[-1:]):
            broker = stack.enter_context(KafkaBroker())
        groups.make([broker.pid or 0])  # it comes before other work on its core, as workers with a quota do
        load = Load(broker.bootstrap, "", own.batches, own.operators, own.ranks, own.partitions, "none", own.seed)
        for turn in range(own.repeat):
            for case in cases(own.workers, own.share):
                runs.append(measure(broker, load, case, groups))
                print(f"turn {turn + 1} of {own.repeat}: {json.dumps(asdict(runs[-1]))}", file=sys.stderr, flush=True)
    return runs


if __name__ == "__main__":
    sys.exit(main())
