"""How soon a worker says that two jobs have one name, and what its verdicts on them say.

    python -m tests.benchmarks.two_jobs --pairs 6

runs pairs of jobs under one name: one of 8 ranks, whose rank 3 is 75 % slower from iteration 50 to its last one, 109,
beside a healthy one of 8 or 16 ranks that begins up to 2 s later; every third pair sends no ids of its starts, as old
agents do. Prints for each pair after how many seconds the worker's log and `irregulars doctor` say so,
counted from the moment when the second job begins; status 1 if one took more than 30 s, a verdict was closed as
recovered, or the last word of one names a device.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from irregulars.infra.commands.traces import in_time, rename_job
from irregulars.infra.wiring import agent_settings
from irregulars.messages.records import SCHEMAS
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.trace.directory import Trace
from irregulars.producers.trace.source import TraceSource
from tests.benchmarks.alert_delay import services
from tests.integration.pipelines import Pipeline, Process
from tests.integration.test_operations import metrics, wait_until_ready
from tests.integration.worker_runs import wait_until
from tests.streams.lockstep_job import MS, LockstepJob

FAR_NS = 2_000_000_000_000_000_000
LIMIT_S = 30.0
_SAID = r"event=(?:two_jobs_of_one_name|job_contradicts) job='([^']+)'"


def recorded(name: str, ranks: int, iterations: int, *, is_slow: bool) -> Trace:
    places = {rank: {"host": f"{name}-{rank // 8}", "gpu": rank % 8} for rank in range(ranks)}
    groups = {"world": ("world", tuple(range(ranks)))}
    groups |= {f"tp{rank}": ("tp", (rank, rank + 1)) for rank in range(0, ranks, 2)}
    job = LockstepJob(groups, places, start_ns=FAR_NS)

    def body(job: LockstepJob, number: int) -> None:
        for rank in range(ranks):
            work_ms = 350 if is_slow and rank == 3 and number >= 50 else 200
            job.work(rank, work_ms * MS + (number * 11 + rank * 5) % 7 * MS // 10)
        for name in groups:
            job.collective(name, MS)

    job.iterate(range(iterations), body)
    return job.trace()


def without_ids(trace: Trace) -> Trace:
    batches: dict[str, Any] = {
        schema: {
            rank: replace(one, header=replace(one.header, start=None)) for rank, one in trace.batches(schema).items()
        }
        for schema in SCHEMAS
    }
    return replace(trace, announcements=tuple(replace(a, start=None) for a in trace.announcements), **batches)


def publish(pipeline: Pipeline, trace: Trace, job: str, *, has_id: bool) -> None:
    told = in_time(rename_job(trace, job, None), time.time_ns(), True, ends_now=False)
    Agent(TraceSource(told if has_id else without_ids(told)), agent_settings(pipeline.settings)).run()


def together(pipeline: Pipeline, job: str, ranks: int, delay_s: float, *, has_id: bool) -> float:
    """Run a pair of jobs to their ends; return when the second one began, s since 1970."""
    slow = recorded("SLOW", 8, 110, is_slow=True)
    other = recorded("OTHER", ranks, 160, is_slow=False)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(publish, pipeline, slow, job, has_id=has_id)
        time.sleep(delay_s)
        began_s = time.time()
        publish(pipeline, other, job, has_id=has_id)
        first.result()
    return began_s


class Watch:
    """Notes when log and doctor name each job first, s since 1970, and how many the worker's metric counts."""

    def __init__(self, pipeline: Pipeline, worker: Process) -> None:
        self.logged: dict[str, float] = {}
        self.diagnosed: dict[str, float] = {}
        self.counted = 0.0
        self._pipeline, self._worker = pipeline, worker
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._read_log, self._ask_doctor)]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _read_log(self) -> None:
        while not self._ending.wait(0.25):
            for job in set(re.findall(_SAID, self._worker.output())) - self.logged.keys():
                self.logged[job] = time.time()
        self.counted = metrics(self._worker)["contradictions_total"]

    def _ask_doctor(self) -> None:
        while not self._ending.wait(2.0):  # a look costs a process
            asked = self._pipeline.start("doctor", "--json")
            asked.wait(300)
            found = json.loads(asked.output()[asked.output().index("{") :])["findings"]
            for one in found:
                if one.get("code") in ("two_jobs", "job_contradicts"):
                    self.diagnosed.setdefault(one["subject"].removeprefix("job "), time.time())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random = Random(options.seed)
    pairs = {
        f"pair-{number}": (8 * (1 + number % 2), random.uniform(0.3, 2.0), number % 3 != 2)
        for number in range(options.pairs)
    }
    with tempfile.TemporaryDirectory() as folder, services(Path(folder)) as pipeline:
        worker = pipeline.start_worker(grace_s=10.0, metrics_listen="127.0.0.1:0")
        wait_until_ready(worker)
        with Watch(pipeline, worker) as watch, ThreadPoolExecutor(3) as pool:
            runs = {
                job: pool.submit(together, pipeline, job, ranks, delay_s, has_id=has_id)
                for job, (ranks, delay_s, has_id) in pairs.items()
            }
            began = {job: run.result() for job, run in runs.items()}
            wait_until(lambda: watch.logged.keys() & watch.diagnosed.keys() >= pairs.keys(), "the word on each pair")
        verdicts = pipeline.revisions()
    failures = int(watch.counted < len(pairs))
    for job, (ranks, delay_s, has_id) in pairs.items():
        after = [at.get(job, math.inf) - began[job] for at in (watch.logged, watch.diagnosed)]
        own = [one for one in verdicts if one.job == job]
        recovered = sum(one.close_reason == "recovered" for one in own)
        newest = {one.verdict_id: one for one in own}
        accused = sum(bool(one.suspects) for one in newest.values())
        failures += max(after) > LIMIT_S or recovered > 0 or accused > 0
        print(
            f"{job}: beside {ranks} ranks, {delay_s:.1f} s later, {'start ids' if has_id else 'no ids'}: log after "
            f"{after[0]:.1f} s, doctor after {after[1]:.1f} s; {len(newest)} verdicts, {recovered} recovered, "
            f"{accused} that name a device at their end"
        )
    print(f"counted by the worker: {watch.counted:.0f} of {len(pairs)}; failures: {failures}")
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
