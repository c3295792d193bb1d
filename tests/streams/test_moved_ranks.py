"""Ranks that get another place in a start that runs: a spare takes over, or the group is resized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.messages.announcements import Heartbeat
from irregulars.messages.bundles import bundle_of, decode_batches, encode_bundle
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import Trace, trace_batches
from tests.conftest import examples
from tests.streams.eight_ranks import EightRanks
from tests.streams.judged_streams import Message, MonitoredJob, in_order, interleaved, last_words
from tests.streams.lockstep_job import MS, START_NS, US, LockstepJob

MOVED = 40
"""The first iteration of the new place."""

BOTH = [("node-1", 2, (20, 40), "restarted"), ("spare-0", 2, (40, 110), "finished")]
Late = tuple[range, ...]


@cache
def job_of(*late: range, rank: int = 2, iterations: int = 110) -> Trace:
    """A job whose rank 2 is late in some iterations; it does not know of places."""
    made = EightRanks()
    made.late_ns = lambda number, who: 20 * MS * (who == rank and any(number in some for some in late))
    return made.trace(iterations)


def since_ns_of(trace: Trace) -> int:
    rows = trace.batches("iterations")[0].columns
    return int(rows["start_ns"][rows["iteration"] == MOVED][0])


def moved(
    trace: Trace, ranks: tuple[int, ...] = (2,), start: str | None = "a", **place: object
) -> tuple[list[Message], list[Message]]:
    """What a job sends before ranks move, and after it: rows of the new place are counted from 0."""
    since_ns = since_ns_of(trace)
    before: list[Message] = [replace(one, start=start) for one in trace.announcements]
    there = {"host": "spare-0", "gpu": 7, "nic": "mlx5_7", "since_ns": since_ns, **place}
    after: list[Message] = [replace(one, **there) for one in before if one.rank in ranks]  # type: ignore[union-attr]
    rows_before: dict[tuple[str, int], int] = {}
    for batch in trace_batches(trace, 1500, 1.0):
        is_after = batch.columns["start_ns"] >= since_ns
        header = replace(batch.header, start=start)
        for which, messages, since in ((~is_after, before, None), (is_after, after, since_ns)):
            if not which.any():
                continue
            place_since = since if header.rank in ranks else None
            key = (header.schema, header.rank, place_since)
            own = replace(header, rows_before=rows_before.get(key, 0), since_ns=place_since)
            rows_before[key] = own.rows_before + int(which.sum())
            if not is_after.all() and since is None:
                own = replace(own, watermark_ns=min(own.watermark_ns or since_ns, since_ns))
            messages.append(Batch(own, {name: column[which] for name, column in batch.columns.items()}))
    for word in last_words(trace):
        is_moved = word.rank in ranks
        progress = {
            schema: replace(one, rows=rows_before[schema, word.rank, since_ns if is_moved else None])
            for schema, one in word.sources.items()
        }
        after.append(replace(word, sources=progress, start=start, since_ns=since_ns if is_moved else None))
    return before, after


def named(verdicts: dict[str, Verdict]) -> list[tuple[str | None, int, tuple[int, int], str | None]]:
    return [
        (one.suspects[0].host, one.suspects[0].rank, one.iterations, one.close_reason)
        for one in verdicts.values()
        if one.suspects
    ]


@pytest.mark.parametrize(("late", "expected", "start"), [
    ((range(20, 40),), [("node-1", 2, (20, 40), "restarted")], "a"),
    ((range(70, 90),), [("spare-0", 2, (70, 90), "recovered")], "a"),
    ((range(20, 110),), BOTH, "a"),
    ((range(20, 110),), BOTH, None),
])  # fmt: skip
def test_a_verdict_names_the_host_that_the_rank_had_then(
    late: Late, expected: list[tuple[str, int, tuple[int, int], str]], start: str | None
) -> None:
    before, after = moved(job_of(*late), start=start)
    job = MonitoredJob("lockstep", is_on_wire=True)
    job.feed([*before, *after])
    assert named(job.outcome.verdicts) == expected
    assert job.monitor.contradiction is None
    assert job.monitor.is_ended
    assert len(job.outcome.iterations) == 110
    assert {one.ranks_reported for one in job.outcome.iterations} == {8}
    assert _lost_rows(job) == 0


def _lost_rows(job: MonitoredJob) -> int:
    attempts = [monitor.state().attempt for monitor in job.ranks.values()]
    return sum(one.arrivals.lost_rows for one in attempts if one is not None)


@settings(max_examples=examples(5), deadline=None)
@given(seed=st.integers(0, 2**32), restore_at=st.sets(st.integers(1, 120), max_size=3), is_twice=st.booleans())
def test_no_order_of_the_topics_changes_the_verdicts(seed: int, restore_at: set[int], is_twice: bool) -> None:
    messages = interleaved([*chain(*moved(job_of(range(20, 110))))], Random(seed))
    job = MonitoredJob("lockstep", restore_at=restore_at, is_on_wire=True, repeat_evidence=is_twice)
    job.feed(messages)
    assert named(job.outcome.verdicts) == BOTH
    assert _lost_rows(job) == 0


def test_the_place_before_ends_no_rank_that_has_another() -> None:
    before, after = moved(job_of(range(70, 90)))
    said = Heartbeat("lockstep", 1, 2, state="ended", reason="stopped", start="a")
    for words in ([*before, said, *after], [*before, *after[:-40], said, *after[-40:]]):
        job = MonitoredJob("lockstep", is_on_wire=True)
        job.feed(words)
        assert named(job.outcome.verdicts) == [("spare-0", 2, (70, 90), "recovered")]
        assert {one.ranks_reported for one in job.outcome.iterations} == {8}


def test_hosts_are_read_by_workers_of_their_own() -> None:
    """Ranks of a host have a partition of their own: the new host's rank is read by a monitor that knows no other."""
    before, after = moved(job_of(range(20, 110)))
    job = MonitoredJob("lockstep", is_on_wire=True)
    job.feed(before)
    left = job.ranks.pop(2)
    job.feed(after[:1])
    left.beat(Heartbeat("lockstep", 1, 2, state="ended", reason="stopped", start="a"))
    job.deliver(left.drain())
    job.feed(after[1:])
    assert named(job.outcome.verdicts) == BOTH
    assert {one.ranks_reported for one in job.outcome.iterations} == {8}


def test_a_place_that_is_announced_twice_over_contradicts() -> None:
    before, after = moved(job_of())
    job = MonitoredJob("lockstep")
    job.feed([*before, *after[:60], replace(after[0], host="spare-9")])  # type: ignore[type-var]
    assert job.monitor.contradiction == ("host", ("spare-0", "spare-9"))
    job.restore()
    job.feed(after[60:])
    assert job.monitor.contradiction == ("host", ("spare-0", "spare-9"))


@pytest.mark.parametrize("sizes", [(4, 3), (3, 4)])
def test_a_group_that_is_resized_goes_on_with_the_ranks_that_it_has(sizes: tuple[int, int]) -> None:
    """All processes come up anew, some of them elsewhere; a rank that is left out says nothing."""

    def run(size: int, name: str, numbers: range, start_ns: int) -> Trace:
        places = {rank: {"host": f"{name}-{rank}", "gpu": 0} for rank in range(size)}
        job = LockstepJob({f"{name}-world": ("world", tuple(range(size)))}, places, start_ns=start_ns)

        def body(job: LockstepJob, number: int) -> None:
            for rank in range(size):
                late_ns = 20 * MS * (rank == 1 and number >= 80)
                job.work(rank, 8 * MS + late_ns + (number * 11 + rank * 5) % 7 * 15 * US)
            job.collective(f"{name}-world", 300 * US)

        job.iterate(numbers, body)
        return job.trace()

    since_ns = START_NS + 3_000_000_000
    old, new = run(sizes[0], "old", range(MOVED), START_NS), run(sizes[1], "new", range(MOVED, 120), since_ns)
    job = MonitoredJob("lockstep", is_on_wire=True)
    job.feed(of_place(in_order(old)[: -sizes[0]], "a", dict.fromkeys(range(4))))
    job.feed(of_place(in_order(new), "a", {rank: since_ns if rank < sizes[0] else None for rank in range(4)}))
    assert named(job.outcome.verdicts) == [("new-1", 1, (80, 120), "finished")]
    reported = [one.ranks_reported for one in job.outcome.iterations]
    whole = MOVED - (sizes[0] > sizes[1])  # the last one of a rank that is left out is closed by nothing
    assert reported == [sizes[0]] * whole + [sizes[1]] * (120 - whole)
    assert job.monitor.contradiction is None
    assert job.monitor.is_ended


def of_place(messages: Sequence[Message], start: str, sinces_ns: Mapping[int, int | None]) -> list[Message]:
    return [
        replace(one, header=replace(one.header, start=start, since_ns=sinces_ns[one.header.rank]))
        if isinstance(one, Batch)
        else replace(one, start=start, since_ns=sinces_ns[one.rank])
        for one in messages
    ]


def test_a_bundle_says_of_each_rank_since_when_it_has_its_place() -> None:
    _, after = moved(job_of())
    batches = [one for one in after if isinstance(one, Batch) and one.header.schema == "commops"]
    newest = {one.header.rank: replace(one, header=replace(one.header, group="g")) for one in batches}
    decoded = decode_batches(encode_bundle(bundle_of([*newest.values()])), "commops")
    assert {one.header.rank: one.header.since_ns for one in decoded} == {
        rank: since_ns_of(job_of()) if rank == 2 else None for rank in range(8)
    }
