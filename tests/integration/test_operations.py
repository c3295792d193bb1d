"""A worker as those see it who run it: its log, its pages, its port."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import pytest

from irregulars.infra.runs.child_process import free_port
from irregulars.messages.judgements import Verdict, encode_verdict
from irregulars.streams.health.counters import INPUTS
from tests.integration.worker_runs import Bus, Job, StartWorker, Worker, page_of, wait_until

pytestmark = pytest.mark.integration

IDLE_S = 8.0
"""Four looks at the topics, and sixteen snapshots' time."""


@pytest.fixture
def usual_settings() -> Mapping[str, Any]:
    return {"metrics_listen": "127.0.0.1:0"}


def ask(worker: Worker, path: str) -> tuple[int, str]:
    """Ask for a page where the worker's log says that its pages are; status 0: nobody answers there yet."""
    said = re.search(r"event=metrics url=(http://\S+)/metrics", worker.output())
    if said is None:
        return 0, ""
    return page_of(said[1] + path)


def metrics(worker: Worker) -> dict[str, float]:
    """Values by name and labels, as they stand on the page."""
    lines = ask(worker, "/metrics")[1].splitlines()
    values = (line.rsplit(" ", 1) for line in lines if line.startswith("irregulars_worker_"))
    return {name.removeprefix("irregulars_worker_"): float(value) for name, value in values}


def wait_until_ready(*workers: Worker) -> None:
    wait_until(lambda: all(ask(worker, "/readyz")[0] == 200 for worker in workers), "readiness")


def unusual(output: str) -> list[str]:
    """Lines that tell somebody to look, and lines that no logger wrote."""
    return [line for line in output.splitlines() if " level=INFO " not in line]


@pytest.fixture
def impatient_faust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faust complains of partitions that stand after five minutes; here after less than the worker idles."""
    for name in ("STREAM_PROCESSING_TIMEOUT", "BROKER_COMMIT_LIVELOCK_SOFT_TIMEOUT"):
        monkeypatch.setenv(name, "3")


@pytest.mark.usefixtures("impatient_faust")
def test_healthy_idle_workers_are_ready_and_silent(bus: Bus, kafka_bootstrap: str, start_worker: StartWorker) -> None:
    """Neither one that has judged a job, nor one after its restart, nor one for which no partition is left."""
    job = Job(bus, "idle", ranks=4)
    job.run_whole(5)
    first = start_worker()
    narrow = Bus(kafka_bootstrap, partitions=1)
    two = [Worker(narrow, start_worker.folder, metrics_listen="127.0.0.1:0") for _ in range(2)]
    start_worker.workers += two
    wait_until_ready(first, *two)
    wait_until(lambda: len(bus.verdict_ids()) == 4 * 5, "verdicts")
    wait_until(lambda: sorted(metrics(one)['partitions{hop="rank"}'] for one in two) == [0, 1], "a rebalance")
    wait_until_ready(*two)
    time.sleep(IDLE_S)
    assert [ask(worker, "/healthz")[0] for worker in two] == [200, 200]
    assert [worker.stop() for worker in (first, *reversed(two))] == [0, 0, 0]
    again = start_worker()
    wait_until_ready(again)
    time.sleep(IDLE_S)
    assert ask(again, "/healthz") == (200, "ok\n")
    assert again.stop() == 0
    for worker in (first, again):
        assert unusual(worker.output()) == []
    lines = [line for worker in two for line in unusual(worker.output())]
    assert [line for line in lines if " level=WARNING " not in line] == [], "a rebalance is worth warnings of Faust's"
    narrow.close()


def test_the_pages_say_what_the_worker_does(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "pages", ranks=4)
    job.announce()
    job.run(6)
    bus.send("commops", b"pages/0", b"no record at all")
    job.finish(6)
    worker = start_worker()
    wait_until(lambda: len(bus.verdict_ids()) == 4 * 12, "verdicts")
    wait_until_ready(worker)
    wait_until(lambda: not any(value for name, value in metrics(worker).items() if name.startswith("lag_")), "no lag")
    names = [f'state_bytes{{hop="{hop}"}}' for hop in ("rank", "job")]
    wait_until(lambda: all(metrics(worker)[name] > 0 for name in names), "sums of states")
    found = metrics(worker)
    wanted = {
        'partitions{hop="rank"}': 4, 'partitions{hop="job"}': 4, 'topic_partitions{topic="evidence"}': 4,
        'monitors{hop="rank"}': 4, 'monitors{hop="job"}': 1, "ready": 1, "healthy": 1,
        'batches_total{topic="jobs"}': 4, 'batches_total{topic="commops"}': 48, 'rows_total{topic="commops"}': 480,
        'rows_total{topic="evidence"}': 48, "dead_letters_total": 1, "sink_retries_total": 0, "late_rows_total": 0,
        'verdicts_total{event="opened",kind="imbalance"}': 48, 'sent_messages_total{topic="verdicts"}': 48,
        'restores_total{hop="rank"}': 4, "ranks": 0, "attempt_over_rows_total": 0,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    assert {name for name in found if name.startswith("lag_messages")} == {
        f'lag_messages{{partition="{partition}",topic="{topic}"}}' for topic in INPUTS for partition in range(4)
    }
    for name in ("snapshots_total", "snapshot_bytes_total", "state_bytes", "restore_seconds_total"):
        assert found[f'{name}{{hop="job"}}'] > 0
    assert ask(worker, "/nothing")[0] == 404
    job.run(2)  # it has ended: nobody judges that
    bus.flush()
    wait_until(
        lambda: metrics(worker)["attempt_over_rows_total"] == 4 * 2 * 10, "operators of an attempt that is over"
    )
    assert worker.output().count("event=attempt_over job='pages' ") == 1
    assert worker.stop() == 0
    assert ask(worker, "/metrics")[0] == 0


def test_a_job_and_a_verdict_have_one_line_each(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "two words", ranks=2)
    job.run_whole(2)
    worker = start_worker()
    wait_until(lambda: "event=job_ended" in worker.output() or len(bus.verdict_ids()) == 4, "verdicts")
    assert worker.stop() == 0
    again = start_worker()
    wait_until_ready(again)
    assert again.stop() == 0
    lines = (worker.output() + again.output()).splitlines()
    assert sum("event=job_appeared job='two words' partition=" in line for line in lines) == 1
    opened = [line for line in lines if "event=verdict_opened" in line]
    assert len(opened) == 4
    assert all("job='two words' kind=imbalance suspect=none probability=none severity=none" in one for one in opened)


def test_what_we_say_ourselves_never_comes_back_as_input(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "echo", ranks=2)
    job.run_whole(3)
    worker = start_worker()
    wait_until(lambda: len(bus.verdict_ids()) == len(bus.verdict_ids("alerts")) == 6, "verdicts")
    wait_until_ready(worker)
    before = {name: value for name, value in metrics(worker).items() if name.startswith(("batches_", "dead_letters"))}
    stray = Verdict("v", 1, "open", "echo", "imbalance", (0, 1), 1.1, 0.0, None, (), "")
    for number in range(20):
        for topic in ("verdicts", "alerts", "deadletter"):
            bus.send(topic, b"echo/%d" % number, encode_verdict(stray))
    bus.flush()
    time.sleep(4.0)  # two looks at the topics: they have been read if they ever are
    after = metrics(worker)
    assert {name: after[name] for name in before} == before
    assert worker.stop() == 0


def test_a_second_worker_on_the_machine_takes_another_port(bus: Bus, start_worker: StartWorker) -> None:
    port = free_port()
    workers = [start_worker(metrics_listen=f"127.0.0.1:{port}")]
    wait_until_ready(*workers)
    workers.append(start_worker(metrics_listen=f"127.0.0.1:{port}"))
    wait_until_ready(*workers)
    assert f"event=metrics url=http://127.0.0.1:{port}/metrics" in workers[0].output()
    assert f"event=metrics_port_taken wanted={port} port=" in workers[1].output()
    assert [worker.stop() for worker in reversed(workers)] == [0, 0]


def test_pages_can_be_off(bus: Bus, start_worker: StartWorker) -> None:
    worker = start_worker(metrics_listen="off")
    wait_until(lambda: worker.output().count("event=restored") == 2 * bus.partitions, "a start")
    assert "event=metrics" not in worker.output()
    assert worker.stop() == 0
