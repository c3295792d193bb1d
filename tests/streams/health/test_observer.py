"""What an observer says of stages that it looks at, on a real port."""

from __future__ import annotations

import logging
import time
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest

from irregulars.kafka.outbox import Outbox
from irregulars.streams.health import liveness
from irregulars.streams.health.counters import PREFIX
from irregulars.streams.health.observer import serve_pages
from irregulars.streams.stages.partition_state import PartitionState, Tracked
from tests.streams.health.observed_worker import Worker, observed_metrics


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    outbox = Outbox("127.0.0.1:1", {})
    yield outbox
    outbox.close(0.1)


@pytest.fixture
def worker(outbox: Outbox) -> Worker:
    return Worker(outbox)


def test_every_metric_is_there_from_the_start_and_counts_from_zero(worker: Worker) -> None:
    found = worker.values()
    late = {"topic_partitions", "lag_messages", "behind_seconds", "broker_silent_seconds"}  # nothing is known yet
    names = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, _ in found}
    assert (
        names
        == {one.name.removeprefix(PREFIX) + "_total" * (one.type == "counter") for one in observed_metrics()} - late
    )
    assert all(value == 0 for (name, _), value in found.items() if name.endswith(("_total", "_bucket")))


def test_lag_is_what_is_not_in_a_monitor_and_of_evidence_what_is_not_judged(worker: Worker) -> None:
    ranks: PartitionState[None] = PartitionState(2, 1, 1, {"commops": 10})
    ranks.take("commops", 14)
    ranks.begin("commops", 14)  # parked: its rank was not announced yet
    ranks.tracked[b"j/0"] = Tracked(b"j/0", None)
    jobs: PartitionState[None] = PartitionState(2, 1, 1, {"evidence": 4})
    jobs.take("evidence", 4)
    jobs.begin("evidence", 4)  # waits for its job's monitor
    worker.rank.states[2], worker.job.states[2] = ranks, jobs
    worker.observer.saw_ends({2: {"commops": 20, "evidence": 6}, 3: {"commops": 99, "evidence": 9}})
    worker.look()
    found = worker.values()
    assert found["lag_messages", ("commops", "2")] == 5
    assert found["lag_messages", ("evidence", "2")] == 2
    assert found["behind_seconds", ("rank", "2")] == 10.0
    assert ("behind_seconds", ("job", "2")) not in found
    assert found["topic_partitions", ("commops",)] == 2
    assert (found["partitions", ("rank",)], found["monitors", ("rank",)]) == (1, 1)
    assert found["state_bytes", ("rank",)] == 300


def test_open_verdicts_are_counted_by_severity_and_kind(worker: Worker) -> None:
    assert worker.values()["irregulars_open_verdicts", ("page", "hang")] == 0  # there before the first one opens
    jobs: PartitionState[Any] = PartitionState(2, 1, 1, {"evidence": 4})
    for name, own in ((b"a", [("page", "hang")]), (b"b", [("page", "hang"), ("ticket", "slow_nic")])):
        jobs.tracked[name] = Tracked(name, SimpleNamespace(open_kinds=own))
    worker.job.states[2] = jobs
    worker.look()
    found = worker.values()
    assert found["irregulars_open_verdicts", ("page", "hang")] == 2
    assert found["irregulars_open_verdicts", ("ticket", "slow_nic")] == 1
    del worker.job.states[2]
    worker.look()
    assert worker.values()["irregulars_open_verdicts", ("page", "hang")] == 0


async def test_what_was_sent_is_counted_by_topic_and_snapshots_by_hop(worker: Worker, outbox: Outbox) -> None:
    await outbox.send("irregulars.verdicts", b"k", b"12345")
    await outbox.send("irregulars.rank_snapshots", b"k", b"123")
    await outbox.send("irregulars.rank_snapshots", b"k", None)
    found = worker.values()
    assert found["sent_messages_total", ("verdicts",)] == 1
    assert found["sent_bytes_total", ("verdicts",)] == 5
    assert (found["snapshots_total", ("rank",)], found["snapshot_bytes_total", ("rank",)]) == (2, 3)
    assert ("sent_bytes_total", ("rank_snapshots",)) not in found


def test_a_worker_that_becomes_stuck_says_so_once_and_answers_503(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker.rank.states[0] = PartitionState(0, 1, 1, {"commops": 10})
    worker.observer.saw_ends({0: {"commops": 20}})
    with caplog.at_level(logging.INFO), serve_pages(worker.observer, "127.0.0.1:0"):
        url = caplog.messages[0].removeprefix("event=metrics url=").removesuffix("/metrics")
        with monkeypatch.context() as patch:
            patch.setattr(liveness, "STUCK_S", 0.0)
            for _ in range(3):
                worker.look()
                time.sleep(0.01)
            with pytest.raises(HTTPError) as refusal:
                urllib.request.urlopen(f"{url}/healthz", timeout=60)
        assert refusal.value.code == 503
        assert b"commops/0" in refusal.value.read()
        refusal.value.close()
        worker.rank.states[0].take("commops", 19)
        worker.look()
        with urllib.request.urlopen(f"{url}/healthz", timeout=60) as answer:
            assert answer.read() == b"ok\n"
    said = [record.getMessage().split()[0] for record in caplog.records if record.levelno >= logging.INFO]
    assert said == ["event=metrics", "event=not_healthy", "event=ready", "event=healthy"]
