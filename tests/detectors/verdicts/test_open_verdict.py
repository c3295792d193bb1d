"""What one verdict has seen, and what was said of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from irregulars.detectors.blame.causes import Cause, find_causes
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.job.topology import Device
from irregulars.detectors.verdicts.open_verdict import (
    OpenVerdict,
    StandingFault,
    standing_since,
    typical_lateness_ns,
)
from irregulars.detectors.verdicts.opening import verdict_on_recurring, verdict_on_standing
from irregulars.detectors.verdicts.suspicions import Suspicion, Suspicions
from tests.detectors.observed_iterations import MS, PAIR, TOPOLOGY, late, observation, work
from tests.stored_states import stored


def name(first: int) -> str:
    return f"from {first}"


def cause_of(observations: list[Observation]) -> Cause:
    (cause,) = find_causes([o.attribution for o in observations if o.attribution is not None], TOPOLOGY)
    return cause


def recurring(spread_ns: float = 0.0) -> OpenVerdict:
    """`spread_ns`: of the iterations before the first of them; that before the others is the fault's own."""
    irregular = [observation(3, late(2)), *(observation(number, late(1)) for number in (4, 6, 7))]
    irregular = [replace(one, spread_ns=spread_ns if one.iteration == 4 else 900 * MS) for one in irregular]
    return verdict_on_recurring(name, cause_of(irregular[1:]), irregular)


def test_uneven_data_of_which_the_newest_iterations_lost_least_are_a_verdict() -> None:
    """Those before it are known by what they lost, and no longer as observations."""
    uneven = Cause("imbalance", (), frozenset(), None, {1: 40.0 * MS, 2: 40.0 * MS, 3: 40.0 * MS, 9: 1.0 * MS})
    newest = replace(observation(9, late(1)), is_long=False, place=4)  # the numbers between are evaluations
    before = Suspicions(suspicion(number, number - 1) for number in (1, 2, 3))
    verdict = verdict_on_recurring(name, uneven, [newest], before)
    assert (verdict.first, verdict.last, verdict.seen, verdict.judged) == (1, 9, 1, 5)


def standing() -> OpenVerdict:
    reviewed = [replace(observation(number, late(1)), reference_ns=150 * MS) for number in (8, 9)]
    history = [(number, {1: 50 * MS}) for number in range(5, 10)]
    return verdict_on_standing(name, cause_of(reviewed), reviewed, history)


def suspicion(number: int, ordinal: int, rank: int = 1, lost_ms: float = 50, *, is_told: bool = False) -> Suspicion:
    lost_ns = lost_ms * MS
    return Suspicion(number, ((work(rank), lost_ns),), lost_ns, lost_ns, False, ordinal, is_told, 40.0 * MS)


def test_it_begins_where_it_would_have_begun_had_it_been_open() -> None:
    """Of a cause that opens late the iterations that led to it without a break count, and what they lost."""
    recent = [observation(number, late(1)) for number in (41, 42, 43, 44)]
    before = [
        suspicion(10, 10), suspicion(22, 22),  # before a break of twelve; and its first
        suspicion(25, 25, 2), suspicion(26, 26, lost_ms=20), suspicion(27, 27, is_told=True),  # others'
        suspicion(31, 31),
        # Another lane lost more, and this one as much as ever
        suspicion(36, 36)._replace(losses=((work(2), 90.0 * MS), (work(1), 50.0 * MS))),
        suspicion(40, 40),
    ]  # fmt: skip
    verdict = verdict_on_recurring(name, cause_of(recent), recent, Suspicions(before))
    assert (verdict.verdict_id, verdict.last, verdict.seen, verdict.tried) == ("from 22", 44, 8, 11)
    assert (verdict.judged, verdict.lost_ns) == (23, (4 * 40 + 4 * 50) * MS)


def test_a_cause_that_comes_again_is_over_when_it_stays_away_for_twice_as_long() -> None:
    verdict = recurring()
    quiet = 0
    for number in range(8, 60):
        verdict.follow(observation(number, late(1) if number == 17 else None), number == 17, TOPOLOGY, {})
        quiet = 0 if number == 17 else quiet + 1
        assert verdict.is_over == (quiet >= (18 if number > 17 else 10))


def test_it_begins_where_its_cause_was_seen_first_and_counts_what_that_lost() -> None:
    verdict = recurring()
    assert (verdict.verdict_id, verdict.first, verdict.last) == ("from 4", 4, 7)
    assert (verdict.seen, verdict.tried, verdict.lost_ns) == (3, 3, 150 * MS)


@pytest.mark.parametrize(("lost_ms", "is_long", "first"), [(5.0, False, 4), (30.0, False, 3), (5.0, True, 3)])
def test_an_iteration_that_is_not_long_loses_as_much_to_be_first(lost_ms: float, is_long: bool, first: int) -> None:
    before = replace(observation(3, late(1, lost_ms)), is_long=is_long)
    irregular = [before, *(observation(number, late(1)) for number in (4, 5, 6))]
    cause = replace(cause_of(irregular[1:]), explained_ns={3: lost_ms * MS} | dict.fromkeys((4, 5, 6), 50 * MS))
    verdict = verdict_on_recurring(name, cause, irregular)
    assert (verdict.first, verdict.verdict_id) == (first, f"from {first}")
    assert verdict.seen == 7 - first


def test_lateness_does_not_acquit_ranks_that_lack_processor_time() -> None:
    """Rank 1 is late by 20 ms, and its slow transfers cost 50 ms more."""
    verdict = recurring()
    assert verdict.is_absent({1: 20 * MS})
    starved = [observation(number, {work(1): 20.0, PAIR: 50.0}) for number in (4, 6, 7)]
    lanes = frozenset([work(1), PAIR])
    cause = Cause("slow_rank", ((Device("gpu", (1,)), 0.9),), lanes, None, {4: 70 * MS, 7: 70 * MS})
    assert not verdict_on_recurring(name, cause, starved).is_absent({1: 20 * MS})


def test_an_iteration_that_was_taken_for_like_another_is_no_further_evidence() -> None:
    verdict = recurring()
    for number, is_carried in ((8, True), (9, False)):
        verdict.follow(replace(observation(number, late(1)), is_carried=is_carried), True, TOPOLOGY, {})
    assert verdict.seen == 5
    assert sorted(verdict.cause.explained_ns) == [4, 6, 7, 9]


def test_quiet_iterations() -> None:
    # Iterations without its cause are quiet
    verdict = recurring()
    for number, step in ((8, None), (9, late(2)), (10, None)):
        one = observation(number, step)
        verdict.follow(one, verdict.is_seen(one, {}), TOPOLOGY, {})
    assert (verdict.quiet, verdict.last, verdict.tried) == (3, 7, 3)
    verdict.follow(observation(11, late(1)), True, TOPOLOGY, {})
    assert (verdict.quiet, verdict.last, verdict.seen, verdict.tried) == (0, 11, 4, 5)
    # Suspect iterations that nobody looked into are not quiet
    verdict = recurring()
    unread = replace(observation(8), is_unread=True)
    verdict.follow(unread, verdict.is_seen(unread, {}), TOPOLOGY, {})
    assert (verdict.quiet, verdict.last) == (0, 7)
    # Regular ones count backwards in which the accused rank is as late as ever: most must show that it is over
    verdict = recurring()
    verdict.follow(observation(8, late(1)), True, TOPOLOGY, {1: 20 * MS})
    for number, late_ms, quiet in ((9, 0.0, 1), (10, 9.0, 2), (11, 12.0, 1), (12, 30.0, 0), (13, 30.0, 0)):
        verdict.follow(observation(number), False, TOPOLOGY, {1: late_ms * MS})
        assert (verdict.quiet, verdict.last) == (quiet, 8)
    # A rank that was always late is not for that: of 90 ms 50 are the fault's
    verdict = recurring()
    verdict.follow(observation(8, late(1)), True, TOPOLOGY, {1: 90 * MS})
    for number, late_ms, quiet in ((9, 45.0, 1), (10, 60.0, 2), (11, 70.0, 1)):
        verdict.follow(observation(number), False, TOPOLOGY, {1: late_ms * MS})
        assert verdict.quiet == quiet
    # A little of the same in an iteration that is not long is no part of it
    verdict = recurring()
    for ms, is_seen in ((22.0, False), (28.0, True)):
        assert verdict.is_seen(replace(observation(8, late(1, ms)), is_long=False), {}) == is_seen
        assert verdict.is_seen(observation(8, late(1, ms)), {})


def test_a_surer_review_corrects_a_standing_fault_and_a_less_sure_one_does_not() -> None:
    verdict = standing()
    verdict.mark_published()
    reviewed = [observation(number, late(2)) for number in (10, 11)]
    other = cause_of(reviewed)
    doubtful = replace(other, suspects=tuple((device, 0.6) for device, _ in other.suspects))
    verdict.cause = replace(verdict.cause, suspects=((Device("gpu", (1,)), 0.8),))
    verdict.learn_more(doubtful, reviewed)
    assert not verdict.has_changed
    verdict.learn_more(other, reviewed)
    assert verdict.has_changed
    assert verdict.first_device == Device("gpu", (2,))
    assert [one.iteration for one in verdict.kept] == [10, 11]
    assert {one.reference_ns for one in verdict.kept} == {100 * MS}


def test_a_nic_that_a_review_finds_instead_of_its_rank_is_not_judged_by_the_rank_s_lateness() -> None:
    """Pauses made the rank late until the first review: once they are over, its NIC has not recovered."""
    verdict = standing()
    verdict.cause = replace(verdict.cause, suspects=((Device("gpu", (1,)), 0.8),))
    reviewed = [observation(number, late(1)) for number in (10, 11)]
    nic = replace(
        SLOW, kind="slow_nic", suspects=((Device("nic", (1,)), 0.9),), explained_ns=dict.fromkeys((10, 11), 30 * MS)
    )
    verdict.learn_more(nic, reviewed, [(number, {1: 50 * MS}) for number in (10, 11)])
    assert verdict.is_seen(observation(12), {1: 0.0})
    verdict.follow(observation(12), True, TOPOLOGY, {1: 0.0})
    assert verdict.lost_ns == (5 * 50 + 30) * MS
    again = replace(nic, kind="slow_rank", suspects=((Device("gpu", (1,)), 0.95),))
    verdict.learn_more(again, reviewed, [(number, {1: 50 * MS}) for number in (10, 11)])
    assert not verdict.is_seen(observation(13), {1: 0.0})


def test_what_a_verdict_accuses_and_costs() -> None:
    # What was said holds until suspect or loss are others
    verdict = recurring()
    assert verdict.has_changed
    verdict.mark_published()
    assert (verdict.revision, verdict.said) == (1, ("slow_rank", Device("gpu", (1,))))
    assert not verdict.has_changed
    assert not verdict.has_grown
    verdict.lost_ns *= 2
    assert verdict.has_grown
    # Nothing is no more when it is doubled
    verdict.lost_ns = 0.0
    verdict.mark_published()
    assert not verdict.has_grown
    verdict.lost_ns = 1.0
    assert verdict.has_grown
    # A standing fault costs each iteration as much
    verdict = standing()
    assert (verdict.verdict_id, verdict.first, verdict.last, verdict.seen) == ("from 5", 5, 9, 5)
    assert verdict.lost_ns == 5 * 50 * MS
    assert [o.reference_ns for o in verdict.kept] == [100 * MS, 100 * MS]
    regular = observation(10)
    assert verdict.is_seen(regular, {1: 30 * MS})
    assert not verdict.is_seen(regular, {1: 10 * MS})
    verdict.follow(regular, True, TOPOLOGY, {})
    assert (verdict.last, verdict.lost_ns) == (10, 6 * 50 * MS)


def test_a_snapshot_restores_verdicts_of_both_kinds() -> None:
    for verdict in (recurring(), standing()):
        verdict.mark_published()
        twin = stored(verdict.state())
        for field in OpenVerdict.__slots__:
            assert getattr(twin, field) == getattr(verdict, field), field


LATE = Cause("slow_rank", ((Device("gpu", (1,)), 0.9),), frozenset({work(1)}), None, {8: 40.0, 9: 60.0})
SLOW = Cause("slow_link", ((Device("link", (1, 3)), 0.9),), frozenset({PAIR}), 1, {8: 40.0, 9: 60.0})
HISTORY = [(number, {1: 50.0 if number >= 5 else 10.0}) for number in range(10)]


def test_lateness_is_the_median_of_the_reviewed_iterations() -> None:
    assert typical_lateness_ns(LATE, [(7, {1: 9.0}), (8, {1: 40.0}), (9, {1: 60.0})]) == 50.0


@pytest.mark.parametrize(("cause", "history"), [(SLOW, HISTORY), (LATE, []), (LATE, [(8, {}), (9, {})])])
def test_where_lateness_is_not_seen_it_is_unknown(cause: Cause, history: list[tuple[int, dict[int, float]]]) -> None:
    assert math.isnan(typical_lateness_ns(cause, history))


def test_standing_faults() -> None:
    # A late rank is so since it was late without a break
    assert standing_since(LATE, 50.0, HISTORY) == 5
    # What lateness does not show is so since the beginning
    assert standing_since(SLOW, math.nan, HISTORY) == 0
    # A fault stands while its rank is late by half of what it was
    fault = StandingFault(50.0, 50.0)
    assert fault.stands(LATE, {1: 26.0})
    assert not fault.stands(LATE, {1: 24.0, 2: 90.0})
    assert not fault.is_seen_by_review_alone
    # A rank of which it is not known is not on time
    fault = StandingFault(50.0, 50.0)
    assert fault.is_unknown(LATE, {1: math.nan, 2: 90.0})
    assert not fault.stands(LATE, {1: math.nan, 2: 90.0})
    assert not fault.is_unknown(LATE, {1: 50.0})
    assert not StandingFault(50.0, math.nan).is_unknown(LATE, {1: math.nan})
    history = [(number, {1: math.nan if number in (0, 3) else 50.0}) for number in range(10)]
    assert standing_since(LATE, 50.0, history) == 0
    assert typical_lateness_ns(LATE, [(7, {1: 9.0}), (8, {1: math.nan}), (9, {1: 60.0})]) == 60.0
    assert math.isnan(typical_lateness_ns(LATE, [(8, {1: math.nan})]))
    # Where as many others as are listed were as late, it is not known that it was: a verdict begins after that
    others = dict.fromkeys(range(20, 36), 60.0)
    assert standing_since(LATE, 50.0, [(4, {1: 50.0}), (5, others), (6, {1: 50.0})]) == 6
    # Of a host the known ranks count
    host = replace(LATE, suspects=((Device("host", (0, 1, 2)), 0.9),))
    assert not StandingFault(50.0, 50.0).stands(host, {0: math.nan, 1: 60.0, 2: -20.0})
    assert StandingFault(50.0, 50.0).stands(host, {0: math.nan, 1: 60.0, 2: 55.0})
    # What only a review can see is believed until the next
    fault = StandingFault(50.0, math.nan)
    assert fault.is_seen_by_review_alone
    assert fault.stands(SLOW, {})


def test_a_standing_fault_begins_no_later_than_it_shows_first() -> None:
    """The first iteration that shows it was short by chance, as were two after it."""
    shown = (50, 53, 56, 59, 62)
    took = {number: (90.0 if 50 <= number < 53 else 100.0 + 6 * (number > 50)) * MS for number in range(64)}
    reviewed = [replace(observation(number, {PAIR: 6.0}), elapsed_ns=took[number]) for number in shown]
    cause = Cause("slow_nic", (), frozenset([PAIR]), None, dict.fromkeys(shown, 6.0 * MS))
    verdict = verdict_on_standing(str, cause, reviewed, [(number, {}) for number in took], took)
    assert (verdict.first, verdict.seen) == (50, 14)
