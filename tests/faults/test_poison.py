"""A job whose monitor does not come back: others are judged beside it, it is given up, and nobody meets it again."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from irregulars.infra.runs.child_process import free_port
from irregulars.streams.health.monitor_faults import MOST_FAULTS
from irregulars.streams.health.watchdog import MOST_CRASHES
from tests.integration.stand_in_worker import POISON_AT
from tests.integration.worker_runs import (
    DEADLINE_S,
    Bus,
    Job,
    StartWorker,
    Worker,
    page_of,
    run_last_jobs,
    wait_until,
)

pytestmark = pytest.mark.integration

FAR_S = 600.0
SOON: Mapping[str, Any] = {"slow_s": 0.5, "job_cpu_s": 2.0, "rank_cpu_s": 2.0, "wall_ratio": 2.0, "lost_s": 1.0}


@pytest.fixture
def partitions() -> int:
    return 1  # whatever is held up holds up the innocent job


@pytest.mark.parametrize(("name", "limits", "reason"), [
    ("loops", {}, "2 s of processor time"),
    ("blocks", {}, "must end within 4 s"),
    ("allocates", {"job_cpu_s": FAR_S, "memory_ratio": 0.02}, "2% of the free memory"),
    ("rank-loops", {}, "2 s of processor time"),
])  # fmt: skip
def test_work_that_does_not_end_costs_its_own_job_alone(
    bus: Bus, start_worker: StartWorker, name: str, limits: dict[str, float], reason: str
) -> None:
    poison = Job(bus, name, ranks=2)
    poison.begin(POISON_AT + 2)
    is_first_hop, port = name.startswith("rank-"), free_port()
    listen = f"127.0.0.1:{port}"
    if not is_first_hop and name != "allocates":  # where everybody stands still, and where memory ends
        far = {"limits": {"slow_s": 1.0, "job_cpu_s": FAR_S}, "max_queued": 2}
        worker = start_worker(faults=far, metrics_listen=listen)
        wait_until(lambda: "event=judgement_slow" in worker.output(), "the job's name")
        while poison.iterations < POISON_AT + 6:  # in as many messages
            known = len(bus.read("evidence"))
            poison.run(1)
            bus.flush()
            wait_until(lambda known=known: len(bus.read("evidence")) > known, "evidence")
        judge_innocent(bus, "beside")
        assert f"judging job {name!r} for " in page(port, "healthz", 200)
        assert f"judging job {name!r} for " in page(port, "readyz")
        assert "judgement_given_up" not in worker.output()
        worker.kill()
    worker = start_worker(faults={"limits": {**SOON, **limits}, "max_queued": 2}, metrics_listen=listen)
    wait_until(lambda: given_up(worker, name), "giving it up")
    wait_until(lambda: any(reason in str(message.headers()) for message in bus.read("deadletter")), "a dead letter")
    judge_innocent(bus, "behind")
    if name == "blocks":
        assert f"judging job {name!r} for " in page(port, "healthz", 503)
    poison.finish(2)
    behind = {f"{name}-0-{rank}-{number}" for rank in (0, 1) for number in range(POISON_AT + 3, poison.iterations)}
    wait_until(lambda: set(bus.verdict_ids()) >= behind, "judging the job behind the poison")
    worker.kill()
    worker = start_worker(data_directory=str(start_worker.folder / "of another machine"))
    run_last_jobs(bus)
    assert "judgement_" not in worker.output(), "it was met again"
    assert worker.stop() == 0


def test_a_message_that_ends_workers_is_given_up(bus: Bus, start_worker: StartWorker) -> None:
    """By a fault in C, or the kernel for its memory: nobody could catch that, and the message comes again."""
    poison = Job(bus, "dies", ranks=2)
    poison.begin(POISON_AT + 2)
    for _ in range(MOST_CRASHES):
        assert start_worker().process.wait(DEADLINE_S) == -signal.SIGKILL
    worker = start_worker()
    wait_until(lambda: given_up(worker, "dies"), "giving it up")
    judge_innocent(bus, "behind")
    assert worker.stop() == 0


def test_a_job_that_is_given_up_often_rests_until_its_next_attempt(bus: Bus, start_worker: StartWorker) -> None:
    poison, port = Job(bus, "loops", ranks=2), free_port()
    poison.begin(1)
    worker = start_worker(faults={"limits": {**SOON, "job_cpu_s": 0.5}}, metrics_listen=f"127.0.0.1:{port}")
    for times in range(1, MOST_FAULTS + 1):
        poison.iterations = 10 * times + POISON_AT
        poison.run(2)
        bus.flush()
        wait_until(lambda times=times: f"times={times} " in worker.output(), "giving it up")
    judge_innocent(bus, "beside")
    wait_until(lambda: "loops is not judged" in page(port, "healthz", 200), "telling that it rests")
    worker.kill()
    worker = start_worker(faults={"limits": SOON})
    poison.iterations = 10 * MOST_FAULTS + 10 + POISON_AT
    poison.run(2)
    judge_innocent(bus, "behind")
    assert "judgement_given_up" not in worker.output(), "it rests, whoever restarts"
    again = Job(bus, "loops", ranks=2, attempt=1)
    again.begin(POISON_AT)
    wait_until(lambda: "loops-1-0-0" in bus.verdict_ids(), "judging the next attempt")
    assert worker.stop() == 0


def judge_innocent(bus: Bus, name: str) -> None:
    job = Job(bus, name, ranks=2)
    job.run_whole(4)
    wait_until(lambda: set(bus.verdict_ids()) >= job.wanted_ids(), "verdicts of an innocent job")


def given_up(worker: Worker, name: str) -> bool:
    assert worker.is_running
    return bool(re.search(rf"level=ERROR .*event=judgement_given_up hop=\w+ job='{name}", worker.output()))


def page(port: int, name: str, status: int | None = None) -> str:
    found, text = page_of(f"http://127.0.0.1:{port}/{name}")
    assert status in (None, found), text
    return text
