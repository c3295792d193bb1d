"""The forest that people teach, on a real broker: a word by `irregulars feedback`, what it changes, and kill -9."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from irregulars.detectors.plugins.loading import load_detectors
from irregulars.messages.opinions import Opinion, encode_opinion
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import Trace
from irregulars.streams.monitor_settings import MonitorSettings
from tests.integration.pipelines import Pipeline, Process
from tests.integration.test_feedback import irregulars
from tests.integration.test_live_thresholds import send
from tests.integration.worker_runs import Bus, wait_until
from tests.streams.eight_ranks import EightRanks
from tests.streams.judged_streams import Message, MonitoredJob, in_order
from tests.streams.lockstep_job import MS

pytestmark = pytest.mark.integration

FOREST = "irregulars.detectors.plugins.forest.taught_forest:TaughtForest"
JOB = "llama"
LATE = ((30, 42), (60, 72), (80, 92))
"""Iterations in which rank 2 is late: three verdicts on one pattern."""
CUTS = (50, 76)
"""Iterations before which somebody says a word on the first verdict: that it was wrong, and then nothing any more."""


def trace() -> Trace:
    made = EightRanks(job=JOB)
    made.late_ns = lambda number, rank: 20 * MS * (rank == 2 and any(a <= number < b for a, b in LATE))
    return made.trace(100)


def parts() -> list[list[Message]]:
    """The messages of the job, cut behind the last ones of the iterations before `CUTS`."""
    made = trace()
    columns = made.batches("iterations")[0].columns
    starts = dict(zip(columns["iteration"].tolist(), columns["start_ns"].tolist(), strict=True))
    messages = in_order(made, max_span_s=0.02)
    places = [next(at for at, one in enumerate(messages) if _time(one) >= starts[cut]) for cut in CUTS]
    return [messages[begin:end] for begin, end in zip([0, *places], [*places, None], strict=True)]


def _time(message: Message) -> int:
    return (message.header.watermark_ns or 0) if isinstance(message, Batch) else 0


def expected(parts: Sequence[Sequence[Message]]) -> tuple[MonitoredJob, str, list[int]]:
    """What both hops say in memory; the verdict on which somebody says a word; iterations judged after each part."""
    job, judged, said = MonitoredJob(JOB, MonitorSettings(rank_detectors=load_detectors([FOREST])["rank"])), [], []
    for number, part in enumerate(parts):
        job.monitor.hear(said, number)
        job.feed(part)
        judged.append(len(job.outcome.iterations))
        verdict_id = job.outcome.revisions[0].verdict_id
        is_right = None if number else False
        said.append(Opinion(verdict_id, JOB, "slow_rank", (30, 40), is_right, "ann", number))
    return job, verdict_id, judged


def test_a_word_moves_the_scores_and_who_takes_over_scores_the_same(pipeline: Pipeline) -> None:
    bus, messages = pipeline.bus, parts()
    wanted, verdict_id, judged = expected(messages)
    # On a busy machine a minute may pass between two parts, and no rank may be given up meanwhile.
    own = {"snapshot_s": 10.0, "detectors": ("peers", FOREST), "grace_s": 600.0}
    workers = [pipeline.start_worker(**own)]
    for number, part in enumerate(messages):
        if number:
            say(bus, verdict_id, number)
            wait(partial(holds, bus, workers, number), f"word {number} in all partitions", workers)
        send(bus, part)
        wait(partial(has_stored, pipeline, judged[number]), f"{judged[number]} iterations", workers)
        if number == 1:  # nobody has stored what was judged since the word
            workers[0].kill()
            workers.append(pipeline.start_worker(**own))
    assert workers[1].stop() == 0
    assert [one.to_json() for one in pipeline.revisions()] == [one.to_json() for one in wanted.outcome.revisions]
    assert scores_of(pipeline) == in_memory(wanted)
    first, second, third = (typical(scores_of(pipeline), *span) for span in LATE)
    assert second < 1 < first == pytest.approx(third, rel=0.1)


def say(bus: Bus, verdict_id: str, number: int) -> None:
    """Say a word: the first by command, the other as others may, on the topic: that is seconds quicker."""
    if number == 1:
        said = irregulars(bus, "feedback", verdict_id, "wrong", "--who", "ann")
        assert said.returncode == 0, said.stderr
    else:
        withdrawn = Opinion(verdict_id, JOB, "slow_rank", (30, 40), None, "ann", time.time_ns())
        bus.send("feedback", withdrawn.key, encode_opinion(withdrawn))
        bus.flush()


def wait(is_true: Callable[[], bool], what: str, workers: Sequence[Process]) -> None:
    """Wait for something; show all that the workers said if it does not come."""
    try:
        wait_until(is_true, what)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *(one.output() for one in workers)])) from error


def holds(bus: Bus, workers: Sequence[Process], revision: int) -> bool:
    """Whether a worker said of each partition that these words hold, or found that they do.

    A partition may be taken away and given back between the moment in which that is stored and the line on it.
    """
    lines = [line for worker in workers for line in worker.output().splitlines()]
    told = [line for line in lines if "event=feedback " in line or "event=words_hold topic=feedback " in line]
    held = [line for line in told if f"revision={revision}" in line.split()]
    return {int(line.split("partition=")[1].split()[0]) for line in held} == {*range(bus.partitions)}


def has_stored(pipeline: Pipeline, iterations: int) -> bool:
    return pipeline.stored_iterations() == iterations


Scores = dict[tuple[int, int], float]


def scores_of(pipeline: Pipeline) -> Scores:
    rows = pipeline.rows("detector_scores").to_pylist()
    return _scores(rows)


def in_memory(job: MonitoredJob) -> Scores:
    columns = job.outcome.columns("detector_scores")
    return _scores([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def _scores(rows: Sequence[dict[str, Any]]) -> Scores:
    own = [row for row in rows if row["detector"] == "taught_forest"]
    return {(row["iteration"], row["rank"]): round(row["score"], 4) for row in own}


def typical(scores: Scores, first: int, past: int) -> float:
    found = sorted(scores.get((number, 2), 0.0) for number in range(first, past))
    return found[len(found) // 2]


def test_where_no_detector_is_taught_a_word_holds_nowhere(pipeline: Pipeline) -> None:
    bus = pipeline.bus
    worker = pipeline.start_worker()
    send(bus, parts()[0])
    wait_until(lambda: bool(pipeline.revisions()), "a verdict")
    assert irregulars(bus, "feedback", pipeline.revisions()[0].verdict_id, "wrong").returncode == 0
    wait_until(lambda: bool(pipeline.query("EXISTS TABLE feedback")) and pipeline.count("feedback") == 1, "a row")
    assert worker.stop() == 0
    assert "event=feedback " not in worker.output()
