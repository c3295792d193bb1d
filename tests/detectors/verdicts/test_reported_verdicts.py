"""A report that the settings name opens a verdict by itself, once, on the device that it is about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.detectors.blame.thresholds import BLAME
from irregulars.messages.device_events import DeviceEvent, batch_of
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import Header
from irregulars.producers.trace.directory import Trace
from irregulars.settings import JudgeSettings
from irregulars.sinks.advice import command_to_run, plan_of
from tests.streams.judged_streams import MonitoredJob, in_order, judge_trace
from tests.streams.lockstep_job import MS, US, WORLD_OF_4, LockstepJob, work_and_meet

PLACES = {rank: {"host": f"h{rank // 2}", "gpu": rank % 2, "nic": f"mlx5_{rank % 2}"} for rank in range(4)}
EVERY_NS, PAUSE_NS = 12 * MS, int(2 * BLAME.events_before_s * 1e9)
NAMED = ("xid:memory", "xid:79", "ecc", "link_down", "link_errors", "out_of_memory", "xid:application")

Event = tuple[int, int, str, str, int | None]  # iteration, rank, kind, device, code


def reported(*events: Event) -> Trace:
    """Sixty healthy iterations, with a long pause after the fortieth."""
    job = LockstepJob(WORLD_OF_4, PLACES)
    starts: list[int] = []

    def body(one: LockstepJob, number: int) -> None:
        starts.append(one.now_ns[0])
        if number == 40:
            for rank in one.ranks:
                one.work(rank, PAUSE_NS)
        work_and_meet(lambda n, rank: 10 * MS + (n * 7 + rank * 3) % 5 * 20 * US, 2 * MS)(one, number)

    job.iterate(range(60), body)
    made: dict[int, list[DeviceEvent]] = {}
    for number, rank, kind, device, code in events:
        host = PLACES[rank]["host"]
        made.setdefault(rank, []).append(DeviceEvent(starts[number] + MS, rank, kind, host, device, code))
    batches = {rank: batch_of(own, Header("events", job.job, job.attempt, rank)) for rank, own in made.items()}
    return replace(job.trace(), events=batches)


def opened(trace: Trace, named: tuple[str, ...] = NAMED) -> list[Verdict]:
    """Return all revisions: the same however often the judge is restored, and though all evidence comes twice."""
    settings = JudgeSettings(event_verdicts=named)
    plain, restored = (
        judge_trace(trace, settings, restore_at=at, repeat_evidence=bool(at)).revisions
        for at in ((), range(0, 999, 20))
    )
    assert restored == plain
    return plain


XID = (20, 3, "xid", "gpu1", 79)


def test_without_the_setting_a_report_is_no_verdict() -> None:
    assert opened(reported(XID), ()) == []
    assert opened(reported(XID), ("xid:48", "xid:memory", "ecc")) == []


def test_a_report_opens_one_verdict_that_lasts_as_long_as_the_job() -> None:
    first, more, closed = opened(reported(XID, (20, 3, "xid", "gpu1", 79), (45, 3, "ecc", "gpu1", 2)))
    assert first.verdict_id == f"{first.job}:{first.attempt}:20:device_events.gpu3"
    assert (first.kind, first.detector, first.severity, first.layer) == (
        "custom",
        "device_events",
        "ticket",
        "hardware",
    )
    assert [(one.device, one.ranks, one.host, one.gpu) for one in first.suspects] == [("gpu", (3,), "h1", 1)]
    assert "gpu1 of rank 3 reported XID 79 (bus or device)" in first.evidence
    assert plan_of(first).sentence.startswith("test GPU 1 on h1 (rank 3, NIC mlx5_1) before you drain anything")
    assert command_to_run(first) == "irregulars sql reported_events host=h1"
    assert [(one.event, one.iterations) for one in (first, more, closed)] == [
        ("opened", (20, 21)), ("changed", (20, 46)), ("closed", (20, 46)),
    ]  # fmt: skip
    assert "reported memory errors that were not corrected" in more.evidence
    assert closed.close_reason == "finished"


@pytest.mark.parametrize(("one", "device", "ranks", "layer"), [
    pytest.param((20, 2, "link_down", "mlx5_0", None), "nic", (2,), "network", id="NIC"),
    pytest.param((20, 2, "out_of_memory", "", None), "host", (2, 3), "host", id="host"),
    pytest.param((20, 1, "xid", "gpu1", 31), "gpu", (1,), "software", id="program"),
])  # fmt: skip
def test_the_device_and_the_layer_are_those_of_the_report(
    one: Event, device: str, ranks: tuple[int, ...], layer: str
) -> None:
    first, last = opened(reported(one))
    assert [(suspect.device, suspect.ranks) for suspect in first.suspects] == [(device, ranks)]
    assert (first.layer, last.event) == (layer, "closed")
    assert (layer == "software") == plan_of(first).sentence.startswith("drain nothing")
    assert plan_of(first).actions == ()


@pytest.mark.parametrize("last", [(31, 2, "link_up", "mlx5_0", None), (31, 2, "link_errors", "mlx5_0", 7)])
def test_a_link_that_is_up_again_is_over_after_a_while(last: Event) -> None:
    begin = (30, 2, "link_down" if last[2] == "link_up" else "link_errors", "mlx5_0", 5)
    revisions = opened(reported(begin, last))
    assert [one.event for one in revisions] == ["opened", *["continued"] * (last[2] != "link_up"), "closed"]
    assert (revisions[-1].close_reason, revisions[-1].iterations[0]) == ("recovered", 30)
    again = opened(reported(begin, last, (50, 2, "link_down", "mlx5_0", None)))
    assert [one.verdict_id.split(":")[2] for one in again if one.event == "opened"] == ["30", "50"]


def test_a_link_that_is_up_again_ends_no_errors_of_its_nic() -> None:
    kinds = ("link_down", "pcie", "link_up")
    events = [(number, 2, kind, "mlx5_0", None) for number, kind in enumerate(kinds, start=30)]
    *_, more, closed = opened(reported(*events), (*NAMED, "pcie"))
    assert (more.event, more.layer, closed.close_reason) == ("changed", "hardware", "finished")


def test_a_silent_job_keeps_its_verdict_open() -> None:
    trace = reported((59, 3, "xid", "gpu1", 79))
    job = MonitoredJob(trace.job, JudgeSettings(event_verdicts=NAMED))
    messages = in_order(trace)
    job.feed(messages[: -len(trace.announcements)])
    for now_s in (0.0, 700.0, 1400.0):
        job.tick(now_s)
    assert [one.event for one in job.outcome.revisions] == ["opened"]
    job.feed(messages[-len(trace.announcements) :])
    assert [one.event for one in job.outcome.revisions] == ["opened", "closed"]
