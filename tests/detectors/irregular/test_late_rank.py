"""The rank that stands out by its own work."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.irregular.late_rank import (
    Late,
    LatenessWatch,
    Latest,
    _table,
    find_lasting,
    find_latest,
    lasting_ns,
    latest_ranks,
)
from irregulars.detectors.irregular.thresholds import IRREGULAR, LATE_SIGMAS
from irregulars.detectors.job.thresholds import JOB
from tests.present import present
from tests.stored_states import stored

MS = 1e6
HISTORY = [{n % 4: (1.0 + n % 3) * MS, (n + 1) % 4: 0.5 * MS} for n in range(20)]
"""Somebody is always a little late, each in turn."""


def test_the_latest_rank_of_one_iteration() -> None:
    # Nothing is said before there is a history
    assert find_latest({1: 50 * MS}, HISTORY[: IRREGULAR.min_iterations - 1]) is None
    assert find_latest({}, HISTORY) is None
    # A rank that is far later than anybody was stands out
    found = present(find_latest({1: 50 * MS, 2: 2 * MS}, HISTORY))
    assert (found.rank, found.over_ns) == (1, pytest.approx(50 * MS, rel=0.01))
    assert found.sigmas > LATE_SIGMAS
    # A rank that is always late is held against its own past
    history = [{0: 30 * MS + n % 3 * MS, 1 + n % 3: 1.0 * MS} for n in range(20)]
    always = present(find_latest({0: 32 * MS, 2: 5 * MS}, history))
    assert always.rank == 2
    more = present(find_latest({0: 90 * MS, 2: 5 * MS}, history))
    assert (more.rank, more.over_ns) == (0, pytest.approx(59 * MS))


LATES = st.dictionaries(st.integers(0, 40), st.floats(0, 1e9), max_size=6)


@given(st.lists(LATES, max_size=8), st.frozensets(st.integers(0, 50)))
def test_a_rank_that_was_not_among_the_latest_was_on_time(history: list[Late], more: frozenset[int]) -> None:
    ranks = sorted({*more, *(rank for late in history for rank in late)})
    expected = [[late.get(rank, 0.0) for late in history] for rank in ranks]
    np.testing.assert_array_equal(_table(history, ranks), np.array(expected).reshape(len(ranks), len(history)))


def test_no_order_of_the_ranks_changes_who_it_is() -> None:
    assert find_latest({2: 9 * MS, 1: 9 * MS}, HISTORY) == find_latest({1: 9 * MS, 2: 9 * MS}, HISTORY)


def latest_of_a_thousand(iteration: int, *, late_ns: float | None = None) -> Late:
    """Ranks that are among the latest for once, from 20 ms on; rank 0 is as late as is said."""
    first = 1 + iteration * IRREGULAR.most_ranks
    own = {} if late_ns is None else {0: late_ns}
    return {**own, **{first + n: (20.0 + n / 2) * MS for n in range(IRREGULAR.most_ranks - len(own))}}


@pytest.mark.parametrize(("late_ms", "stands_out"), [(22.0, False), (28.0, False), (60.0, True)])
def test_among_the_latest_of_a_thousand_thrice_is_chance_unless_it_is_late(late_ms: float, stands_out: bool) -> None:
    """Of the ranks that nearly were among them nothing is known but that they were hardly less late."""
    before = [latest_of_a_thousand(n) for n in range(20)]
    newest = [latest_of_a_thousand(20 + n, late_ns=late_ms * MS if n % 2 else None) for n in range(6)]
    found = present(find_lasting(newest, before))
    assert found.rank == 0
    assert found.stands_out == stands_out


# --- thresholds, each on both sides ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigmas", "stands_out"), [(5.0, False), (5.9, False), (6.1, True), (7.0, True)])
def test_six_standard_deviations_are_no_chance(sigmas: float, stands_out: bool) -> None:
    assert Latest(0, 1.0 * MS, sigmas).stands_out == stands_out


@pytest.mark.parametrize(("late_ms", "stands_out"), [(12.8, False), (13.3, True)])
def test_history_that_agrees_by_chance_has_a_noise_of_a_twentieth(late_ms: float, stands_out: bool) -> None:
    """Each time another rank was late by 10 ms exactly: six standard deviations are 3 ms more."""
    history = [{n: 10.0 * MS} for n in range(20)]
    found = present(find_latest({50: late_ms * MS}, history))
    assert found.stands_out == stands_out


@pytest.mark.parametrize(("late_ms", "stands_out"), [(9.5, False), (10.5, True)])
def test_windows_that_agree_by_chance_have_a_noise_of_a_sixth(late_ms: float, stands_out: bool) -> None:
    """Two ranks take turns with 10 ms, 5 ms over the middle of each: six standard deviations are 5 ms more."""
    before = [{n % 2: 10.0 * MS, 1 - n % 2: 0.0} for n in range(20)]
    found = present(find_lasting([{50: late_ms * MS}] * 6, before))
    assert (found.rank, found.stands_out) == (50, stands_out)


def test_lateness_by_chance() -> None:
    # Lateness that is reached in three of six iterations counts
    over_ns = np.array([[9.0, 0.0, 7.0, 0.0, 8.0, 0.0, 1.0], [0.0, 0.0, 5.0, 5.0, 0.0, 0.0, 0.0]])
    assert lasting_ns(over_ns).tolist() == [[7.0, 1.0], [0.0, 0.0]]
    # The newest twenty iterations show how late ranks are by chance: a rank that was late until 20 iterations ago is
    # on time by now; one that is newly late half of them is not.
    old = [{1: 50.0 * MS}] * 5 + [{2: 1.0 * MS + n % 3 * MS} for n in range(20)]
    found = present(find_latest({1: 50.0 * MS}, old))
    assert found.over_ns == 50.0 * MS
    newest = [{3: 0.0}] * 13 + [{3: 50.0 * MS}] * 11
    again = present(find_latest({3: 50.0 * MS}, newest))
    assert again.over_ns == 0.0
    # Where sixteen ranks are known the others may be as late as the last: rank 0 is late by 40 ms; that sixteen
    # others were so in each iteration hides it, that fifteen were does not.
    for count, stands_out in ((15, True), (16, False)):
        before = [{1 + (16 * n + one): 38.0 * MS for one in range(count)} for n in range(20)]
        found = present(find_lasting([{0: 40.0 * MS}] * 6, before))
        assert found.stands_out == stands_out


RANKS = (0, 1, 2, 4, 5)
USUAL = [{RANKS[n % 5]: (2.0 + n % 3) * MS, RANKS[(n + 1) % 5]: 1.0 * MS} for n in range(IRREGULAR.level_iterations)]
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


def test_a_rank_that_is_late_three_times_of_six() -> None:
    # A rank stands out that is late in three of six iterations
    assert (JOB.repeated, IRREGULAR.recent) == (3, 6)
    assert watched([9.0, 0.0, 9.0, 0.0, 9.0])[1] == [False, False, False, False, True]
    assert not any(watched([9.0, 0.0, 0.0, 9.0, 0.0, 0.0, 9.0])[1])
    # An iteration in which it is not late shows nothing
    assert watched([9.0, 9.0, 9.0, 0.0, 9.0])[1] == [False, False, True, False, True]


@pytest.mark.parametrize(("late_ms", "is_there"), [(4.0, False), (4.4, False), (4.7, True), (5.2, True)])
def test_half_of_its_lasting_lateness_shows_a_rank_in_an_iteration(late_ms: float, is_there: bool) -> None:
    assert watched([9.0, 9.0, 9.0, late_ms])[1][-1] == is_there


def test_lateness_that_does_not_stand_out() -> None:
    # A rank that is late in turn with others does not stand out
    assert not any(watched([9.0, 0.0, 0.0, 0.0, 0.0] * 3)[1])
    # A long fault is what is usual in the end unless a verdict is open
    late = [9.0] * 3 * IRREGULAR.level_iterations
    assert not watched(late)[1][-1]
    assert watched(late, has_open=True)[1][-1]
    # A rank of which it is not known counts as none of the latest
    late_ns = latest_ranks(np.array([3, 4]), np.array([9.0 * MS, 1.0 * MS]), np.array([3, 4, 7]))
    assert late_ns.keys() == {3, 4, 7}
    assert math.isnan(late_ns[7])
    one, other = watched([])[0], watched([])[0]
    for watch, unknown in ((one, {}), (other, {0: math.nan, 7: math.nan})):
        watch.learn(len(USUAL), {3: 9.0 * MS} | unknown, has_open=False)
    assert one.look({3: 9.0 * MS}) == other.look(late_ns)
    assert LatenessWatch.from_state(stored(other.state())).look(late_ns) == other.look(late_ns)
    # Little history says nothing
    late = [{3: 9.0 * MS}] * IRREGULAR.recent
    assert find_lasting(late, USUAL[: IRREGULAR.min_iterations - 1]) is None
    assert find_lasting(late[1:], USUAL) is None
    assert find_lasting([{}] * IRREGULAR.recent, [{}] * IRREGULAR.min_iterations) is None


@given(st.lists(st.sampled_from([0.0, 5.0, 9.0, 30.0]), max_size=12), st.booleans())
def test_a_snapshot_forgets_nothing(late_ms: list[float], has_open: bool) -> None:
    watch, _ = watched(late_ms, has_open=has_open)
    restored = LatenessWatch.from_state(stored(watch.state()))
    assert restored.state() == watch.state()
    assert restored.look({3: 9.0 * MS}) == watch.look({3: 9.0 * MS})


@given(st.lists(st.integers(-3, 3), max_size=60), st.randoms())
def test_the_latest_ranks_are_kept(late_ns: list[int], random: Random) -> None:
    """Of equally late ones those with the lower numbers, so that the order of rows changes nothing."""
    rank = random.sample(range(100), len(late_ns))
    kept = latest_ranks(np.array(rank, dtype=np.int64), np.array(late_ns, dtype=np.float64), np.arange(100))
    wanted = sorted(zip(rank, late_ns, strict=True), key=lambda pair: (-pair[1], pair[0]))[: IRREGULAR.most_ranks]
    assert list(kept.items())[: len(wanted)] == wanted
    assert [one for one, ns in kept.items() if math.isnan(ns)] == [one for one in range(100) if one not in rank]
    assert len(kept) == len(wanted) + 100 - len(rank)
