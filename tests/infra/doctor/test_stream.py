from __future__ import annotations

from collections.abc import Sequence

import pytest

from irregulars.infra.doctor.stream import Announced, Beat, furthest_behind, host_clocks, jobs_of, newest_stretches
from irregulars.messages.announcements import Announcement, Communicator, Heartbeat, SourceProgress
from tests.infra.doctor.installations import topic

WORLD = (Communicator("world", "world", (0, 1)),)


def announced(rank: int, time_s: float, attempt: int = 0, **others: object) -> Announced:
    sources = ("commops", "iterations", "bandwidth")[: 3 - rank]
    values = {"world_size": 2, "logged_ranks": 2, "communicators": WORLD, "host": f"node-{rank}", **others}
    own = Announcement("llama", attempt, rank, sources=sources, **values)  # type: ignore[arg-type]
    return Announced(time_s, own)


def beat(
    rank: int, time_s: float, lost: int = 0, state: str = "running", attempt: int = 0, start: str | None = None
) -> Beat:
    sources = {"commops": SourceProgress(10, None, lost)}
    return Beat(0, time_s, Heartbeat("llama", attempt, rank, sources, state, start=start))


def test_a_busy_partition_is_cut_and_the_others_are_not() -> None:
    busy = topic("evidence", begins={0: 0, 1: 7, 2: 0, 3: 0}, ends={0: 500, 1: 20, 2: 100, 3: 101})
    stretches, cut = newest_stretches(busy, 400)
    assert stretches == {0: (400, 500), 1: (7, 20), 2: (0, 100), 3: (1, 101)}
    assert cut == {0, 3}
    # Older ones than are asked for are not missed.
    stretches, cut = newest_stretches(busy, 400, {0: 390, 1: 20, 2: 50, 3: 40})
    assert stretches == {0: (400, 500), 1: (20, 20), 2: (50, 100), 3: (40, 101)}
    assert cut == {0}


def test_the_partitions_that_are_furthest_behind_are_asked_how_long_they_wait() -> None:
    # A partition whose offsets are small is not behind for that.
    unread = {("commops", 0): (5, 10), ("commops", 1): (9_000, 19_000), ("jobs", 0): (300, 700)}
    assert furthest_behind(unread, 2) == [("commops", 1), ("jobs", 0)]
    assert set(furthest_behind(unread, 9)) == unread.keys()


def test_the_newest_attempt_counts_with_the_newest_word_of_each_rank() -> None:
    log = [beat(0, 5.0, lost=1), beat(0, 9.0, lost=3), beat(1, 7.0, lost=4), beat(0, 8.0, lost=2)]
    (job,) = jobs_of([announced(0, 1.0), announced(1, 2.0)], log, {"llama": 6.0}, 0.0)
    assert (job.logged_ranks, job.announced, job.announced_s) == (2, {0, 1}, 2.0)
    assert (job.heard_s, job.lost_rows, job.evidence_s) == ({0: 9.0, 1: 7.0}, {"commops": 7}, 6.0)
    assert (job.unsampled, job.without_marks, job.hosts) == ({1}, set(), {0: "node-0", 1: "node-1"})
    (job,) = jobs_of([announced(0, 1.0), announced(0, 3.0, attempt=1)], log, {}, 0.0)
    assert (job.attempt, job.announced, job.heard_s) == (1, {0}, {})


@pytest.mark.parametrize(("rows", "without"), [(0, {0}), (3, set())])
def test_a_rank_that_announced_iterations_has_no_marks_until_it_sent_some(rows: int, without: set[int]) -> None:
    one = Beat(0, 5.0, Heartbeat("llama", 0, 0, {"iterations": SourceProgress(rows)}))
    (job,) = jobs_of([announced(0, 1.0)], [one], {}, 0.0)
    assert job.without_marks == without


def test_a_job_heard_before_is_left_out_one_that_ended_is_known_and_a_silent_rank_not_waited_for() -> None:
    log = [beat(0, 5.0, state="ended"), beat(1, 6.0, state="ended")]
    assert jobs_of([announced(0, 1.0)], log, {}, 7.0) == ()
    (job,) = jobs_of([announced(0, 1.0)], log, {}, 6.0)
    assert job.ended == {0, 1}
    (job,) = jobs_of([announced(0, 1.0), announced(1, 1.0, is_logged=False)], [], {}, 0.0)
    assert job.announced == {0}


@pytest.mark.parametrize(("newer", "contradicts"), [
    ({"host": "node-9"}, "host"),
    ({"gpu": 3}, None),  # the first did not know
    ({"world_size": 4}, "world_size"),
    ({"communicators": (Communicator("world", "world", (1, 0)),)}, "communicators"),
    ({"communicators": (*WORLD, Communicator("tp", "tp", (0, 1)))}, None),
    ({"host": "node-9", "since_ns": 5}, None),
    ({"host": "node-9", "world_size": 4, "since_ns": 5}, None),
    ({"host": "node-9", "start": "b"}, None),
    ({"host": "node-9", "attempt": 1}, None),
])  # fmt: skip
def test_an_announcement_contradicts_the_first_one_of_the_same_rank_start_and_place(
    newer: dict[str, object], contradicts: str | None
) -> None:
    log = [announced(0, 1.0), announced(1, 1.0), announced(0, 3.0, **newer)]  # type: ignore[arg-type]
    (job,) = jobs_of(reversed(log), [], {}, 0.0)  # partitions are read apart
    assert (job.contradicts, job.beside) == (contradicts, frozenset())


@pytest.mark.parametrize(("beats", "beside"), [
    ([beat(0, 8.0, start="a")], set()),  # within the time that clocks may differ
    ([beat(0, 30.0, start="a"), beat(0, 30.0, start="b")], {"node-0"}),
    ([beat(0, 30.0, start="a", state="ended")], set()),
    ([beat(0, 30.0, start="b")], set()),
    ([beat(0, 30.0, attempt=7)], set()),  # of a start that nobody announced
])  # fmt: skip
def test_a_start_that_outlasts_the_next_announced_one_is_another_job(beats: Sequence[Beat], beside: set[str]) -> None:
    log = [announced(0, 1.0, start="a"), announced(0, 4.0, start="b", host="node-9")]
    (job,) = jobs_of(log, beats, {}, 0.0)
    assert (job.hosts, job.beside, job.contradicts) == ({0: "node-9"}, beside, None)


@pytest.mark.parametrize(("log", "now_s", "clocks"), [
    # Clocks that agree, and one message that came late: delays alone accuse no clock.
    ([beat(0, 10.0), beat(1, 10.1), beat(0, 11.0), beat(1, 4.0), beat(1, 11.2)], 12.0, {"a": 0.0, "b": 0.0}),
    ([beat(0, 10.0), beat(0, 20.0)], 15.0, {"a": 5.0}),  # ahead of ours
    # Beside a clock that is ahead a right one is not behind.
    ([beat(0, 30.0), beat(1, 10.0), beat(0, 31.0), beat(1, 11.0)], 11.0, {"a": 20.0, "b": 0.0}),
    # Partitions are compared each for itself.
    ([beat(0, 10.0), beat(1, 3.0)._replace(partition=1)], 12.0, {"a": 0.0, "b": 0.0}),
])  # fmt: skip
def test_a_clock_that_is_off_shows_by_host(log: list[Beat], now_s: float, clocks: dict[str, float]) -> None:
    assert host_clocks(log, {("llama", 0): "a", ("llama", 1): "b"}, now_s) == clocks
