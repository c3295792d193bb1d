"""From lanes with excess to devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.blame.causes import find_causes, is_sure
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.path.critical_path import Attribution, Piece

MS = 1e6
WORK = [Lane("work", rank) for rank in range(6)]
WORLD, TP0 = Lane("collective", 0), Lane("collective", 1)
MEMBERS = {0: (0, 1, 2, 3, 4, 5), 1: (0, 1)}
APART = Topology(6, {rank: Place(f"h{rank}", 0, "eth0") for rank in range(6)}, MEMBERS)
TWO_EACH = Topology(6, {rank: Place(f"h{rank // 2}", rank % 2, f"nic{rank % 2}") for rank in range(6)}, MEMBERS)


def pair(source: int, target: int) -> Lane:
    return Lane("pair", source, target)


def seen(
    iteration: int,
    path: Mapping[Lane, float],
    lanes: Mapping[Lane, float] | None = None,
    work: Mapping[int, float] | None = None,
) -> Attribution:
    """Excesses in ms; `lanes` of transfers usually take 10 ms, give or take 10 µs."""
    path_ns = {lane: ns * MS for lane, ns in path.items()}
    return Attribution(
        iteration=iteration,
        path_excess_ns=path_ns,
        pieces={lane: Piece(lane, 0, 0, 0, ns, 0.0) for lane, ns in path_ns.items()},
        lanes={lane: LaneExcess(ns * MS, 10 * MS, 10_000.0, 1e6) for lane, ns in (lanes or {}).items()},
        work_excess_ns={rank: ns * MS for rank, ns in (work or {}).items()},
    )


def always(count: int, *what: Mapping[Lane, float] | Mapping[int, float]) -> list[Attribution]:
    return [seen(number, *what) for number in range(count)]  # type: ignore[arg-type]


def named(attributions: Sequence[Attribution], topology: Topology = APART) -> list[tuple[str, str, tuple[int, ...]]]:
    causes = find_causes(attributions, topology)
    return [(c.kind, c.suspects[0][0].kind, c.suspects[0][0].ranks) for c in causes if c.suspects]


LEAVES = Topology(
    8,
    {rank: Place(f"h{rank}", 0, "eth0", f"leaf-{rank // 2}") for rank in range(8)},
    {0: (0, 2, 4, 6), 1: (1, 3, 5, 7), 2: (0, 1), 3: (2, 3), 4: (4, 5), 5: (6, 7)},
)
GROUPS = [Lane("collective", code) for code in range(6)]
BETWEEN_LEAVES, INSIDE_LEAVES = GROUPS[:2], GROUPS[2:]


def test_lanes_that_any_of_the_likely_devices_carries_are_one_cause_although_nobody_knows_which_it_is() -> None:
    """Each uplink carries the same groups, and each of them costs most in some iterations."""
    slow = {**dict.fromkeys(BETWEEN_LEAVES, 80.0), **dict.fromkeys(INSIDE_LEAVES, 0.0)}
    attributions = [seen(n, {BETWEEN_LEAVES[n % 2]: 80.0}, slow) for n in range(6)]
    (cause,) = find_causes(attributions, LEAVES)
    assert (cause.kind, cause.suspects, set(cause.explained_ns)) == ("slow_communicator", (), set(range(6)))


def test_what_one_cause_explains_is_no_evidence_for_the_next() -> None:
    """The world is slow since NIC 1 is: that does not speak for NIC 4."""
    of_1, of_4 = {WORLD: 100.0, pair(1, 3): 100.0, pair(1, 2): 25.0}, {pair(4, 5): 90.0}
    first, second = find_causes(always(5, {**of_1, **of_4}, {**of_1, **of_4, pair(0, 2): 0.0}), APART)
    (alone,) = find_causes(always(5, of_4, {**of_4, pair(0, 2): 0.0}), APART)
    assert first.suspects[0][0].ranks == (1,)
    assert second.suspects == alone.suspects


def starving(
    late: Mapping[int, Sequence[float]], noise: Sequence[float] = (0.3, -0.2, 0.4, -0.5)
) -> list[Attribution]:
    """A slow world collective, and in each of four iterations what ranks' work takes longer, ms."""
    return [
        seen(n, {WORLD: 100.0}, {WORLD: 100.0},
             {rank: late[rank][n] if rank in late else noise[(n + rank) % 4] for rank in range(6)})
        for n in range(4)
    ]  # fmt: skip


def test_a_rank_that_works_longer_while_its_collectives_are_slow_lacks_processor_time() -> None:
    (cause,) = find_causes(starving({3: (12.0, 30.0, 9.0, 40.0)}), APART)
    assert (cause.kind, cause.suspects[0][0].ranks, cause.explained_ns[1]) == ("slow_rank", (3,), 100 * MS)


def test_a_host_whose_ranks_stall_each_at_its_own_moments_lacks_processor_time() -> None:
    bursts = {2: (12.0, 30.0, 20.0, 40.0), 3: (40.0, 10.0, 35.0, 15.0)}
    assert named(starving(bursts), TWO_EACH) == [("slow_rank", "host", (2, 3))]


def test_ranks_that_are_late_by_the_same_time_waited_for_the_slow_transfer() -> None:
    waiting = {2: (20.1, 30.2, 20.0, 40.1), 3: (20.0, 30.0, 20.3, 40.0)}
    assert named(starving(waiting), TWO_EACH) == []


def test_two_ranks_of_a_host_that_take_turns_in_being_late_are_no_slow_host() -> None:
    turns = [seen(n, {WORK[2 + n % 2]: 50.0}, {}, {rank: 50.0 * (rank == 2 + n % 2) for rank in range(6)})
             for n in range(6)]  # fmt: skip
    assert "host" not in [device for _, device, _ in named(turns, TWO_EACH)]


HOSTS_OF_FOUR = Topology(16, {rank: Place(f"h{rank // 4}", rank % 4, "eth0") for rank in range(16)}, {})


def overlapped(last: Sequence[int], late: Sequence[int], common: float = 100.0) -> list[Attribution]:
    """Iterations in which now this rank comes last and now that, and all seem to work longer, some 90 ms more."""
    longer = {rank: common + 90.0 * (rank in late) for rank in range(16)}
    return [seen(n, {Lane("work", rank): 60.0}, {}, longer) for n, rank in enumerate(last)]


def test_a_slow_host_stands_out_where_all_ranks_seem_to_work_longer() -> None:
    host, turns = (4, 5, 6, 7), [4, 5, 6, 7, 5, 4]
    for common in (0.0, 100.0, 400.0):
        assert named(overlapped(turns, host, common), HOSTS_OF_FOUR) == [("slow_rank", "host", host)]
    assert named(overlapped([4] * 6, host), HOSTS_OF_FOUR) == [("slow_rank", "host", host)]
    assert named(overlapped([4] * 6, (4,)), HOSTS_OF_FOUR) == [("slow_rank", "gpu", (4,))]
    assert named(overlapped([4] * 6, host, common=400.0), HOSTS_OF_FOUR) == []  # it is everybody


def test_nothing_has_no_cause() -> None:
    assert find_causes([], APART) == []
    assert find_causes([seen(0, {})], APART) == []
    assert find_causes(always(5, {WORK[1]: -3.0}), APART) == []


def test_where_a_member_logs_nothing_it_may_have_been_late_and_no_nic_is_blamed() -> None:
    slow = always(5, {TP0: 30.0}, {TP0: 30.0})
    assert [kind for kind, _, _ in named(slow)] == ["slow_nic"]
    [cause] = find_causes(slow, replace(APART, unlogged=frozenset([1])))
    assert (cause.kind, cause.suspects) == ("slow_communicator", ())


def test_a_nic_that_is_slow_on_other_ways_too_is_blamed_beside_a_member_that_logs_nothing() -> None:
    slow = always(5, {TP0: 30.0}, {TP0: 30.0, pair(0, 2): 30.0, pair(0, 3): 30.0, pair(4, 3): 0.0})
    assert named(slow, replace(APART, unlogged=frozenset([1]))) == [("slow_nic", "nic", (0,))]


def test_a_ranks_own_work_accuses_its_gpu() -> None:
    (cause,) = find_causes(always(5, {WORK[2]: 50.0, WORK[3]: 1.0}), APART)
    assert (cause.kind, cause.suspects[0][0].ranks, cause.communicator) == ("slow_rank", (2,), None)
    assert cause.explained_ns == dict.fromkeys(range(5), 50 * MS)
    assert is_sure(cause)


def test_a_host_is_blamed_when_all_its_ranks_are_as_late_and_no_other() -> None:
    late = {0: 0.0, 1: 0.0, 2: 48.0, 3: 50.0, 4: 1.0, 5: 0.0}
    assert named(always(5, {WORK[3]: 50.0}, {}, late), TWO_EACH) == [("slow_rank", "host", (2, 3))]


def test_a_host_is_not_blamed_for_one_of_its_ranks() -> None:
    assert named(always(5, {WORK[3]: 50.0}, {}, {2: 1.0, 3: 50.0}), TWO_EACH) == [("slow_rank", "gpu", (3,))]


def test_an_accused_host_stays_accused_while_its_ranks_are_nearly_as_late() -> None:
    host, other = TWO_EACH.host(2), TWO_EACH.host(4)
    for late, accused, device in (
        (20.0, host, "host"), (20.0, None, "gpu"), (20.0, other, "gpu"), (20.0, Device("gpu", (3,)), "gpu"),
        (12.0, host, "gpu"), (26.0, None, "host"),
    ):  # fmt: skip
        (cause,) = find_causes(always(5, {WORK[3]: 50.0}, {}, {0: 0.0, 1: 0.0, 2: late, 3: 50.0}), TWO_EACH, accused)
        assert cause.suspects[0][0].kind == device, (late, accused)


FOUR_EACH = Topology(8, {rank: Place(f"h{rank // 4}", rank % 4) for rank in range(8)}, {0: tuple(range(8))})


def four_iterations(*late: set[int]) -> list[Attribution]:
    """In each of them these ranks work 50 ms longer, and one of them is on the path."""
    return [
        seen(number, {Lane("work", min(ranks)): 50.0}, {}, {rank: 50.0 * (rank in ranks) for rank in range(8)})
        for number, ranks in enumerate(late)
    ]


def test_half_of_all_ranks_on_one_host_is_chance_where_uneven_data_make_ever_others_late() -> None:
    uneven = four_iterations({0, 1, 5}, {2, 3, 5}, {0, 3, 5}, {1, 2, 5})
    assert "host" not in {device for _, device, _ in named(uneven, FOUR_EACH)}


def test_a_host_is_blamed_though_one_iteration_has_another_late_rank_and_one_of_its_own_on_time() -> None:
    together = four_iterations({0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3, 5}, {0, 2, 3})
    assert named(together, FOUR_EACH) == [("slow_rank", "host", (0, 1, 2, 3))]


def test_a_host_is_not_blamed_when_all_hosts_are_late() -> None:
    late = dict.fromkeys(range(6), 50.0)
    assert ("slow_rank", "host", (2, 3)) not in named(always(5, {WORK[3]: 50.0}, {}, late), TWO_EACH)


def test_one_slow_pair_among_healthy_ones_is_a_link() -> None:
    lanes = {pair(1, 3): 100.0, pair(1, 2): 0.0, pair(0, 3): 0.0, pair(0, 1): 0.0, pair(3, 5): 0.0}
    (cause,) = find_causes(always(5, {pair(1, 3): 100.0}, lanes), APART)
    assert (cause.kind, cause.suspects[0][0].ranks) == ("slow_link", (1, 3))
    assert is_sure(cause)


def test_all_that_leaves_one_rank_being_slow_is_its_nic() -> None:
    lanes = {pair(1, 3): 100.0, pair(1, 2): 100.0, pair(0, 3): 0.0, pair(4, 5): 0.0, WORLD: 100.0}
    assert named(always(5, {pair(1, 3): 100.0}, lanes))[0] == ("slow_nic", "nic", (1,))


def test_a_group_of_which_no_member_stands_out_accuses_nobody() -> None:
    (cause,) = find_causes(always(5, {WORLD: 100.0}, {WORLD: 100.0}), APART)
    assert (cause.kind, cause.suspects) == ("slow_communicator", ())
    assert is_sure(cause)


def test_a_group_inside_of_a_host_accuses_no_nic() -> None:
    causes = find_causes(always(5, {TP0: 100.0}, {TP0: 100.0}), TWO_EACH)
    assert all(device.kind != "nic" for cause in causes for device, _ in cause.suspects)


def test_two_causes_are_both_found_the_larger_first() -> None:
    lanes = {pair(1, 3): 30.0, pair(1, 2): 0.0, pair(0, 3): 0.0}
    kinds = [
        (c.kind, c.suspects[0][0].ranks)
        for c in find_causes(always(5, {WORK[4]: 60.0, pair(1, 3): 30.0}, lanes), APART)
    ]
    assert kinds == [("slow_rank", (4,)), ("slow_link", (1, 3))]


def test_what_explains_little_is_no_cause() -> None:
    assert len(find_causes(always(5, {WORK[4]: 95.0, WORK[1]: 5.0}), APART)) == 1


def test_a_cause_counts_only_iterations_of_which_it_explains_a_share() -> None:
    mixed = [seen(0, {WORK[1]: 50.0}), seen(1, {WORK[1]: 5.0, WORK[2]: 95.0}), seen(2, {WORK[1]: 50.0})]
    causes = {c.suspects[0][0].ranks: c for c in find_causes(mixed, APART)}
    assert set(causes[1,].explained_ns) == {0, 2}


def test_what_comes_and_goes_is_less_sure() -> None:
    regular = find_causes(always(6, {WORK[1]: 50.0}), APART)[0]
    mixed = [seen(n, {WORK[1 if n % 3 == 0 else 2 + n % 3]: 50.0}) for n in range(7)]
    (first, *_) = [c for c in find_causes(mixed, APART) if c.suspects[0][0].ranks == (1,)]
    assert first.suspects[0][1] < regular.suspects[0][1]
    assert not is_sure(first)


@pytest.mark.parametrize("size", [float("nan"), 0.0])
def test_unknown_sizes_are_no_error(size: float) -> None:
    one = seen(0, {pair(1, 3): 100.0})
    lanes = {lane: LaneExcess(100 * MS, 10 * MS, 0.0, size) for lane in (pair(1, 3), pair(0, 2))}
    attribution = Attribution(0, one.path_excess_ns, one.pieces, lanes, {})
    assert find_causes([attribution] * 5, APART)


def test_lanes_that_usually_take_no_time_are_no_error() -> None:
    one = seen(0, {pair(1, 3): 100.0})
    lanes = {pair(1, 3): LaneExcess(100 * MS, 0.0, 0.0, 1.0), pair(0, 2): LaneExcess(0.0, 0.0, 0.0, 1.0)}
    assert find_causes([Attribution(0, one.path_excess_ns, one.pieces, lanes, {})] * 5, APART)


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
