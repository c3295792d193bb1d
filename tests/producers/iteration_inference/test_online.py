from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.records import UNKNOWN, Batch, Header
from irregulars.producers.iteration_inference.online import InferenceLimits, OnlineInference
from irregulars.producers.trace.directory import Trace, read_trace, trace_batches
from tests.producers.iteration_inference.made_up_jobs import Call, columns_of
from tests.producers.trace.test_iterations import without_marks

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings"


def unmarked(trace: Trace, max_rows: int) -> list[Batch]:
    return [one for one in trace_batches(without_marks(trace), max_rows) if one.header.schema == "commops"]


def announced(announcements: tuple[Announcement, ...], limits: InferenceLimits | None = None) -> OnlineInference:
    inference = OnlineInference(limits)
    for announcement in announcements:
        inference.announce(announcement)
    return inference


def test_batches_leave_in_their_order_and_nothing_else_of_them_changes() -> None:
    trace = read_trace(RECORDINGS / "gloo-clean")
    inference = announced(trace.announcements)
    sent = unmarked(trace, 32)
    left = [one for batch in sent for one in inference.push(batch)] + inference.flush()
    for rank in trace.commops:
        before, after = ([b for b in batches if b.header.rank == rank] for batches in (sent, left))
        assert [b.header for b in before] == [b.header for b in after]
        for one, other in zip(before, after, strict=True):
            for column in set(one.columns) - {"iteration"}:
                np.testing.assert_array_equal(one.columns[column], other.columns[column])


def test_memory_is_bounded_while_nothing_is_learned() -> None:
    trace = read_trace(RECORDINGS / "gloo-clean")
    limits = InferenceLimits(rows=120, delay_s=1e6)
    inference = announced((), limits)
    generator = np.random.default_rng(3)
    rows = 0
    batches = unmarked(trace, 20)[:80]
    for batch in batches:
        sizes = generator.integers(1, 1 << 20, len(batch)).astype(np.float64)
        operators = generator.choice([0, 1, 3], len(batch)).astype(np.uint8)
        noise = Batch(batch.header, {**batch.columns, "size_bytes": sizes, "operator": operators})
        rows += sum(map(len, inference.push(noise)))
        assert inference.kept_rows <= limits.rows + 20
    assert rows + sum(map(len, inference.flush())) == sum(map(len, batches)) > 4 * limits.rows


def test_nodes_that_join_at_different_times_agree() -> None:
    """Each starts without the job's beginning, so that only sequences can tell them where they are."""
    trace = read_trace(RECORDINGS / "gloo-slow-rank")
    found = {}
    for rank, first in ((0, 40), (3, 130)):
        own = next(one for one in trace.announcements if one.rank == rank)
        inference = announced((own,))
        batches = [b for b in unmarked(trace, 10) if b.header.rank == rank and b.header.rows_before >= first]
        released = [one for batch in batches for one in inference.push(batch)] + inference.flush()
        for batch in released:
            is_world = np.array(batch.header.names)[batch.columns["communicator"]] == "world"
            pairs = (batch.columns[name][is_world].tolist() for name in ("sequence", "iteration"))
            found.setdefault(rank, {}).update(zip(*pairs, strict=True))
    known = ({sequence for sequence, number in own.items() if number != UNKNOWN} for own in found.values())
    shared = set.intersection(*known)
    assert len(shared) > 80
    assert all(found[0][sequence] == found[3][sequence] for sequence in shared)


_MB = 1 << 20


def buckets(sizes: list[int], forward_ms: float) -> list[Call]:
    """Return one iteration of a job with data parallel ranks alone: a forward pass, and buckets of gradients."""
    return [Call(0, "all_reduce", size, work_ms=forward_ms if at == 0 else 10.0) for at, size in enumerate(sizes)]


def numbered_by(iterations: list[list[list[Call]]], per_batch: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Send `per_batch` iterations of each rank at a time.

    Returns the true and the found number of each operator, and the rows that waited after each batch.
    """
    columns = columns_of(iterations)
    ranks = tuple(range(len(iterations[0])))
    told = (Communicator("world", "world", ranks),)
    inference = announced(tuple(Announcement("job", 0, one, len(ranks), len(ranks), told) for one in ranks))
    truth: dict[tuple[int, int], int] = {}
    left, waiting = [], []
    for first in range(0, len(iterations), per_batch):
        for rank in ranks:
            number = columns["iteration"]
            own = (columns["rank"] == rank) & (number >= first) & (number < first + per_batch)
            truth.update(((rank, s), n) for s, n in zip(columns["sequence"][own], number[own], strict=True))
            rows = {name: column[own] for name, column in columns.items() if name != "rank"}
            rows["iteration"] = np.full(own.sum(), UNKNOWN)
            end_ns = int(rows["start_ns"][-1] + rows["elapsed_ns"][-1])
            left += inference.push(Batch(Header("commops", "job", 0, rank, 0, end_ns, ("world",)), rows))
            waiting.append(inference.held_rows)
    left += inference.flush()
    pairs = [
        (truth[batch.header.rank, sequence], found)
        for batch in left
        for sequence, found in zip(batch.columns["sequence"], batch.columns["iteration"], strict=True)
    ]
    return pairs, waiting


@pytest.mark.parametrize("per_batch", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [[n * _MB for n in range(1, 11)], [25 * _MB] * 9 + [7 * _MB]])
@pytest.mark.parametrize("forward_ms", [60.0, 400.0])
def test_buckets_of_gradients_are_no_iterations(per_batch: int, sizes: list[int], forward_ms: float) -> None:
    """With first batches of an iteration each a bucket counted as an iteration for good: they were 0, 10, 20."""
    pairs, _ = numbered_by([[buckets(sizes, forward_ms)] * 4] * 60, per_batch)
    assert [(true, found) for true, found in pairs if found not in (true, UNKNOWN)] == []
    assert sum(found == UNKNOWN for _, found in pairs) <= 0.1 * len(pairs)


# Batches of the 4 ranks, of 5 iterations each
@pytest.mark.parametrize(("slow", "waits"), [(0, 8), (3, 4 * 64 // 5 + 12)])
def test_a_slow_first_iteration_holds_up_nothing_and_a_pause_for_a_while_alone(slow: int, waits: int) -> None:
    jobs = [[buckets([25 * _MB], 3_000.0 if number == slow else 400.0)] * 4 for number in range(120)]
    pairs, waiting = numbered_by(jobs, 5)
    assert all(found == true for true, found in pairs)
    assert not any(waiting[waits:])


@pytest.mark.parametrize("per_batch", [1, 2, 5])
def test_an_evaluation_every_some_iterations_holds_up_little(per_batch: int) -> None:
    """Each lost the cadence, and 64 iterations had to prove it anew: there was always an evaluation among them."""
    own = buckets([25 * _MB] * 3 + [7 * _MB], 400.0)
    seen = [Call(0, "all_reduce", 8, work_ms=5_000.0)] * 2
    jobs = [[(seen if number and number % 50 == 0 else []) + own] * 4 for number in range(150)]
    pairs, waiting = numbered_by(jobs, per_batch)
    assert sum(map(bool, waiting[3::4])) <= 0.15 * len(jobs) / per_batch
    found_of: dict[int, set[int]] = {}
    for true, found in pairs:
        found_of.setdefault(true, set()).add(found)
    assert sum(len(found) > 1 for found in found_of.values()) <= 2, "an evaluation may count as one of its own"


@pytest.mark.parametrize("per_batch", [1, 2])
def test_a_job_that_begins_to_fill_many_buckets_is_not_numbered_by_them(per_batch: int) -> None:
    one, many = buckets([25 * _MB], 400.0), buckets([25 * _MB] * 9 + [7 * _MB], 400.0)
    pairs, _ = numbered_by([[one if number < 20 else many] * 4 for number in range(80)], per_batch)
    assert all(found == true for true, found in pairs)
