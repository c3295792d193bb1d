"""Which causes are found in some irregular iterations, and how sure they are."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.blame.causes import Cause, find_causes, is_sure, slow_transfers
from irregulars.detectors.blame.explanation import Unexplained
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.irregular.thresholds import LATE_SIGMAS
from irregulars.detectors.job.lanes import EVERYBODY, Lane, LaneExcess
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.path.critical_path import Attribution
from tests.detectors.lost_time import APART, MS, TP0, TWO_EACH, WORK, WORLD, always, named, pair, seen
from tests.detectors.observed_iterations import PAIR as ONE_TO_THREE
from tests.detectors.observed_iterations import late, observation, work

LEAVES = Topology(
    8,
    {rank: Place(f"h{rank}", 0, "eth0", f"leaf-{rank // 2}") for rank in range(8)},
    {0: (0, 2, 4, 6), 1: (1, 3, 5, 7), 2: (0, 1), 3: (2, 3), 4: (4, 5), 5: (6, 7)},
)
GROUPS = [Lane("collective", code) for code in range(6)]
BETWEEN_LEAVES, INSIDE_LEAVES = GROUPS[:2], GROUPS[2:]


def test_groups_without_a_clear_device() -> None:
    # Lanes that any of the likely devices carries are one cause although nobody knows which it is: each uplink
    # carries the same groups, and each of them costs most in some iterations.
    slow = {**dict.fromkeys(BETWEEN_LEAVES, 80.0), **dict.fromkeys(INSIDE_LEAVES, 0.0)}
    attributions = [seen(n, {BETWEEN_LEAVES[n % 2]: 80.0}, slow) for n in range(6)]
    (cause,) = find_causes(attributions, LEAVES)
    assert (cause.kind, cause.suspects, set(cause.explained_ns)) == ("slow_communicator", (), set(range(6)))
    # What one cause explains is no evidence for the next: the world is slow since NIC 1 is: that does not speak for
    # NIC 4.
    of_1, of_4 = {WORLD: 100.0, pair(1, 3): 100.0, pair(1, 2): 25.0}, {pair(4, 5): 90.0}
    first, second = find_causes(always(5, {**of_1, **of_4}, {**of_1, **of_4, pair(0, 2): 0.0}), APART)
    (alone,) = find_causes(always(5, of_4, {**of_4, pair(0, 2): 0.0}), APART)
    assert first.suspects[0][0].ranks == (1,)
    assert second.suspects == alone.suspects
    # Nothing has no cause
    assert find_causes([], APART) == []
    assert find_causes([seen(0, {})], APART) == []
    assert find_causes(always(5, {WORK[1]: -3.0}), APART) == []
    # Where a member logs nothing it may have been late and no nic is blamed
    slow = always(5, {TP0: 30.0}, {TP0: 30.0})
    assert [kind for kind, _, _ in named(slow)] == ["slow_nic"]
    assert find_causes(slow, replace(APART, unlogged=frozenset([1]))) == []
    # Nor is a group said to be slow: the member without a log may have been late
    slow = always(5, {WORLD: 30.0}, {WORLD: 30.0})
    assert [cause.kind for cause in find_causes(slow, APART)] == ["slow_communicator"]
    assert find_causes(slow, replace(APART, unlogged=frozenset([1]))) == []
    assert find_causes(slow, replace(APART, unlogged=APART.lane_set(WORLD) - {0})) == []
    # Nor is anybody where the slow group has one member, or nobody knows whose it is
    lone = Lane("collective", 77)
    for own in ({}, {77: (0,)}):
        silent = replace(APART, members={**APART.members, **own}, unlogged=frozenset([1]))
        assert find_causes(always(5, {lone: 30.0}, {lone: 30.0, pair(4, 3): 0.0}), silent) == []
    # No nic is blamed for messages of a sender that logs nothing
    slow = always(5, {pair(1, 3): 30.0}, {pair(1, 3): 30.0, pair(1, 2): 30.0, pair(3, 5): 0.0})
    assert named(slow)
    assert find_causes(slow, replace(APART, unlogged=frozenset([1]))) == []
    # A rank that works longer by as much is what silent ones waited for; one by less, or each in turn, is not
    silent, lane = replace(APART, unlogged=APART.lane_set(WORLD) - {0, 2}), {WORLD: 30.0}
    assert named(always(5, lane, lane, {0: 0.0, 2: 25.0}), silent) == [("slow_rank", "gpu", (2,))]
    (cause,) = find_causes(always(5, lane, lane, {0: 0.0, 2: 25.0}), silent)
    assert (set(cause.explained_ns), slow_transfers(cause, slow[0], silent)) == (set(range(5)), math.inf)
    assert find_causes(always(5, lane, lane, {0: 0.0, 2: 14.0}), silent) == []
    assert find_causes([seen(at, lane, lane, {at: 25.0, 5 + at % 2: 0.0}) for at in range(5)], silent) == []
    assert find_causes(always(5, lane, lane), silent) == []


def test_a_transfer_that_was_slow_once_does_not_stand_for_those_that_are_always_slow() -> None:
    slow = [pair(1, 2), pair(1, 3), pair(1, 5)]
    lanes = {**dict.fromkeys(slow, 30.0), pair(4, 0): 0.0, pair(4, 2): 0.0, pair(0, 3): 0.0}
    turns = [seen(at, {slow[at % 3]: 30.0}, lanes) for at in range(5)]
    turns[0] = seen(0, {pair(4, 0): 65.0}, {**lanes, pair(4, 0): 65.0})
    assert named(turns)[0] == ("slow_nic", "nic", (1,))


def test_which_device_slow_lanes_accuse() -> None:
    # A nic that is slow on other ways too is blamed beside a member that logs nothing
    slow = always(5, {TP0: 30.0}, {TP0: 30.0, pair(0, 2): 30.0, pair(0, 3): 30.0, pair(4, 3): 0.0})
    assert named(slow, replace(APART, unlogged=frozenset([1]))) == [("slow_nic", "nic", (0,))]
    # One slow pair among healthy ones is a link
    lanes = {pair(1, 3): 100.0, pair(1, 2): 0.0, pair(0, 3): 0.0, pair(0, 1): 0.0, pair(3, 5): 0.0}
    (cause,) = find_causes(always(5, {pair(1, 3): 100.0}, lanes), APART)
    assert (cause.kind, cause.suspects[0][0].ranks) == ("slow_link", (1, 3))
    assert is_sure(cause)
    # Two causes are both found the larger first
    lanes = {pair(1, 3): 30.0, pair(1, 2): 0.0, pair(0, 3): 0.0}
    kinds = [
        (c.kind, c.suspects[0][0].ranks)
        for c in find_causes(always(5, {WORK[4]: 60.0, pair(1, 3): 30.0}, lanes), APART)
    ]
    assert kinds == [("slow_rank", (4,)), ("slow_link", (1, 3))]


@pytest.mark.parametrize("slow", [
    pytest.param(LaneExcess(100 * MS, 10 * MS, 0.0, math.nan), id="size is not known"),
    pytest.param(LaneExcess(100 * MS, 10 * MS, 0.0, 0.0), id="no bytes"),
    pytest.param(LaneExcess(100 * MS, 0.0, 0.0, 1.0), id="usually takes no time"),
])  # fmt: skip
def test_odd_lanes_are_no_error(slow: LaneExcess) -> None:
    one = seen(0, {pair(1, 3): 100.0})
    lanes = {pair(1, 3): slow, pair(0, 2): slow._replace(excess_ns=0.0)}
    assert find_causes([replace(one, lanes=lanes)] * 5, APART)


# --- on either side of each threshold -------------------------------------------------------------------------------


@pytest.mark.parametrize(("own_ms", "is_seen"), [(23.0, False), (27.0, True)])
def test_a_cause_is_seen_where_it_explains_a_quarter(own_ms: float, is_seen: bool) -> None:
    mixed = [
        seen(0, {WORK[1]: 100.0}),
        seen(1, {WORK[1]: own_ms, WORK[2]: 100.0 - own_ms}),
        seen(2, {WORK[1]: 100.0}),
    ]
    (cause, *_) = find_causes(mixed, APART)
    assert cause.suspects[0][0].ranks == (1,)
    assert (1 in cause.explained_ns) == is_seen


@pytest.mark.parametrize(("own_ms", "causes"), [(46.0, 1), (54.0, 2)])
def test_what_explains_less_than_a_quarter_of_all_is_no_cause(own_ms: float, causes: int) -> None:
    """Rank 1 is late in every second iteration: a cause of 23 or 27 % of all that was lost."""
    some = [seen(n, {WORK[4]: 100.0} if n % 2 else {WORK[4]: 100.0 - own_ms, WORK[1]: own_ms}) for n in range(6)]
    assert len(find_causes(some, APART)) == causes


@pytest.mark.parametrize(("others", "causes"), [(5, 2), (7, 1)])
def test_an_iteration_counts_for_no_more_than_two_typical_ones(others: int, causes: int) -> None:
    """Rank 2 hung for a second, which counts for 120 ms beside iterations of 60 ms: 29 % of all, or 22 %."""
    some = [*(seen(n, {WORK[1]: 60.0}) for n in range(others)), seen(others, {WORK[2]: 1_000.0})]
    assert len(find_causes(some, APART)) == causes


@pytest.mark.parametrize(("probability", "sure"), [(0.45, False), (0.55, True)])
def test_suspects_together_must_be_more_probable_than_not(probability: float, sure: bool) -> None:
    suspects = ((Device("nic", (1,)), 0.3), (Device("nic", (2,)), probability - 0.3))
    assert is_sure(Cause("slow_nic", suspects, frozenset(), None, {})) == sure


def test_a_cause_is_as_sure_as_it_was_seen_regularly() -> None:
    """Seen in 4 of the 5 iterations between its first and its last one."""
    some = [seen(n, {WORK[1 if n != 2 else 4]: 50.0}) for n in range(5)]
    (cause, *_) = find_causes(some, APART)
    assert cause.suspects[0][1] == pytest.approx(4.5 / 5.5)


@pytest.mark.parametrize(("share", "spread"), [(1.0, 1.0), (0.5, 2.0)])
def test_what_was_slow_is_spread_over_as_many_transfers_as_have_the_excess(share: float, spread: float) -> None:
    """All of it in one transfer of each lane, and two lanes that the NIC carries are slow by as much or not."""
    lanes = {pair(1, 3): 100.0, **({pair(1, 2): 100.0} if share < 1 else {})}
    one = seen(0, {pair(1, 3): 100.0}, lanes)
    nic = Cause("slow_nic", ((Device("nic", (1,)), 0.9),), frozenset([pair(1, 3)]), None, {0: 100 * MS})
    assert slow_transfers(nic, one, APART) == pytest.approx(spread)
    assert slow_transfers(replace(nic, kind="slow_rank"), one, APART) == math.inf


LANES = [*WORK, WORLD, TP0, *(pair(a, b) for a in range(4) for b in range(4) if a != b)]
EXCESS = st.dictionaries(st.sampled_from(LANES), st.floats(-20, 200), max_size=6)


@st.composite
def any_attributions(draw: st.DrawFn) -> list[Attribution]:
    found = []
    for number in range(draw(st.integers(1, 8))):
        path = draw(EXCESS)
        lanes = draw(EXCESS) | {lane: ms for lane, ms in path.items() if lane.kind != "work"}
        work = draw(st.dictionaries(st.integers(0, 5), st.floats(-20, 200), max_size=6))
        found.append(seen(number, path, {lane: ms for lane, ms in lanes.items() if lane.kind != "work"}, work))
    return found


@given(attributions=any_attributions(), topology=st.sampled_from([APART, TWO_EACH, Topology(0, {}, {})]))
def test_what_holds_of_all_causes(attributions: list[Attribution], topology: Topology) -> None:
    causes = find_causes(attributions, topology)
    lanes = [lane for cause in causes for lane in cause.lanes]
    assert len(lanes) == len(set(lanes))
    for cause in causes:
        probabilities = [probability for _, probability in cause.suspects]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) <= 1 + 1e-9
        assert all(0 < probability <= 1 for probability in probabilities)
        assert cause.explained_ns
        for iteration, ns in cause.explained_ns.items():
            positive = [x for x in attributions[iteration].path_excess_ns.values() if x > 0]
            assert 0 < ns <= sum(positive) * (1 + 1e-9)


@given(attributions=any_attributions(), order=st.permutations(range(6)))
def test_renaming_ranks_renames_the_causes(attributions: list[Attribution], order: list[int]) -> None:
    def rename(lane: Lane) -> Lane:
        if lane.kind == "collective":
            return lane
        return Lane(lane.kind, order[lane.first], order[lane.second] if lane.kind == "pair" else -1)

    renamed = [
        Attribution(
            a.iteration,
            {rename(lane): ns for lane, ns in a.path_excess_ns.items()},
            {rename(lane): piece for lane, piece in a.pieces.items()},
            {rename(lane): excess for lane, excess in a.lanes.items()},
            {order[rank]: ns for rank, ns in a.work_excess_ns.items()},
        )
        for a in attributions
    ]
    other = Topology(6, {order[r]: p for r, p in APART.places.items()}, {0: tuple(order), 1: (order[0], order[1])})
    totals = [sum(ns for ns in a.path_excess_ns.values() if ns > 0) for a in attributions]
    sums = {}
    for a, total in zip(attributions, totals, strict=True):
        weight = min(1.0, 2 * median(totals) / total) if total else 0.0  # no iteration counts for two typical ones
        for lane, ns in a.path_excess_ns.items():
            sums[lane] = sums.get(lane, 0.0) + weight * max(ns, 0.0)
    if len({round(ns, 3) for ns in sums.values()}) < len(sums):
        return  # of two lanes that cost the same, either may come first
    causes = find_causes(attributions, APART)
    if any(abs(c.suspects[0][1] - c.suspects[1][1]) < 1e-9 for c in causes if len(c.suspects) > 1):
        return  # of two devices that are as probable, either may be named
    one = [(c.kind, {rename(lane) for lane in c.lanes}) for c in causes]
    assert [(c.kind, set(c.lanes)) for c in find_causes(renamed, other)] == one


PAIR = pair(1, 3)


def test_what_is_left_to_explain() -> None:
    # What was quicker than usual is no excess
    left = Unexplained.of([seen(0, {WORK[1]: 50.0, WORK[2]: -20.0})], APART)
    assert left.path_excess_ns == [{WORK[1]: 50 * MS}]
    # What a cause explains is taken from path and lanes
    left = Unexplained.of([seen(0, {WORK[1]: 50.0, PAIR: 30.0}, {PAIR: 30.0, pair(0, 2): 5.0})], APART)
    rest = left.without(frozenset([PAIR]))
    assert rest.path_excess_ns == [{WORK[1]: 50 * MS}]
    assert rest.seen.observe(pair(0, 2), rest.explained).keys() == {pair(0, 2)}
    assert left.seen.observe(pair(0, 2), left.explained).keys() == {pair(0, 2), PAIR}
    assert rest.own_ns([WORK[1], PAIR]) == [50 * MS]
    # A second cause is held against what the first leaves: beside it somebody came last by chance at each step
    by_chance = {Lane("work", rank): 27.5 for rank in (4, 5, 6, 7)}
    one = replace(seen(0, {PAIR: 120.0, WORK[1]: 100.0, **by_chance}), excess_ns=220 * MS)
    left = Unexplained.of([one], APART).without(frozenset([PAIR]))
    assert left.share(frozenset([WORK[1]])) == pytest.approx(1.0)
    # Where the first leaves nothing, the others came last by chance
    one = replace(seen(0, {PAIR: 120.0, WORK[1]: 40.0, WORK[2]: 40.0, WORK[3]: 30.0}), excess_ns=120 * MS)
    left = Unexplained.of([one], APART).without(frozenset([PAIR]))
    assert left.share(frozenset([WORK[1]])) == pytest.approx(40 / 110)


@pytest.mark.parametrize(("excess_ms", "share"), [(None, 0.4), (60.0, 0.5), (20.0, 1.0), (500.0, 0.4)])
def test_a_cause_is_held_against_the_iteration_s_excess_where_less(excess_ms: float | None, share: float) -> None:
    """30 of the 75 ms of all parts, which may have been waited for in part."""
    one = seen(0, {WORK[1]: 30.0, WORK[2]: 45.0})
    one = replace(one, excess_ns=None if excess_ms is None else excess_ms * MS)
    assert Unexplained.of([one], APART).share(frozenset([WORK[1]])) == pytest.approx(share)


@pytest.mark.parametrize("lane", [Lane("work", 40), pair(40, 41)])
def test_chance_takes_its_share_of_work_and_not_of_transfers(lane: Lane) -> None:
    """Iterations took 45 ms longer; their paths lost 45 ms to one lane, 150 ms to ranks that are last by chance."""
    chance = [{Lane("work", 3 * n + step): 50.0 for step in range(3)} for n in range(6)]
    slow = {lane: 45.0} if lane.kind == "pair" else {}
    some = [replace(seen(n, {**last, lane: 45.0}, slow), excess_ns=45 * MS) for n, last in enumerate(chance)]
    topology = Topology(64, {rank: Place(f"h{rank}", 0, "eth0") for rank in range(64)}, {0: tuple(range(64))})
    named = [one.suspects[0][0].ranks for one in find_causes(some, topology) if len(one.explained_ns) == 6]
    assert named == ([(40,)] if lane.kind == "work" else [])


def test_iterations_in_which_lanes_lost_nothing_have_no_say_in_their_share() -> None:
    some = [seen(0, {WORK[1]: 30.0, WORK[2]: 10.0}), seen(1, {WORK[2]: 500.0})]
    assert Unexplained.of(some, APART).share(frozenset([WORK[1]])) == pytest.approx(0.75)


LINK = Cause("slow_link", ((Device("link", (1, 3)), 0.95),), frozenset({ONE_TO_THREE}), 1, {0: 8 * MS})
RANK = Cause("slow_rank", ((Device("gpu", (1,)), 1.0),), frozenset({work(1)}), None, {0: 8 * MS})


def noisy(most_ms: float, noise_ms: float = 0.001) -> Observation:
    """Transfers that took 8 ms longer, and up to `most_ms` longer when all was as always, give or take `noise_ms`."""
    one = observation(0, {ONE_TO_THREE: 8.0})
    assert one.attribution is not None
    lanes = one.attribution.lanes
    lanes = {at: own._replace(most_ns=most_ms * MS, noise_ns=noise_ms * MS) for at, own in lanes.items()}
    return replace(one, attribution=replace(one.attribution, lanes=lanes))


@pytest.mark.parametrize(
    ("most_ms", "noise_ms", "is_beyond"),
    [(7.0, 0.001, True), (9.0, 0.001, False), (7.0, 0.9, True), (7.0, 1.1, False)],
)
def test_transfers_are_beyond_noise_if_they_took_longer_than_any_that_was_as_always_which_is_known_to_its_noise(
    most_ms: float, noise_ms: float, is_beyond: bool
) -> None:
    assert noisy(most_ms, noise_ms).is_beyond_noise(LINK) == is_beyond


def test_which_causes_an_iteration_may_show() -> None:
    # What a device does to few bytes does not hide what it does to many
    one = noisy(7.0)
    assert one.attribution is not None
    other = Lane("pair", 3, 0)
    quiet = one.attribution.lanes[ONE_TO_THREE]._replace(excess_ns=0.0, most_ns=30 * MS)
    both = replace(one, attribution=replace(one.attribution, lanes={**one.attribution.lanes, other: quiet}))
    assert both.is_beyond_noise(replace(LINK, lanes=frozenset({ONE_TO_THREE, other})))
    # Transfers that were not seen are not beyond noise
    assert not noisy(0.0).is_beyond_noise(replace(LINK, lanes=frozenset({Lane("pair", 2, 3)})))
    assert not observation(0).is_beyond_noise(LINK)
    assert not observation(0).is_beyond_noise(RANK)
    # What was read for a late rank says nothing of others
    weak = replace(observation(0, late(1)), is_long=False, latest=Latest(1, 50 * MS, LATE_SIGMAS))
    assert weak.may_show(RANK)
    assert not weak.may_show(LINK)
    assert not replace(weak, latest=Latest(2, 50 * MS, LATE_SIGMAS)).may_show(RANK)
    assert replace(weak, is_shifted=True).may_show(LINK)


EVERYBODYS = Lane("collective", 0)


@pytest.mark.parametrize(("path_ms", "is_mainly"), [
    ({work(1): 5.0}, True),  # nothing beside it
    ({work(1): 5.0, EVERYBODYS: 4.9}, True),
    ({work(1): 5.0, EVERYBODYS: 5.1}, False), ({work(1): 5.0, EVERYBODY: 5.1}, False),
    ({work(1): 9.9, EVERYBODYS: 15.0}, False), ({work(1): 10.1, EVERYBODYS: 15.0}, True),  # of 100 ms that are usual
    ({work(1): 5.0, EVERYBODYS: -20.0}, True),  # what was quicker is no cause beside it
    ({EVERYBODYS: 15.0}, False),
])  # fmt: skip
def test_a_cause_beside_another_has_most_or_a_slow_phase(path_ms: dict[Lane, float], is_mainly: bool) -> None:
    assert observation(0, path_ms).is_mainly(RANK) == is_mainly


def test_an_iteration_that_was_not_looked_into_has_no_main_cause() -> None:
    assert not observation(0).is_mainly(RANK)
