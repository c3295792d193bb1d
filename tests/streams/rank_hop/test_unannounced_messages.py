"""What is held for an attempt that nobody has announced yet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from irregulars.messages.announcements import Heartbeat
from irregulars.messages.records import Batch
from irregulars.streams.rank_hop.rank_monitor import MAX_HELD_BYTES, HeldMessages
from tests.stored_states import stored
from tests.streams.lockstep_job import iteration_batch, operator_batch


def operators(attempt: int = 1) -> Batch:
    return operator_batch(0, [{"start_ns": 5, "elapsed_ns": 7.0, "iteration": 0}], attempt=attempt)


def beat(reason: str) -> Heartbeat:
    return Heartbeat("lockstep", 1, 0, {}, "ended", reason)


def test_of_heartbeats_the_newest_two_are_held() -> None:
    held = HeldMessages()
    for reason in ("a", "b", "c"):
        held.beat(beat(reason))
    assert held.take()[1] == [beat("b"), beat("c")]


def test_only_operators_of_the_attempt_or_a_later_one_show_that_it_has_begun() -> None:
    held = HeldMessages()
    held.add(iteration_batch(0, [{"iteration": 0, "start_ns": 5, "elapsed_ns": 7}], attempt=3), 0)
    held.add(operators(attempt=2), 1)
    assert [held.has_operators(attempt, None) for attempt in (1, 2, 3)] == [True, True, False]


def test_what_is_held_is_bounded_in_bytes() -> None:
    """Equal rows take hundreds of times as much memory as the messages in which they came."""
    large = replace(operators(), columns={name: np.repeat(one, 1 << 15) for name, one in operators().columns.items()})
    most = MAX_HELD_BYTES // (sum(one.nbytes for one in large.columns.values()) + len("world"))
    held = HeldMessages()
    for offset in range(most + 3):
        held.add(large, offset)
    assert [offset for _, offset in held.take_surplus()] == [0, 1, 2]
    held = HeldMessages.from_state(stored(held.state()))
    held.add(large, most + 3)
    assert [offset for _, offset in held.take_surplus()] == [3]
    held.drop_before("commops", 1, None)
    held.add(large, most + 4)
    assert held.take_surplus() == []


def test_what_is_held_keeps_no_rows_of_other_ranks_in_memory() -> None:
    held, whole = HeldMessages(), {name: np.repeat(one, 2) for name, one in operators().columns.items()}
    held.add(replace(operators(), columns={name: one[:1] for name, one in whole.items()}), 0)
    ((batch, _),), _ = held.take()
    assert all(one.base is None for one in batch.columns.values())
