"""One attempt of a rank: what a closing holds, and what is left out before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import UNKNOWN
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
