"""Whether a job hangs, and whether that was said before."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.judging.hang_watch import HangWatch
from tests.detectors.judging.read_job import ReadJob
from tests.present import present
from tests.streams.lockstep_job import MS, WORLD_OF_4, LockstepJob, meeting


def hung(
    iterations: int = 30, lost_rows: int | None = 0, stands_in: int | None = None, unseen_since: int | None = None
) -> ReadJob:
    """After the last iteration rank 2 does not come to an all_reduce; its source says that rows of it were lost.

    ``stands_in``: the iteration in which the others stand; after the last one, if nothing else is said.
    ``unseen_since``: the iteration since which rank 3 logs nothing, although it takes part.
    """
    job = LockstepJob(WORLD_OF_4)

    def body(one: LockstepJob, number: int) -> None:
        for rank in range(4):
            one.work(rank, 10 * MS + (number + rank) % 3 * 5000)
        if number == stands_in:
            one.stand((0, 1, 3), "world", 10**6, number)
        one.collective("world", MS)

    job.iterate(range(iterations), body)
    if stands_in is None:
        job.stand((0, 1, 3), "world", 10**6, iterations)
    if unseen_since is not None:
        for own in (job.rows, job.iteration_rows):
            own[3] = [row for row in own[3] if row["iteration"] < unseen_since]
    trace = job.trace()
    told = {rank: lost_rows if rank == 2 else 0 for rank in range(4)}
    announcements = tuple(replace(one, lost_rows=told[one.rank]) for one in trace.announcements)
    return ReadJob(replace(trace, announcements=announcements))


def watched(job: ReadJob) -> HangWatch:
    watch = HangWatch()
    for rows in job.rows:
        watch.add(rows)
        job.reader.traffic.flowed += int(rows.columns["operators"].sum())
    return watch


def test_hangs_are_found_once() -> None:
    # The rank that did not come is found once
    job = hung()
    watch = watched(job)
    assert watch.has_unended
    found = present(watch.look(job.reader, job.read_back, math.inf))
    assert found[0].ranks == (2,)
    assert np.isnan(found[1]["elapsed_ns"]).sum() == 3
    assert not watch.has_unended
    assert watch.look(job.reader, job.read_back, math.inf) is None
    # A job whose operators all ended does not hang
    job = hung()
    watch = HangWatch()
    for rows in job.rows[:-1]:
        watch.add(rows)
    assert watch.look(job.reader, job.read_back, math.inf) is None
    assert job.spans == []


@pytest.mark.parametrize(("after", "is_new"), [(0, True), (1, True), (2, False)])
def test_a_hang_is_looked_for_in_the_newest_two_iterations(after: int, is_new: bool) -> None:
    watch = watched(hung(iterations=30, stands_in=29 - after))
    assert watch.has_unended == is_new


def apart(iterations: int, ahead: int) -> ReadJob:
    """Rank 3 stops, rank 2 waits for it at once, and ranks 0 and 1 only some iterations later."""
    job = LockstepJob({"world": ("world", [0, 1, 2, 3]), "tp0": ("tp", [0, 1]), "tp1": ("tp", [2, 3])})

    def body(one: LockstepJob, number: int) -> None:
        for pair in ("tp0", "tp1") if number < iterations else ("tp0",):
            one.collective(pair, MS)

    job.iterate(range(iterations + ahead), body)
    for rank in (2, 3):
        del job.iteration_rows[rank][iterations:]
    job.stand((0, 1), "world", 0, iterations + ahead - 1)
    job.stand((2,), "tp1", iterations, iterations)
    return ReadJob(job.trace())


@pytest.mark.parametrize("ahead", [1, 3, 8])
def test_a_rank_that_stopped_is_found_although_others_went_on_for_a_while(ahead: int) -> None:
    job = apart(30, ahead)
    found = present(watched(job).look(job.reader, job.read_back, math.inf))
    assert found[0].ranks == (3,)


def test_where_nobody_can_be_named_ranks_must_have_stood_for_a_while() -> None:
    groups = {"world": ("world", [0, 1, 2, 3]), "tp0": ("tp", [0, 1]), "tp1": ("tp", [2, 3])}
    job = LockstepJob(groups)
    job.iterate(range(30), lambda one, _: one.collective("world", MS))
    since_ns = job.now_ns[0]
    job.stand((0,), "tp0", 30, 29)
    job.stand((2,), "tp1", 30, 29)
    for rank in (1, 3):  # nothing is known of these
        job.rows[rank].clear()
        job.iteration_rows[rank].clear()
    read = ReadJob(job.trace())
    assert watched(read).look(read.reader, read.read_back, since_ns - 1) is None
    found = present(watched(read).look(read.reader, read.read_back, since_ns + 1))
    assert (found[0].ranks, found[0].silent, found[0].waiting) == ((), 0, 2)


def test_of_ranks_that_ended_long_ago_nothing_is_kept() -> None:
    watch = watched(apart(10, 40))
    assert len(watch.newest) <= IRREGULAR.level_iterations


@pytest.mark.parametrize(("iterations", "is_trusted"), [(110, True), (90, False)])
def test_of_a_rank_that_lost_1_per_cent_of_its_rows_a_missing_one_is_mute(iterations: int, is_trusted: bool) -> None:
    """One row of 110 is 0.9 %, one of 90 is 1.1 %."""
    job = hung(iterations, lost_rows=1)
    found = watched(job).look(job.reader, job.read_back, math.inf)
    assert (found is not None and found[0].ranks == (2,)) == is_trusted


@pytest.mark.parametrize(("lost_since", "is_trusted"), [(20, True), (29, False)])
def test_of_a_rank_that_lost_rows_of_late_a_missing_one_says_nothing(lost_since: int, is_trusted: bool) -> None:
    job = hung()
    for number, rows in enumerate(job.rows):
        lost_rows = rows.columns["lost_rows"] + 50 * ((rows.columns["rank"] == 2) & (number >= lost_since))
        job.rows[number] = replace(rows, columns={**rows.columns, "lost_rows": lost_rows})
    found = watched(job).look(job.reader, job.read_back, math.inf)
    assert (found is not None and found[0].ranks == (2,)) == is_trusted


@pytest.mark.parametrize("unseen_since", [0, 5])
def test_a_rank_whose_source_died_while_it_went_on_is_not_accused(unseen_since: int) -> None:
    job = hung(unseen_since=unseen_since)
    found = present(watched(job).look(job.reader, job.read_back, math.inf))
    assert found[0].ranks == (2,)


def accused_where_nothing_is_lost(job: LockstepJob) -> tuple[int, ...]:
    """Return the ranks that a job hangs by, whose sources counted no lost rows."""
    trace = job.trace()
    counted = tuple(replace(one, lost_rows=0) for one in trace.announcements)
    read = ReadJob(replace(trace, announcements=counted))
    found = present(watched(read).look(read.reader, read.read_back, math.inf))
    return found[0].ranks


def test_a_rank_that_never_came_is_accused() -> None:
    job = LockstepJob(WORLD_OF_4)
    job.iterate([0], lambda one, _: one.work(3, 10 * MS))
    job.stand((0, 1, 2), "world", 0, 0)
    assert accused_where_nothing_is_lost(job) == (3,)


def test_a_rank_that_stopped_in_the_first_iteration_is_accused_although_a_collective_of_it_ended() -> None:
    job = meeting(4, 1, lambda _, rank: 10 * MS * (rank == 3))
    job.stand((0, 1, 2), "world", job.rows[0][0]["sequence"] + 1, 0)
    # It delivered nothing: an iteration is sent when it is over
    job.rows[3], job.iteration_rows[3] = [], []
    assert accused_where_nothing_is_lost(job) == (3,)


def test_late_rows_of_a_hang() -> None:
    # Rows that come late and stand too make it worth another look
    job = hung()
    watch = watched(job)
    watch.look(job.reader, job.read_back, math.inf)
    late = watch.newest[-1].only([3])
    watch.add_late(late)
    assert watch.has_unended
    # Late rows of ranks that stand nowhere change nothing
    job = hung()
    watch = watched(job)
    watch.look(job.reader, job.read_back, math.inf)
    watch.add_late(job.rows[28].only([3]))
    assert not watch.has_unended
