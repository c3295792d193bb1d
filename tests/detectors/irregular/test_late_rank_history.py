"""Which rank stands out again and again, and what is usual while a verdict is open."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.irregular.late_rank import LASTS, LASTS_SEEN, MIN_HISTORY, MOST_HISTORY, find_lasting
from irregulars.detectors.irregular.late_rank_history import LATEST_RANKS, LatenessWatch, latest_ranks

MS = 1e6
RANKS = (0, 1, 2, 4, 5)
USUAL = [{RANKS[n % 5]: (2.0 + n % 3) * MS, RANKS[(n + 1) % 5]: 1.0 * MS} for n in range(MOST_HISTORY)]
"""Somebody is always a little late, each in turn."""


def watched(late_ms: list[float], *, has_open: bool = False) -> tuple[LatenessWatch, list[bool]]:
    """Rank 3 is so late in the iterations after the usual ones; whether it was said to be so again and again."""
    watch = LatenessWatch()
    for number, late_ns in enumerate(USUAL):
        watch.learn(number, late_ns, has_open=False)
    lasts = []
    for number, ms in enumerate(late_ms, start=len(USUAL)):
        late_ns = {3: ms * MS, (number + 1) % 3: 3.0 * MS}
        latest = watch.look(late_ns)
        lasts.append(latest is not None and latest.lasts and latest.rank == 3)
        watch.learn(number, late_ns, has_open=has_open and lasts[-1])
    return watch, lasts


def test_a_rank_stands_out_that_is_late_in_three_of_six_iterations() -> None:
    assert (LASTS_SEEN, LASTS) == (3, 6)
    assert watched([9.0, 0.0, 9.0, 0.0, 9.0])[1] == [False, False, False, False, True]
    assert not any(watched([9.0, 0.0, 0.0, 9.0, 0.0, 0.0, 9.0])[1])


def test_an_iteration_in_which_it_is_not_late_shows_nothing() -> None:
    assert watched([9.0, 9.0, 9.0, 0.0, 9.0])[1] == [False, False, True, False, True]


def test_a_rank_that_is_late_in_turn_with_others_does_not_stand_out() -> None:
    assert not any(watched([9.0, 0.0, 0.0, 0.0, 0.0] * 3)[1])


def test_a_long_fault_is_what_is_usual_in_the_end_unless_a_verdict_is_open() -> None:
    late = [9.0] * 3 * MOST_HISTORY
    assert not watched(late)[1][-1]
    assert watched(late, has_open=True)[1][-1]


def test_a_rank_of_which_it_is_not_known_counts_as_none_of_the_latest() -> None:
    late_ns = latest_ranks({3: 9.0 * MS, 4: 1.0 * MS}, [3, 4, 7])
    assert late_ns.keys() == {3, 4, 7}
    assert math.isnan(late_ns[7])
    one, other = watched([])[0], watched([])[0]
    for watch, unknown in ((one, {}), (other, {0: math.nan, 7: math.nan})):
        watch.learn(len(USUAL), {3: 9.0 * MS} | unknown, has_open=False)
    assert one.look({3: 9.0 * MS}) == other.look(late_ns)
    assert LatenessWatch.from_state(json.loads(json.dumps(other.state()))).look(late_ns) == other.look(late_ns)


def test_little_history_says_nothing() -> None:
    late = [{3: 9.0 * MS}] * LASTS
    assert find_lasting(late, USUAL[: MIN_HISTORY - 1]) is None
    assert find_lasting(late[1:], USUAL) is None
    assert find_lasting([{}] * LASTS, [{}] * MIN_HISTORY) is None


@given(st.lists(st.sampled_from([0.0, 5.0, 9.0, 30.0]), max_size=12), st.booleans())
def test_a_snapshot_forgets_nothing(late_ms: list[float], has_open: bool) -> None:
    watch, _ = watched(late_ms, has_open=has_open)
    restored = LatenessWatch.from_state(json.loads(json.dumps(watch.state())))
    assert restored.state() == watch.state()
    assert restored.look({3: 9.0 * MS}) == watch.look({3: 9.0 * MS})


def test_the_latest_ranks_are_kept() -> None:
    late = {rank: float(rank % 7) for rank in range(40)}
    kept = latest_ranks(late)
    assert len(kept) == LATEST_RANKS
    assert min(kept.values()) >= max(ns for rank, ns in late.items() if rank not in kept)
