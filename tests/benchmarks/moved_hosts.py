"""How often the right host is named of a job that is killed and starts again elsewhere under its name and attempt.

    python -m tests.benchmarks.moved_hosts --jobs 20

runs jobs on hosts OLD-…, kills each (no last word) after another time, and starts it again after another pause on
hosts NEW-…, where rank 3 is slow from iteration 50 on: into a broker, a database and one worker of its own. Prints a
line for each job and how many were right; status 1 if one was not.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from irregulars.infra.commands.replay import in_time, rename_job
from irregulars.infra.configuration.wiring import agent_settings
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.trace.directory import Trace
from irregulars.producers.trace.source import TraceSource
from tests.benchmarks.alert_delay import services
from tests.integration.pipelines import Pipeline
from tests.integration.worker_runs import wait_until
from tests.streams.eight_ranks import HOSTS, EightRanks
from tests.streams.lockstep_job import MS

FAR_NS = 2_000_000_000_000_000_000


def recorded(name: str, iterations: int, *, is_slow: bool) -> Trace:
    made = EightRanks(
        {rank: {**place, "host": f"{name}-{rank // 2}"} for rank, place in HOSTS.items()}, start_ns=FAR_NS
    )
    made.late_ns = lambda number, rank: 20 * MS * (is_slow and rank == 3 and number >= 50)
    return made.trace(iterations)


def publish(pipeline: Pipeline, trace: Trace, job: str, stop_s: float | None = None) -> None:
    """Publish a recording as job of this name at its own pace; kill it after a time, where one is given."""
    told = in_time(rename_job(trace, job, None), time.time_ns(), True, ends_now=False)
    agent = Agent(TraceSource(told), agent_settings(pipeline.settings), ends_ranks=stop_s is None)
    if stop_s is not None:
        threading.Timer(stop_s, agent.stop).start()
    agent.run()


def move(pipeline: Pipeline, old: Trace, new: Trace, job: str, random: Random) -> str:
    killed_s, pause_s = random.uniform(0.5, 8.0), random.uniform(0.1, 8.0)
    publish(pipeline, old, job, killed_s)
    time.sleep(pause_s)
    publish(pipeline, new, job)
    return f"killed after {killed_s:.1f} s, again after {pause_s:.1f} s"


def named(pipeline: Pipeline, job: str) -> list[tuple[str | None, int]]:
    """Who is accused first by each closed verdict of a job."""
    closed = [one for one in pipeline.revisions() if one.job == job and one.state == "closed"]
    return [(one.suspects[0].host, one.suspects[0].rank) if one.suspects else (None, -1) for one in closed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    old, new = recorded("OLD", 600, is_slow=False), recorded("NEW", 110, is_slow=True)
    jobs = [f"moved-{number}" for number in range(options.jobs)]
    with tempfile.TemporaryDirectory() as folder, services(Path(folder)) as pipeline:
        pipeline.start_worker(grace_s=10.0)
        with ThreadPoolExecutor(5) as pool:
            runs = [pool.submit(move, pipeline, old, new, job, Random(f"{options.seed} {job}")) for job in jobs]
            how = [run.result() for run in runs]
        wait_until(lambda: all(named(pipeline, job) for job in jobs), "a closed verdict on each job")
        found = [named(pipeline, job) for job in jobs]
    is_right = [one == [("NEW-1", 3)] for one in found]
    for job, delays, one, right in zip(jobs, how, found, is_right, strict=True):
        print(f"{job}: {delays}: {one} {'right' if right else 'WRONG'}")
    print(f"right: {sum(is_right)} of {len(jobs)}")
    return int(not all(is_right))


if __name__ == "__main__":
    raise SystemExit(main())
