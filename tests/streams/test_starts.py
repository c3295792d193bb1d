"""A job that starts again under one attempt number, and two jobs under one name: no host is taken for another's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.messages.announcements import code_of_start, contradiction_of
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import Trace
from irregulars.streams.job_hop.job_starts import JobStarts, StartsState
from tests.conftest import examples
from tests.streams.eight_ranks import HOSTS, EightRanks
from tests.streams.evidence_rows import evidence_of
from tests.streams.judged_streams import Message, MonitoredJob, found, in_order, interleaved, judge, shifted
from tests.streams.lockstep_job import MS, START_NS

OLD = {rank: {**place, "host": f"old-{rank // 2}"} for rank, place in HOSTS.items()}
KILLED_AFTER = LATE_FROM = 20
GAP_NS = 60_000_000_000
SECOND_NS = 1_000_000_000


@cache
def slow_job(*, is_moved: bool, late_rank: int | None = 2, iterations: int = 45) -> Trace:
    """A job on some hosts; a rank of it is late from iteration 20 on."""
    made = EightRanks(HOSTS if is_moved else OLD)
    made.late_ns = lambda number, rank: 20 * MS * (rank == late_rank and number >= LATE_FROM)
    return made.trace(iterations)


def of_start(messages: list[Message], start: str | None) -> list[Message]:
    return [
        replace(one, header=replace(one.header, start=start)) if isinstance(one, Batch) else replace(one, start=start)
        for one in messages
    ]


def restarted(*starts: str | None, late_before: int | None = None) -> list[Message]:
    """A job that is killed on its old hosts, and starts again on others, with a rank that is late from 20 on."""
    before = in_order(slow_job(is_moved=False, late_rank=late_before, iterations=KILLED_AFTER))[:-8]  # no last words
    after = in_order(shifted(slow_job(is_moved=True), GAP_NS))
    return [*of_start(before, starts[0]), *of_start(after, starts[1])]


def named(outcome: object) -> list[tuple[str, int, int, str]]:
    """Who is accused, most probable first, with attempt and first iteration."""
    return [
        (one.suspects[0].host, one.suspects[0].rank, one.attempt, one.verdict_id)
        for one in outcome.verdicts.values()  # type: ignore[attr-defined]
        if one.suspects
    ]


def test_the_host_is_named_on_which_the_job_started_again() -> None:
    outcome = judge(restarted("a", "b"), "lockstep")
    assert named(outcome) == [("node-1", 2, 2, "lockstep:2:20:0")]
    assert outcome.announced == {(attempt, rank) for attempt in (1, 2) for rank in range(8)}


@cache
def of_second_start() -> list[Verdict]:
    return [one for one in judge(restarted("a", "b"), "lockstep").revisions if one.attempt == 2]


@settings(max_examples=examples(5))
@given(seed=st.integers(0, 2**32), jobs_first=st.booleans(), restore_at=st.sets(st.integers(1, 200), max_size=3))
def test_no_order_of_topics_changes_verdicts_on_two_starts(seed: int, jobs_first: bool, restore_at: set[int]) -> None:
    messages = interleaved(restarted("a", "b"), Random(seed), keeps_jobs_first=jobs_first)
    outcome = judge(messages, "lockstep", restore_at=restore_at, is_on_wire=True)
    assert [one for one in outcome.revisions if one.attempt == 2] == of_second_start()


def test_a_start_that_comes_twice_counts_once() -> None:
    messages = of_start(in_order(slow_job(is_moved=True)), "a")
    assert found(judge([*messages, *messages], "lockstep")) == found(judge(messages, "lockstep"))


def test_verdict_ids_are_those_of_a_job_without_an_id() -> None:
    messages = in_order(slow_job(is_moved=True))
    assert found(judge(of_start(messages, "a"), "lockstep")) == found(judge(messages, "lockstep"))


def test_a_start_under_a_lower_attempt_number_is_a_new_one() -> None:
    messages = [
        replace(one, header=replace(one.header, attempt=0)) if isinstance(one, Batch) else replace(one, attempt=0)
        for one in of_start(in_order(shifted(slow_job(is_moved=True), GAP_NS)), "b")
    ]
    outcome = judge([*of_start(in_order(slow_job(is_moved=False, late_rank=None)), "a"), *messages], "lockstep")
    assert named(outcome) == [("node-1", 2, 2, "lockstep:2:20:0")]


@pytest.mark.parametrize("start", [None, "a"])
def test_nobody_is_named_where_one_start_is_announced_in_two_places(start: str | None) -> None:
    job = MonitoredJob("lockstep")
    job.feed(restarted(start, start))
    assert job.monitor.contradiction == ("host", ("node-0", "node-1", "node-2", "node-3", "old-0", "old-1", "old-2",
                                                  "old-3"))  # fmt: skip
    assert job.outcome.verdicts
    assert named(job.outcome) == []
    assert not any(one.close_reason == "recovered" for one in job.outcome.revisions)


def test_a_rank_that_is_announced_in_its_first_place_again_contradicts_no_more() -> None:
    trace = slow_job(is_moved=True)
    other = replace(trace.announcements[2], nic="mlx5_7")
    job = MonitoredJob("lockstep")
    job.feed([*trace.announcements, other])
    assert job.monitor.contradiction == ("nic", ("node-1",))
    job.restore()
    assert job.monitor.contradiction == ("nic", ("node-1",))
    job.feed([trace.announcements[2]])
    assert job.monitor.contradiction is None
    job.feed(in_order(trace)[8:])
    assert [host for host, *_ in named(job.outcome)] == ["node-1"]


def test_groups_that_are_made_later_contradict_nothing() -> None:
    first, *_ = slow_job(is_moved=True).announcements
    fewer = replace(first, communicators=first.communicators[:2])
    other = replace(first.communicators[0], ranks=(0, 1))
    assert contradiction_of(fewer, first) is None
    assert contradiction_of(first, fewer) is None
    assert contradiction_of(first, replace(first, communicators=(other, *first.communicators[1:]))) == "communicators"
    assert contradiction_of(first, replace(first, host=None, switch="leaf-9")) is None


@pytest.mark.parametrize("same_hosts", [True, False])
def test_two_jobs_of_one_name_are_told_and_nothing_recovers(same_hosts: bool) -> None:
    slow, healthy = (
        slow_job(is_moved=True, iterations=300),
        slow_job(is_moved=same_hosts, late_rank=None, iterations=300),
    )
    one, other = of_start(in_order(slow), "a"), of_start(in_order(shifted(healthy, 300 * MS)), "b")
    mixed = sorted([*one, *other], key=_time_ns)
    job = MonitoredJob("lockstep")
    until_ns = START_NS + 8_000_000_000
    job.feed([message for message in mixed if _time_ns(message) < until_ns])
    contradiction = job.monitor.contradiction
    assert contradiction is not None
    assert contradiction.what == "starts"
    assert ("old-0" in contradiction.hosts) is not same_hosts
    job.feed([message for message in mixed if _time_ns(message) >= until_ns])
    job.tick(0.0)
    job.tick(100.0)  # one of them goes on: the other begins when it has waited for long enough
    assert not any(one.close_reason == "recovered" for one in job.outcome.revisions)


def _time_ns(message: Message) -> int:
    return START_NS - 1 if not isinstance(message, Batch) else message.header.watermark_ns or 0


def test_a_start_that_is_heard_of_after_the_one_that_followed_it_is_over() -> None:
    before = of_start(in_order(slow_job(is_moved=False, late_rank=None))[:-8], "a")
    after = of_start(in_order(shifted(slow_job(is_moved=True), GAP_NS)), "b")
    job = MonitoredJob("lockstep")
    # Each start has a monitor of its own, as ranks on other hosts have: the first hop knows no order between them.
    job.feed(after[:100])
    job.ranks = {}
    job.feed(before)
    job.tick(0.0)
    job.tick(100.0)  # the present one is not ended for it
    assert job.monitor.contradiction is None
    job.ranks = dict(job.outcome.rank_monitors)
    job.feed(after[100:])
    assert {host for host, *_ in named(job.outcome)} == {"node-1"}


# --- clocks that are wrong ------------------------------------------------------------------------------------------

A, B = ("a", "b")
RESTART_NS = 300 * SECOND_NS


def came(start: str) -> Membership:
    return Membership("j", 1, 0, start=start)


def iteration(start: str, *start_ns: int) -> Evidence:
    """An iteration of a start, as each of its ranks gives it, on a host of its own."""
    rows = evidence_of(1, dict.fromkeys(range(len(start_ns)), 5.0))
    attempts = np.full(len(start_ns), code_of_start(1, start))
    return replace(rows, columns={**rows.columns, "attempt": attempts, "start_ns": np.array(start_ns)})


@pytest.mark.parametrize("wrong_s", [-601, 601])
@pytest.mark.parametrize("where", [A, B])
def test_the_wrong_clock_of_one_host_neither_silences_a_start_nor_takes_its_devices(wrong_s: int, where: str) -> None:
    starts = JobStarts()

    def given(start: str, begin_ns: int) -> Evidence:
        wrong_ns = wrong_s * SECOND_NS if start == where else 0
        return iteration(start, *[begin_ns] * 3, begin_ns + wrong_ns)

    starts.numbered([came(A), given(A, START_NS), came(B), given(B, START_NS + RESTART_NS)])
    starts.numbered([given(A, START_NS + SECOND_NS)])  # from another partition, which was read later
    assert starts.overtaken(1) == []
    assert not starts.is_beside(2)


def test_a_job_that_is_run_again_once_its_state_is_gone_gets_ids_of_its_own() -> None:
    """Else they would be those of verdicts that closed long ago, and nobody would be told of the new ones."""
    first = of_start(in_order(slow_job(is_moved=False)), "a")
    job = MonitoredJob("lockstep")
    assert named(job.feed(first)) == [("old-1", 2, 1, "lockstep:1:20:0")]
    code, number = job.monitor.newest_start or pytest.fail("it has one")
    again = MonitoredJob("lockstep")
    again.monitor.go_on_after(StartsState.of(code, number))
    outcome = again.feed(of_start(in_order(shifted(slow_job(is_moved=True), GAP_NS)), "b"))
    assert named(outcome) == [("node-1", 2, 2, "lockstep:2:20:0")]
    same = MonitoredJob("lockstep")
    same.monitor.go_on_after(StartsState.of(code, number))
    assert named(same.feed(first)) == named(job.outcome), "a start that comes again keeps its number"
