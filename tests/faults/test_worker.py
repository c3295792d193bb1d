"""The worker process on a real Kafka: nothing lost, nothing twice, whatever happens to it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.worker_runs import Bus, Job, StartWorker, require_each_once, wait_until

pytestmark = pytest.mark.integration


def test_nothing_is_lost_and_nothing_comes_twice_when_workers_are_killed(bus: Bus, start_worker: StartWorker) -> None:
    jobs = [Job(bus, f"killed-{number}", ranks=4) for number in range(3)]
    rng = random.Random(7)
    with feeding(jobs):
        worker = start_worker()
        for kill in range(20):
            if kill >= 4 and "event=sent_before" in start_worker.outputs():
                break  # a kill has hit a moment that counts
            known = len(bus.verdict_ids())
            wait_until(lambda known=known: len(bus.verdict_ids()) > known + 50, "new verdicts")
            time.sleep(rng.uniform(0.0, 1.5))
            worker.kill()
            worker = start_worker()
    require_each_once(bus, set().union(*(job.wanted_ids() for job in jobs)), worker)
    assert bus.read("deadletter") == []
    assert "event=sent_before" in start_worker.outputs(), "no kill hit a moment that counts"


@contextmanager
def feeding(jobs: list[Job], pause_s: float = 0.2) -> Iterator[None]:
    """Let `jobs` run in a thread until the block is left, and end then."""
    is_over = threading.Event()

    def feed() -> None:
        while not is_over.wait(pause_s):
            for job in jobs:
                job.run(1)

    for job in jobs:
        job.announce()
    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(10)
        for job in jobs:
            job.finish()


def test_a_stopped_worker_leaves_nothing_to_do_again(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "stopped", ranks=4)
    job.begin(10)
    worker = start_worker(snapshot_s=3600.0)
    wait_until(lambda: len(bus.verdict_ids()) >= 4 * 8, "most verdicts")
    assert worker.stop() == 0
    job.finish(10)
    require_each_once(bus, job.wanted_ids(), start_worker())


@pytest.mark.parametrize("value", ["old", "damaged"])
def test_states_that_can_t_be_read_stop_no_worker(bus: Bus, start_worker: StartWorker, value: str) -> None:
    """What they are of begins anew: rows that waited in one are lost, and nothing else; nothing comes twice."""
    job = Job(bus, "anew", ranks=4)
    job.begin(10)
    worker = start_worker()
    wait_until(lambda: len(bus.verdict_ids()) >= 4 * 9, "all verdicts but those of the iteration that waits")
    assert worker.stop() == 0
    spoilt = {bus.spoil("rank_snapshots", value), bus.spoil("job_snapshots", value)}
    job.finish(10)
    worker = start_worker()
    waited = {name for name in job.wanted_ids() if name.endswith("-9")}
    wait_until(lambda: set(bus.verdict_ids()) >= job.wanted_ids() - waited, "verdicts")
    time.sleep(1.0)  # whatever would come twice comes now
    for topic in ("verdicts", "alerts"):
        assert set(bus.verdict_ids(topic)) <= job.wanted_ids()
        assert max(bus.verdict_ids(topic).values()) == 1
    assert bus.read("deadletter") == []
    assert worker.stop() == 0
    assert worker.output().count("event=begun_anew") == sum(map(len, spoilt))
    again = start_worker()
    wait_until(lambda: again.output().count("event=restored") == 2 * bus.partitions, "a restart")
    assert again.stop() == 0
    assert "event=begun_anew" not in again.output()


def test_two_workers_share_the_partitions_and_one_leaves(bus: Bus, start_worker: StartWorker) -> None:
    jobs = [Job(bus, f"shared-{number}", ranks=4) for number in range(4)]
    for job in jobs:
        job.begin(10)
    first = start_worker()
    wait_until(lambda: len(bus.verdict_ids()) >= 16, "first verdicts")
    second = start_worker()
    wait_until(lambda: "event=restored" in second.output(), "a rebalance")
    for job in jobs:
        job.run(20)
    bus.flush()
    wait_until(lambda: len(bus.verdict_ids()) >= 4 * 4 * 28, "verdicts of both")
    assert first.stop() == 0
    for job in jobs:
        job.finish(10)
    require_each_once(bus, set().union(*(job.wanted_ids() for job in jobs)), second)


def test_messages_of_a_rank_wait_for_its_announcement(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "late", ranks=3)
    job.run(5)
    bus.flush()
    worker = start_worker()
    wait_until(lambda: "event=restored" in worker.output(), "start")
    time.sleep(2.0)  # it reads them meanwhile
    worker.kill()
    worker = start_worker()
    job.run_whole(2)
    require_each_once(bus, job.wanted_ids(), worker)
    assert bus.read("deadletter") == []


def test_messages_of_a_rank_that_is_never_announced_are_given_up(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "nobody", ranks=1)
    job.run(3)
    bus.flush()
    start_worker(parked_s=1.0)
    wait_until(lambda: len(bus.read("deadletter")) == 3, "dead letters")
    assert b"announced" in dict(bus.read("deadletter")[0].headers())["reason"]


def test_missing_topics_are_named_before_anything_starts(bus: Bus, start_worker: StartWorker) -> None:
    bus.topics = type(bus.topics)(prefix="never-made.", partitions=4)
    worker = start_worker()
    assert worker.process.wait(60) == 2
    assert worker.output().count("\n") == 1
    assert "irregulars topics create" in worker.output()
