"""Which rows an iteration takes when it closes, and which stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from irregulars.messages.bounds import MOST_EXACT
from irregulars.messages.records import UNKNOWN
from irregulars.state_codec import encode_state
from irregulars.streams.rank_hop.closing_times import (
    WaitingTimer,
    closing_time_ns,
    closing_times_by_operators,
    newest_closed,
)
from irregulars.streams.rank_hop.message_rows import IterationTimes, part_of
from irregulars.streams.rank_hop.pending_rows import MOST_OF_ONE, MOST_UNTOLD, PendingRows
from tests.stored_states import stored
from tests.streams.lockstep_job import iteration_batch, operator_batch

MOST_STATE_BYTES = 32 << 20
"""Of a rank that marks no iterations: what a snapshot of it may cost every few seconds."""


def operator(iteration: int, start_ns: int, elapsed_ns: float = 4.0, **values: Any) -> dict[str, Any]:
    times = {"start_ns": start_ns, "elapsed_ns": elapsed_ns}
    return {"iteration": iteration, "sequence": start_ns, "size_bytes": 64.0, **times, **values}


def turn(number: int, start_ns: int, elapsed_ns: float = 10.0) -> dict[str, Any]:
    return {"iteration": number, "start_ns": start_ns, "elapsed_ns": elapsed_ns, "tokens": 1.0}


def pending(*operators: dict[str, Any], turns: tuple[dict[str, Any], ...] = ()) -> PendingRows:
    made = PendingRows()
    told(made, *turns)
    add(made, *operators)
    return made


def add(made: PendingRows, *operators: dict[str, Any], offset: int = 0) -> None:
    batch = operator_batch(0, operators)
    made.add_operators(batch.columns, batch.header.names, offset)


def told(made: PendingRows, *turns: dict[str, Any]) -> int:
    return made.add_iterations(part_of(iteration_batch(0, turns), 0).iterations) if turns else 0


def taken(made: PendingRows, numbers: list[int], closing_ns: Mapping[int, int]) -> dict[str, np.ndarray]:
    """Operators of iterations that close."""
    cuts = made.take(numbers, closing_ns)[0]
    return {name: np.concatenate([cut.column(name) for cut in cuts]) for name in cuts[0].source.columns}


def starts(rows: Mapping[str, np.ndarray]) -> list[int]:
    return sorted(rows["start_ns"].tolist())


def test_rows_keep_the_offset_of_their_batch_and_the_name_of_their_communicator() -> None:
    made = pending(operator(0, 1, communicator="tp"))
    add(made, operator(0, 2, communicator="dp"), operator(0, 7, communicator="tp"), offset=9)
    rows = taken(made, [0], {})
    assert rows["offset"].tolist() == [0, 9, 9]
    assert [made.names[code] for code in rows["communicator"]] == ["tp", "dp", "tp"]


def test_rows_of_older_iterations_than_those_that_close_go_with_them() -> None:
    made = pending(operator(4, 1), operator(6, 21), operator(7, 31))
    assert starts(taken(made, [4, 7], {})) == [1, 31]
    assert made.take([8], {})[0] == []


def test_operators_without_any_time_stand_for_their_iterations_at_the_end() -> None:
    made = pending(operator(3, UNKNOWN, sequence=0), operator(4, UNKNOWN, sequence=1))
    assert made.numbers() == []
    made.note_untimed()
    assert made.numbers() == [3, 4]
    assert len(taken(made, [3, 4], {3: UNKNOWN})["offset"]) == 2


def test_operators_that_no_iteration_takes_are_bounded_and_the_newest_stay() -> None:
    """A script that marks no iterations any more, with one operator that stands open at the end."""
    made = pending(operator(0, 1), turns=(turn(0, 0),))
    made.take([0], {})
    rows = operator_batch(0, [operator(UNKNOWN, 20 + n) for n in range(1000)])
    for n in range(500):
        made.add_operators({**rows.columns, "start_ns": rows.columns["start_ns"] + 1000 * n}, rows.header.names, n)
        if n == 300:
            made = PendingRows.from_state(stored(made.state()))
    add(made, operator(UNKNOWN, 600_000, np.nan))
    held = sum(part.cut.rows for part in made._parts)
    assert MOST_UNTOLD // 4 * 3 <= held <= MOST_UNTOLD
    assert len(encode_state(made.state(), 1)) < MOST_STATE_BYTES
    made.place_unfinished()
    rest = taken(made, made.numbers(), {})
    assert (len(rest["iteration"]), rest["start_ns"].max()) == (held, 600_000)
    assert made.take_late_rows() == 500_001 - held


def test_operators_of_iterations_that_were_told_all_stay() -> None:
    """A recorded job is reduced at once, and its operators may say no iteration."""
    made = pending(turns=tuple(turn(number, 1000 * number, 1000) for number in range(300)))
    rows = operator_batch(0, [operator(UNKNOWN, n, 0.5) for n in range(1000)])
    for n in range(300):
        made.add_operators({**rows.columns, "start_ns": rows.columns["start_ns"] + 1000 * n}, rows.header.names, n)
    assert len(taken(made, made.numbers(), {})["iteration"]) == 300_000 > MOST_UNTOLD
    assert made.take_late_rows() == 0


@pytest.mark.parametrize("has_runs", [True, False])
def test_an_iteration_of_hours_keeps_as_many_rows_as_fit(has_runs: bool) -> None:
    """An evaluation between two steps, of some 1,000 operators a second: the next step ends it all the same."""
    made = PendingRows()
    part = part_of(operator_batch(0, [operator(7, n) for n in range(1000)]), 0)
    runs = part.summary.runs
    assert runs is not None
    for n in range(300):
        if has_runs and made.has_open(runs):
            made.add_runs(part.cut, runs, has_unended=False)
        else:
            made.add_operators(part.batch().columns, part.names, n)
        if n == 280:
            made = PendingRows.from_state(stored(made.state()))
    add(made, operator(7, 5000, np.nan), operator(8, 6000))
    assert made.has_unended
    rows = taken(made, [7], {})
    assert MOST_OF_ONE < len(rows["iteration"]) < MOST_OF_ONE + 1001
    assert np.isnan(rows["elapsed_ns"]).sum() == 1  # where it hangs is told
    assert made.take_late_rows() == 300_001 - len(rows["iteration"])
    assert made.numbers() == [8]


S = 1_000_000_000


@pytest.mark.parametrize(("elapsed_ns", "margin_ns"), [(0, 0), (100, 50), (2 * S, S), (60 * S, S)])
def test_an_iteration_closes_half_its_length_after_its_end_or_a_second(elapsed_ns: int, margin_ns: int) -> None:
    closes_ns = closing_time_ns(IterationTimes(1000, elapsed_ns, 0, 1.0))
    assert closes_ns == 1000 + elapsed_ns + margin_ns


def test_by_its_operators_an_iteration_ends_where_the_next_begins() -> None:
    assert list(closing_times_by_operators({3: 500, 2: 400, 9: 520})) == [(2, 550), (3, 530)]
    assert list(closing_times_by_operators({3: 500})) == []


def test_the_newest_iteration_that_a_watermark_has_passed() -> None:
    times = [(1, 10), (2, 20), (3, 15)]
    assert [newest_closed(times, watermark_ns) for watermark_ns in (9, 10, 15, 20)] == [None, 1, 3, 3]


@pytest.mark.parametrize(("looks", "over"), [
    ([(True, 100.0, 100.0), (True, 129.9, 129.9), (True, 130.0, 130.0)], [2]),
    ([(True, 0.0, 0.0), (False, 20.0, 20.0), (True, 40.0, 40.0), (True, 70.0, 70.0)], [3]),  # something came
    ([(True, now_s, now_s) for now_s in (0.0, 30.0, 31.0, 60.9, 61.0)], [1, 4]),  # the next wait begins
    # It began at 100 s at the latest, whatever was read by then, and lasts only as far as everything was read.
    ([(True, 100.0, 20.0), (True, 500.0, 129.9), (True, 501.0, 130.0)], [2]),
])  # fmt: skip
def test_a_wait_is_over_when_it_lasted_for_the_grace_from_the_first_time_that_it_was_seen(
    looks: list[tuple[bool, float, float]], over: list[int]
) -> None:
    timer = WaitingTimer(30.0)
    assert [number for number, look in enumerate(looks) if timer.is_over(*look)] == over
    timer.is_over(True, 600.0, 600.0)
    timer.restart()
    assert not timer.is_over(True, 700.0, 700.0)


def test_more_pauses_than_are_kept_lengthen_the_newest_of_their_cause() -> None:
    def pauses(*given: tuple[int, int, int]) -> list[tuple[int, IterationTimes]]:
        return [(0, IterationTimes(0, 10_000, 0, np.nan, pause=one)) for one in given]

    made = PendingRows()
    assert made.add_iterations(pauses(*((0, 10 * number, 5) for number in range(200)), (0, 0, 5))) == 0
    assert (len(made.pauses[0]), made.pauses[0][-1]) == (64, (0, 630, 5 * 137))
    assert made.add_iterations(pauses((1, 0, 5), (UNKNOWN, 0, 5), (0, 3_000, MOST_EXACT))) == 2
    assert made.pauses[0][-1] == (0, 630, MOST_EXACT)
