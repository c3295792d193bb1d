from __future__ import annotations

from pathlib import Path

import numpy as np

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.iteration_inference.online import InferenceLimits, OnlineInference
from irregulars.producers.trace.directory import Trace, read_trace, trace_batches

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings"


def unmarked(trace: Trace, max_rows: int) -> list[Batch]:
    batches = [batch for batch in trace_batches(trace, max_rows) if batch.header.schema == "commops"]
    return [Batch(b.header, {**b.columns, "iteration": np.full(len(b), UNKNOWN)}) for b in batches]


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


def test_once_learned_nothing_waits() -> None:
    trace = read_trace(RECORDINGS / "gloo-clean")
    inference = announced(trace.announcements)
    waiting = []
    for batch in unmarked(trace, 24):
        inference.push(batch)
        waiting.append(inference.held_rows)
    settled = waiting[len(waiting) // 4 : -8]
    assert max(waiting) > 0
    assert not any(settled)


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
            pairs = zip(
                batch.columns["sequence"][is_world].tolist(),
                batch.columns["iteration"][is_world].tolist(),
                strict=True,
            )
            found.setdefault(rank, {}).update(pairs)
    shared = [
        sequence
        for sequence in found[0]
        if found[0][sequence] != UNKNOWN and found[3].get(sequence, UNKNOWN) != UNKNOWN
    ]
    assert len(shared) > 80
    assert all(found[0][sequence] == found[3][sequence] for sequence in shared)
