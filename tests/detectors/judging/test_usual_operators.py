"""Usual times of the ranks of a large job, and which of its ranks are read first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.judging.iteration_rows import IterationRows, split_by_iteration
from irregulars.detectors.judging.operator_reader import OperatorReader, _seeds
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.detectors.judging.usual_operators import UsualOperators
from irregulars.messages.evidence import concatenate, no_patterns
from tests.detectors.judging.read_job import ReadJob
from tests.present import present
from tests.room_thresholds import moved
from tests.streams.evidence_rows import came, evidence_of, no_entries, no_operators
from tests.streams.lockstep_job import MS, WORLD_OF_4, LockstepJob, meeting


def iteration(
    number: int, elapsed_ns: Sequence[int], work_ns: Sequence[float], operators: Sequence[int]
) -> IterationRows:
    count = len(elapsed_ns)
    columns = {
        "rank": np.arange(count),
        "iteration": np.full(count, number),
        "elapsed_ns": np.array(elapsed_ns),
        "work_ns": np.array(work_ns),
        "operators": np.array(operators),
    }
    return IterationRows((), columns, no_entries(count, "offset"), no_entries(count), no_patterns(count))


def seeds(rows: IterationRows, usual: UsualOperators) -> set[int]:
    return _seeds(rows, usual.work_excess_ns(rows), usual.complete_ranks(rows))


USUAL = UsualOperators([iteration(n, [100] * 6, [10.0] * 6, [50] * 6) for n in range(3)], is_whole=False)


def test_ranks_that_are_read_first() -> None:
    # Who took longest and who worked longest over their usual are read first
    assert seeds(iteration(3, [100, 100, 100, 101, 100, 100], [10, 90, 10, 10, 80, 10], [50] * 6), USUAL) == {1, 3, 4}
    # Who lost rows and seems to have worked does not displace who worked: ranks 1 and 4 lost the operators in which
    # they waited for rank 2.
    rows = iteration(3, [100, 100, 100, 101, 100, 100], [10, 90, 85, 10, 95, 12], [50, 49, 50, 50, 49, 50])
    assert 2 in seeds(rows, USUAL)
    assert not {1, 4} & seeds(rows, USUAL)
    # Where all run fewer operators than ever those who worked longest are read
    assert seeds(iteration(3, [101] + [100] * 5, [10, 90, 10, 10, 80, 10], [40] * 6), USUAL) == {0, 1, 4}


OF_FOUR = UsualOperators(
    [iteration(n, [100] * 4, [10.0 + n, 20.0, 30.0, 40.0], [50] * 4) for n in range(3)], is_whole=True
)


def test_usual_work_of_ranks() -> None:
    # The usual work of a rank is its median
    assert dict(zip(OF_FOUR.work_ranks.tolist(), OF_FOUR.work_ns.tolist(), strict=True)) == {
        0: 11,
        1: 20,
        2: 30,
        3: 40,
    }
    # Work that all ranks do longer by the same factor is nobody s excess
    rows = iteration(3, [100] * 4, [22.0, 40.0, 60.0, 95.0], [50] * 4)
    assert OF_FOUR.common_factor(rows) == 2.0
    assert OF_FOUR.work_excess_ns(rows) == {0: 0.0, 1: 0.0, 2: 0.0, 3: 15.0}
    # The common factor of work that is not known is one
    assert OF_FOUR.common_factor(iteration(3, [100] * 4, [0.0] * 4, [50] * 4)) == 1.0
    unknown = UsualOperators([iteration(0, [100] * 2, [0.0] * 2, [1] * 2)], is_whole=True)
    assert unknown.common_factor(iteration(1, [100] * 2, [5.0] * 2, [1] * 2)) == 1.0
    # Ranks with as many operators as usual lost none, though one iteration had some more, or most lost some
    ran = [[50, 50 - (n < 6), 50 + (n == 4), 50] for n in range(10)]
    of_ten = UsualOperators([iteration(n, [100] * 4, [10.0] * 4, one) for n, one in enumerate(ran)], is_whole=True)
    assert of_ten.complete_ranks(iteration(10, [100] * 5, [1.0] * 5, [50, 49, 50, 50, 50])) == {0, 2, 3}


def lockstep() -> ReadJob:
    return ReadJob(meeting(4, 8, lambda number, rank: 10 * MS + (number + rank) % 3 * 5000, 2 * MS).trace())


def read_of_usual(reader_of: ReadJob) -> set[int]:
    """Iterations that were read to learn what is usual."""
    reader: OperatorReader = reader_of.reader
    reader.set_usual(reader_of.rows, reader_of.read_back)
    reader.learn({0}, reader_of.read_back)
    return {rows.number for rows in present(reader._usual).iterations}


def test_a_job_that_is_read_whole_learns_from_all_its_regular_iterations_and_another_from_six() -> None:
    assert read_of_usual(lockstep()) == set(range(8))
    with moved(JUDGING, "whole_ranks", 3):
        assert read_of_usual(lockstep()) == set(range(2, 8))


def test_what_is_usual_on_lanes_is_kept_for_as_long_as_the_same_ranks_are_asked_for() -> None:
    job = LockstepJob(WORLD_OF_4)

    def body(one: LockstepJob, number: int) -> None:
        for sender in range(3):
            one.message("world", sender, sender + 1, (2 + sender) * MS)

    job.iterate(range(8), body)
    read = ReadJob(job.trace())
    codes, topology = read.reader.codes, read.reader.topology
    kept = UsualOperators(read.rows, is_whole=True)
    for ranks in ([0], [0], [1, 2], [3], [0]):
        found = kept.lanes(codes, ranks, topology)
        assert found == UsualOperators(read.rows, is_whole=True).lanes(codes, ranks, topology)
        assert found.keys() == {
            Lane("pair", one, one + 1) for one in range(3) if not {one, one + 1}.isdisjoint(ranks)
        }
    assert kept.lanes(codes, [0], topology) is found
    assert kept.lanes(codes, [0], replace(topology)) is not found  # who is a member may have changed


@pytest.mark.parametrize(("most_rows", "is_known"), [(4, True), (3, False)])
def test_single_operators_are_known_of_iterations_that_are_not_too_large(most_rows: int, is_known: bool) -> None:
    job = lockstep()
    with moved(JUDGING, "most_replayed_rows", most_rows):
        job.reader.set_usual(job.rows, job.read_back)
        assert job.reader._usual is not None
        job.reader._usual.reference(job.reader.build)
        assert (job.reader._usual.pieces is not None) == is_known


def many(ranks: int, number: int) -> IterationRows:
    """One iteration of many ranks, none of which logged an operator."""
    parts = [evidence_of(rank, {number: 10.0}) for rank in range(ranks)]
    (rows,) = split_by_iteration(concatenate(parts), np.ones(ranks, dtype=bool))
    return rows


@pytest.mark.parametrize(("ranks", "iterations"), [(450, 8), (600, 6)])
def test_jobs_of_up_to_512_ranks_are_read_whole(ranks: int, iterations: int) -> None:
    """It shows in the number of regular iterations that are read."""
    reader, rows = OperatorReader(), many(ranks, 0)
    reader.set_usual([rows] * 8, no_operators)
    assert len(present(reader._usual).iterations) == iterations


def test_of_one_iteration_no_more_than_1024_ranks_are_read() -> None:
    reader = OperatorReader()
    came_first = present(came(0, 1300).announcement)
    reader.set_announcements({0: came_first})
    read, _ = reader.follow([many(1300, 0)], range(1300), 0.0, no_operators)
    assert read == set(range(1024))
