"""`irregulars thresholds` on a real broker: what two workers judge, and what the next one judges again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any

import pytest

from irregulars.kafka.topic_admin import create_topics, delete_topics
from irregulars.kafka.topics import rank_key
from irregulars.messages.announcements import Announcement, encode_announcement, encode_heartbeat
from irregulars.messages.records import Batch, encode_batch
from irregulars.messages.threshold_changes import ThresholdChange
from irregulars.producers.trace.directory import Trace
from tests.integration.pipelines import Pipeline, Process, run_command
from tests.integration.worker_runs import Bus, partition_of, wait_until
from tests.streams.eight_ranks import EightRanks
from tests.streams.judged_streams import Message, MonitoredJob, Outcome, in_order
from tests.streams.lockstep_job import MS

pytestmark = pytest.mark.integration

CUTS = (60, 90)
"""Iterations before which thresholds change, of 120."""
CHANGES: Sequence[Sequence[tuple[dict[str, Any], bool]]] = (
    [({"delta": 2.5, "alert_least_seen": 1000}, False), ({"delta": 1.7}, True)],
    [({"delta": None, "alert_least_seen": None}, False), ({"delta": None}, True)],
)
"""Before each of them: values, and whether they are of the first job alone."""


def trace_of(job: str) -> Trace:
    """A job in which rank 2 is late twice, and every 13th iteration takes 1.4 times as long."""
    made = EightRanks(job=job)
    made.late_ns = lambda number, rank: (
        20 * MS * (rank == 2 and (35 <= number < 45 or 70 <= number < 85)) + 8 * MS * (number % 13 == 6)
    )
    return made.trace(120)


def parts_of(trace: Trace) -> list[list[Message]]:
    """The messages of a job, cut behind the last ones of the iterations before `CUTS`."""
    columns = trace.batches("iterations")[0].columns
    starts = dict(zip(columns["iteration"].tolist(), columns["start_ns"].tolist(), strict=True))
    messages = in_order(trace, max_span_s=0.01)
    places = [next(at for at, one in enumerate(messages) if _time(one) >= starts[cut]) for cut in CUTS]
    return [messages[begin:end] for begin, end in zip([0, *places], [*places, None], strict=True)]


def _time(message: Message) -> int:
    return (message.header.watermark_ns or 0) if isinstance(message, Batch) else 0


def names_in_partitions(bus: Bus, *partitions: int) -> list[str]:
    return [next(n for n in (f"j{i}" for i in count()) if partition_of(n.encode(), bus) == at) for at in partitions]


def send(bus: Bus, messages: Iterable[Message]) -> None:
    for message in messages:
        if isinstance(message, Batch):
            header = message.header
            bus.send(header.schema, rank_key(header.job, header.rank), encode_batch(message))
        elif isinstance(message, Announcement):
            bus.send("jobs", rank_key(message.job, message.rank), encode_announcement(message))
        else:
            bus.send("heartbeats", rank_key(message.job, message.rank), encode_heartbeat(message))
    bus.flush()


def irregulars(bus: Bus, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("thresholds", *arguments, on=bus)


def begins(trace: Trace) -> list[int]:
    """Event times from which on the changes hold, ns: the starts of the iterations `CUTS`."""
    columns = trace.batches("iterations")[0].columns
    return [int(columns["start_ns"][columns["iteration"] == cut][0]) for cut in CUTS]


def expected(trace: Trace, first: str) -> Outcome:
    """The outcome of both hops in memory."""
    job = MonitoredJob(trace.job)
    job.monitor.follow(tuple(
        ThresholdChange("t", values, "ann", "noise", 0, first if is_own else None, begin_ns)
        for changes, begin_ns in zip(CHANGES, begins(trace), strict=True)
        for values, is_own in changes if not is_own or trace.job == first
    ))  # fmt: skip
    return job.feed(in_order(trace, max_span_s=0.01))


def change(bus: Bus, number: int, first: str, begin_ns: int) -> None:
    begin = f"{datetime.fromtimestamp(begin_ns / 1e9, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    for values, is_own in CHANGES[number]:
        own = ["--job", first] if is_own else []
        is_unset = None in values.values()
        texts = values if is_unset else [f"{name}={value}" for name, value in values.items()]
        verb = "unset" if is_unset else "set"
        said = irregulars(bus, verb, *texts, *own, "--from", begin, "--reason", "noise", "--who", "ann")
        assert said.returncode == 0, said.stderr


def test_workers_judge_by_changes_from_an_event_time_on_and_so_does_who_takes_over(pipeline: Pipeline) -> None:
    bus, jobs = pipeline.bus, names_in_partitions(pipeline.bus, 0, 3)  # two workers have one each
    traces = {job: trace_of(job) for job in jobs}
    parts = {job: parts_of(trace) for job, trace in traces.items()}
    wanted = {job: expected(trace, jobs[0]) for job, trace in traces.items()}
    # Snapshots are rare: what was judged since the change is stored by nobody when the worker is killed.
    workers = [pipeline.start_worker(snapshot_s=10.0) for _ in range(2)]
    bus.send("thresholds", b"t", b'{"schema": "thresholds", "version": 1, "values": {"delta": 0.5}}')
    for number in range(3):
        if number < len(CHANGES):  # long before the iterations that they are for
            change(bus, number, jobs[0], begins(traces[jobs[0]])[number])
            wait_until(partial(have_read, workers, 3 + 2 * number), "the change in all workers")
        for job in jobs:
            send(bus, parts[job][number])
        if number == 1:
            wait_until(lambda: pipeline.stored_iterations() > 2 * CUTS[0], "iterations judged by the changes")
            workers[0].kill()
            workers[0] = pipeline.start_worker()
    wait_until(partial(has_stored, pipeline, 240), "all iterations")
    assert all(worker.stop() == 0 for worker in workers)
    for job, outcome in wanted.items():
        assert said_of(pipeline, job) == [one.to_json() for one in outcome.revisions], job
        assert stored_irregular(pipeline, job) == [one.iteration for one in outcome.iterations if one.is_irregular]
    assert "event=unreadable topic=" in workers[1].output()
    assert "change_id must be" in workers[1].output()
    by = {job: [one.thresholds for one in outcome.revisions] for job, outcome in wanted.items()}
    assert {None} < {json.dumps(one) if one else None for one in by[jobs[0]]}
    assert {"alert_least_seen": 1000, "delta": 1.7} in by[jobs[0]]
    assert {"alert_least_seen": 1000, "delta": 2.5} in by[jobs[1]]


def have_read(workers: Sequence[Process], revision: int) -> bool:
    """Whether the log of each worker has the change before this offset."""
    return all(f"event=thresholds revision={revision} " in worker.output() for worker in workers)


def has_stored(pipeline: Pipeline, iterations: int) -> bool:
    return pipeline.stored_iterations() == iterations


def said_of(pipeline: Pipeline, job: str) -> list[dict[str, Any]]:
    return [one.to_json() for one in pipeline.revisions() if one.job == job]


def stored_irregular(pipeline: Pipeline, job: str) -> list[int]:
    rows = pipeline.rows("iterations").to_pylist()
    return sorted(row["iteration"] for row in rows if row["job"] == job and row["is_irregular"])


def test_a_worker_starts_without_the_topic_and_follows_it_once_it_is_made(pipeline: Pipeline) -> None:
    bus = pipeline.bus
    delete_topics(bus.bootstrap, [bus.topics.name("thresholds")], {})
    messages = parts_of(trace_of("j"))[0]
    worker = pipeline.start_worker()
    send(bus, messages)
    wait_until(lambda: pipeline.stored_iterations() > 50, "iterations without the topic")
    assert worker.output().count("event=no_thresholds") == 1
    said = irregulars(bus, "set", "delta=2.5", "--reason", "noise")
    assert said.returncode != 0
    assert "irregulars topics create" in said.stderr
    create_topics(bus.bootstrap, bus.topics)
    assert irregulars(bus, "set", "delta=2.5", "--reason", "noise").returncode == 0
    wait_until(partial(have_read, [worker], 1), "the change")
    assert worker.stop() == 0


def test_what_can_t_be_used_is_refused_and_the_list_says_what_is_in_force(bus: Bus) -> None:
    for arguments, words in (
        (["set", "window=80", "--reason", "x"], "window must not change while workers run"),
        (["set", "delta=high", "--reason", "x"], "delta must be a number above 1; got 'high'"),
        (["set", "delta", "--reason", "x"], "threshold must be NAME=VALUE; got 'delta'"),
        (["unset", "grace_s", "--reason", "x"], "grace_s must not change while workers run"),
        (["set", "delta=1.2"], "reason"),
    ):
        said = irregulars(bus, *arguments)
        assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1), arguments
        assert words in said.stderr
    assert bus.read("thresholds") == []
    assert irregulars(bus, "list").stdout == "all thresholds are as set\n"
    for number in range(2):
        change(bus, number, "j", 10**9)
        if number == 0:
            found = json.loads(irregulars(bus, "list", "--job", "j", "--json").stdout)
            in_force = {(one["name"], one["value"], one["job"]) for one in found["in_force"]}
            assert in_force == {("alert_least_seen", 1000, None), ("delta", 1.7, "j")}
            assert found["as_set"]["silence_s"] == 600
            assert "all jobs: delta = 2.5, said " in irregulars(bus, "list").stdout
    assert irregulars(bus, "list").stdout == "all thresholds are as set\n"
    assert len(irregulars(bus, "list", "--all").stdout.splitlines()) == 4
