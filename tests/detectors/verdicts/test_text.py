"""The sentence of evidence."""

from __future__ import annotations

import pytest

from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.path.critical_path import Piece
from irregulars.detectors.verdicts.text import evidence_text, in_turn_text, recovery_text
from irregulars.messages.records import OPERATOR_CODES
from irregulars.words import duration

TOPOLOGY = Topology(4, {}, {}, ("dp0", "pp0"))


def text(piece: Piece) -> str:
    return evidence_text(piece, 7, 9, TOPOLOGY)


def test_own_work_names_the_rank_and_the_operator_that_others_waited_in() -> None:
    piece = Piece(Lane("work", 3), 3, OPERATOR_CODES["all_reduce"], 0, 62e6, 12e6)
    assert text(piece) == (
        "rank 3 took 62 ms of its own before all_reduce on dp0, and others waited for it (usual 12 ms), "
        "in 7 of 9 slow iterations"
    )


def test_a_pair_names_both_ends() -> None:
    piece = Piece(Lane("pair", 1, 3), 3, OPERATOR_CODES["recv"], 1, 24_900_000, 411_000)
    assert text(piece).startswith("rank 1 to rank 3 on pp0 took 24.9 ms after both had arrived (usual 411 µs)")


def test_a_collective_names_its_communicator() -> None:
    piece = Piece(Lane("collective", 0), 0, OPERATOR_CODES["reduce_scatter"], 0, 2e9, 1e9)
    assert text(piece).startswith("reduce_scatter on dp0 took 2 s after its last rank had arrived (usual 1 s)")


def test_of_ranks_that_come_last_in_turn_none_is_named() -> None:
    assert in_turn_text(2.71e9, 21, 22) == (
        "in each iteration another rank works longer than its peers, as with uneven data; it cost 2.71 s, "
        "in 21 of 22 slow iterations"
    )


def test_a_communicator_without_a_name_has_its_code() -> None:
    assert "communicator 17" in text(Piece(Lane("collective", 17), 0, 0, 17, 2e9, 1e9))


@pytest.mark.parametrize(
    ("elapsed_ns", "expected"),
    [(0.0, "0 ms"), (999.0, "999 ns"), (1e3, "1 µs"), (24_900_000.0, "24.9 ms"), (1e9, "1 s"), (125e9, "125 s")],
)
def test_durations_have_the_unit_that_suits_them(elapsed_ns: float, expected: str) -> None:
    assert duration(elapsed_ns) == expected


@pytest.mark.parametrize("elapsed_ns", [999.7, 999_700.0, 999_999_999.0, 3_600e9])
def test_no_duration_is_written_with_an_exponent(elapsed_ns: float) -> None:
    assert "e" not in duration(elapsed_ns)


@pytest.mark.parametrize(("ratio", "without"), [(0.0, "355 ms"), (0.5, "295 ms"), (1.0, "235 ms")])
def test_what_comes_back_is_taken_from_what_it_took_longer(ratio: float, without: str) -> None:
    assert recovery_text(ratio, 355e6, 235e6) == f"without it the iteration would have taken {without}"
