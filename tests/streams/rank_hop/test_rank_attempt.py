"""One attempt of a rank: what a closing holds, and what is left out before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import PHASE_UNKNOWN, UNKNOWN
from irregulars.settings import JudgeSettings
from irregulars.streams.rank_hop.evidence_reduction import Closing
from irregulars.streams.rank_hop.message_rows import part_of
from irregulars.streams.rank_hop.rank_attempt import Closed, RankAttempt
from tests.streams.lockstep_job import iteration_batch, operator_batch
from tests.streams.rank_hop.test_pending_rows import operator, turn

ANNOUNCED = Announcement("lockstep", 1, 0, 2, 2, (), ("commops", "iterations"))


def attempt(**changes: Any) -> RankAttempt:
    return RankAttempt(replace(ANNOUNCED, **changes), 3, JudgeSettings())


def only(closed: Closed) -> Closing:
    (closing,) = (one for one in closed if isinstance(one, Closing))
    return closing


def test_iterations_that_follow_each_other_begin_when_the_last_operator_ended() -> None:
    made = attempt()
    made.add(part_of(iteration_batch(0, [turn(0, 0), turn(1, 10), turn(2, 20)]), 0))
    made.add(part_of(operator_batch(0, [operator(0, 1), operator(1, 12)], watermark_ns=15), 1))
    first = only(made.settle())
    assert (first.numbers, first.entry_ns, list(first.free_ns)) == ([0], UNKNOWN, [0])
    made.add(part_of(operator_batch(0, [operator(2, 21)], rows_before=2, watermark_ns=25), 2))
    second = only(made.settle())
    assert (second.numbers, second.entry_ns, list(second.free_ns)) == ([1], 5, [5])
    assert (second.partition, list(second.start_ns), list(second.elapsed_ns)) == (3, [10], [10])


def test_iterations_without_a_row_of_their_own_have_no_times_but_those_of_their_operators() -> None:
    made = attempt(sources=("commops",))
    made.add(part_of(operator_batch(0, [operator(0, 1), operator(1, 12), operator(2, 22)], watermark_ns=17), 0))
    closing = only(made.settle())
    assert (closing.numbers, list(closing.start_ns), list(closing.phase)) == ([0], [UNKNOWN], [PHASE_UNKNOWN])
    assert np.isnan(closing.tokens).all()


def test_operators_of_no_iteration_are_left_out_where_nothing_will_place_them() -> None:
    placed = []
    for sources in (("commops",), ("commops", "iterations")):
        made = attempt(sources=sources)
        made.add(part_of(iteration_batch(0, [turn(0, 0)]), 0))
        rows = [operator(0, 1), operator(UNKNOWN, 2), operator(1, 11)]
        made.add(part_of(operator_batch(0, rows, watermark_ns=30), 1))
        placed.append([ns for cut in only(made.settle()).cuts for ns in cut.column("start_ns").tolist()])
    assert placed == [[1], [1, 2]]


def test_of_a_rank_whose_operators_name_their_iterations_others_are_held_only_behind_the_first() -> None:
    """They may be of a hang there; a job that marks none must not fill the worker."""
    made = attempt(names_iterations=True)
    made.add(part_of(operator_batch(0, [operator(UNKNOWN, 1), operator(UNKNOWN, 2, np.nan)], watermark_ns=3), 0))
    assert not made.state().pending.operators["iteration"].size
    made.add(part_of(iteration_batch(0, [turn(0, 10)]), 1))
    made.add(part_of(operator_batch(0, [operator(UNKNOWN, 25, np.nan)], rows_before=2), 2))
    assert [number for one in made.end("finished") if isinstance(one, Closing) for number in one.numbers] == [0, 1]
