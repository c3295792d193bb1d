"""What must not matter to a judgement.

The order, the pieces and the copies in which a job's data arrive; restarts of the worker; the time of day; the
numbers of the ranks. Of a directory `tests.producers.trace.test_directory` holds that they are read alike.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.producers.trace.directory import Trace, read_trace
from tests.conftest import examples
from tests.streams.eight_ranks import faulty
from tests.streams.judged_streams import (
    RECORDINGS,
    Outcome,
    around_the_fault,
    found,
    in_order,
    interleaved,
    judge,
    judge_trace,
    renamed,
    shifted,
    with_renamed_ranks,
    with_rows_mixed,
)

pytestmark = pytest.mark.slow

FAULTS = ("gloo-slow-rank", "gloo-slow-nic", "gloo-slow-link")
EIGHT_RANKS = "eight ranks"
"""Not a recording: two stages, four hosts, and two faults one after the other."""

FEW = settings(max_examples=examples(2))


@cache
def recorded(name: str) -> Trace:
    return faulty() if name == EIGHT_RANKS else read_trace(RECORDINGS / name)


@cache
def judged(name: str) -> Outcome:
    return judge_trace(recorded(name))


@cache
def piece(name: str) -> Trace:
    return recorded(name) if name == EIGHT_RANKS else around_the_fault(recorded(name))


@cache
def found_in(name: str) -> tuple[Any, ...]:
    """All that is said of a piece of a job."""
    return found(judge_trace(piece(name)))


@pytest.mark.parametrize("name", ["gloo-slow-rank", "gloo-slow-nic"])
@FEW
@given(seed=st.integers(0, 2**32 - 1))
def test_any_order_and_copies_inside_of_batches_change_nothing(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    messages = []
    for message in in_order(piece(name)):
        is_rows = hasattr(message, "columns") and message.header.schema == "commops"  # type: ignore[union-attr]
        messages += [with_rows_mixed(message, random, copies=7)] if is_rows else [message]  # type: ignore[arg-type]
    outcome = judge(messages, piece(name).job)
    assert (outcome.revisions, outcome.iterations) == found_in(name)[:2]


@pytest.mark.parametrize("name", [*FAULTS, "gloo-slow-compute", EIGHT_RANKS])
@FEW
@given(
    random=st.randoms(use_true_random=False),
    rows=st.integers(20, 3000),
    span_ms=st.floats(30, 60_000),
    data=st.data(),
)
def test_neither_borders_of_batches_nor_interleaving_of_topics_and_ranks_nor_restores_from_snapshots_change_anything(
    name: str, random: Random, rows: int, span_ms: float, data: st.DataObject
) -> None:
    trace = piece(name)
    messages = interleaved(in_order(trace, max_rows=rows, max_span_s=span_ms / 1e3), random)
    steps = data.draw(st.sets(st.integers(1, len(messages)), max_size=10))
    assert found(judge(messages, trace.job, restore_at=steps)) == found_in(name)


def test_restored_after_every_message_that_went_over_the_wire_and_gave_its_evidence_twice() -> None:
    trace = piece("gloo-slow-nic")
    messages = in_order(trace, max_rows=400, max_span_s=0.5)
    steps = range(len(messages) + 1)
    outcome = judge(messages, trace.job, restore_at=steps, is_on_wire=True, repeat_evidence=True)
    assert found(outcome) == found_in("gloo-slow-nic")


@pytest.mark.parametrize("name", ["gloo-slow-nic"])
@FEW
@given(shift_ns=st.integers(-(10**18), 10**18))
def test_a_common_shift_of_time_changes_nothing(name: str, shift_ns: int) -> None:
    outcome = judge_trace(shifted(piece(name), shift_ns))
    verdicts = [replace(v, time_ns=None if v.time_ns is None else v.time_ns - shift_ns) for v in outcome.revisions]
    iterations = [replace(one, start_ns=one.start_ns - shift_ns) for one in outcome.iterations]
    assert (verdicts, iterations) == found_in(name)[:2]


@pytest.mark.parametrize("name", ["gloo-slow-link", EIGHT_RANKS])
@FEW
@given(data=st.data(), base=st.sampled_from([0, 4, 1000]))
def test_other_numbers_of_ranks_rename_the_verdicts(name: str, data: st.DataObject, base: int) -> None:
    ranks = [one.rank for one in piece(name).announcements]
    names = {rank: base + new for rank, new in zip(ranks, data.draw(st.permutations(ranks)), strict=True)}
    outcome = judge_trace(renamed(piece(name), names))
    expected = [with_renamed_ranks(verdict, names) for verdict in found_in(name)[0]]
    assert [replace(verdict, evidence="", explanation=None) for verdict in outcome.revisions] == expected


@FEW
@given(random=st.randoms(use_true_random=False), rows=st.integers(3, 300))
def test_delivery_of_a_job_without_iteration_rows_changes_nothing(random: Any, rows: int) -> None:
    trace = faulty(has_iteration_rows=False)
    outcome = judge(interleaved(in_order(trace, max_rows=rows, max_span_s=0.3), random), trace.job)
    expected = judge_trace(trace)
    assert (outcome.revisions, outcome.iterations) == (expected.revisions, expected.iterations)


def test_each_message_twice_changes_nothing() -> None:
    trace = piece("gloo-slow-rank")
    messages = [twice for message in in_order(trace, max_rows=200) for twice in (message, message)]
    outcome = judge(messages, trace.job)  # samples that come twice count twice in the columns for the sinks
    assert (outcome.revisions, outcome.iterations) == found_in("gloo-slow-rank")[:2]


@pytest.mark.parametrize("name", FAULTS)
def test_the_piece_holds_all_that_is_said_of_the_fault(name: str) -> None:
    """So that a change which mattered above would be seen. A shorter past may leave a further suspect for a while."""
    of_piece, of_whole = (
        [(one.verdict_id, one.close_reason, one.suspects[0].rank) for one in revisions]
        for revisions in (found_in(name)[0], judged(name).revisions)
    )
    assert of_piece == of_whole
