"""Where ranks live and what a device carries."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from irregulars.detectors.job.fabric import spines_of
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.topology import Device, Place, Topology, stages_from_transfers, topology_of
from irregulars.messages.announcements import Announcement, Communicator

PLACES = {
    0: Place("a", 0, "mlx5_0", "leaf-1"),
    1: Place("a", 1, "mlx5_0", "leaf-1"),
    2: Place("b", 0, "mlx5_0", "leaf-2"),
    3: Place("b", 1, "mlx5_1", "leaf-2"),
    4: Place(None, None, "mlx5_0", None),
    5: Place("c", None, None, None),
}
TOPOLOGY = Topology(6, PLACES, {0: (0, 1), 1: (0, 2, 4), 2: (5,)}, ("tp0", "dp0", "self"), kinds={0: "tp", 1: "dp"})


def test_devices_and_the_ranks_that_they_carry() -> None:
    # Ranks that name one nic of one host share it
    assert TOPOLOGY.nic(0) == TOPOLOGY.nic(1) == Device("nic", (0, 1))
    # Nics of one name on two hosts are two
    assert TOPOLOGY.nic(2) == Device("nic", (2,))
    # A nic without a host or a name is the ranks own
    assert TOPOLOGY.nic(4) == Device("nic", (4,))
    assert TOPOLOGY.nic(5) == Device("nic", (5,))
    # A host and a switch carry all their ranks
    assert TOPOLOGY.host(3) == Device("host", (2, 3))
    assert TOPOLOGY.shared("switch", 1) == Device("switch", (0, 1))
    # What nobody said is none
    assert TOPOLOGY.host(4) is None
    assert TOPOLOGY.shared("switch", 5) is None
    assert TOPOLOGY.host(99) is None
    assert TOPOLOGY.place(99) == Place()
    assert TOPOLOGY.nic(99) == Device("nic", (99,))
    # Names of hosts and nics are not mixed up
    odd = Topology(3, {0: Place("rank", 0, "1"), 1: Place(None), 2: Place("nic rank", 0, "1", "host")}, {})
    assert odd.nic(0) == Device("nic", (0,))
    assert odd.nic(1) == Device("nic", (1,))
    assert odd.shared("switch", 2) == Device("switch", (2,))


def test_ways_of_lanes() -> None:
    # A group inside of a host crosses no network
    assert not TOPOLOGY.crosses_network(Lane("collective", 0))
    assert TOPOLOGY.crosses_network(Lane("collective", 1))
    assert not TOPOLOGY.crosses_network(Lane("collective", 2))
    # Bytes go within a host beyond it or from one switch to another
    apart = Topology(4, {**PLACES, 3: Place("d", 0, "mlx5_0", "leaf-1")}, {0: (0, 1), 1: (0, 3), 2: (0, 1, 2)})
    assert [apart.network_level(Lane("collective", code)) for code in range(3)] == [0, 1, 2]
    assert apart.network_level(Lane("pair", 0, 4)) == 1  # below an unknown switch, which may be the same
    # With a leaf for each rail, what stays inside a host passes no switch, and no spine
    rails = {rank: Place("ab"[rank // 2], rank % 2, f"mlx5_{rank % 2}", f"rail-{rank % 2}") for rank in range(4)}
    spines = spines_of({rank: f"rail-{rank % 2}" for rank in rails}, {"rail-0": ("spine",), "rail-1": ("spine",)})
    railed = Topology(4, rails, {0: (0, 1), 1: (0, 2), 2: (0, 3)}, spines=spines)
    lanes = [Lane("collective", code) for code in range(3)]
    assert [railed.crosses_switches(lane) for lane in lanes] == [False, False, True]
    assert [railed.is_carried_by(spines[0], lane) for lane in lanes] == [False, False, True]
    # Stages of ranks that announce nothing are those of their groups
    groups = (Communicator("pp0", "pp", (0, 4)), Communicator("tp0", "tp", (0, 1)), Communicator("tp2", "tp", (4, 5)))
    said = Announcement(job="j", attempt=0, rank=0, world_size=8, logged_ranks=1, communicators=groups, sources=())
    found = topology_of([said], {"pp0": 0, "tp0": 1, "tp2": 2})
    assert found.stage(0) == Device("stage", (0, 1))
    assert found.stage(4) == Device("stage", (4, 5))
    # Ranks without a known host count as apart
    assert TOPOLOGY.crosses_network(Lane("pair", 4, 4 + 1))
    assert Topology(2, {}, {}).crosses_network(Lane("pair", 0, 1))
    # Work and groups that nobody knows cross nothing
    assert not TOPOLOGY.crosses_network(Lane("work", 0))
    assert not TOPOLOGY.crosses_network(Lane("collective", 77))
    assert TOPOLOGY.lane_ranks(Lane("collective", 77)) == ()
    # The ends of lanes
    assert TOPOLOGY.lane_ranks(Lane("work", 3)) == (3,)
    assert TOPOLOGY.lane_ranks(Lane("pair", 3, 0)) == (3, 0)
    assert TOPOLOGY.lane_ranks(Lane("collective", 1)) == (0, 2, 4)


def announced(rank: int, *communicators: Communicator) -> Announcement:
    return Announcement("j", 1, rank, 8, 8, communicators)


def test_stages_of_an_announced_job() -> None:
    # The stage is the place in the longest pipeline
    long, short = Communicator("pp", "pp", (4, 0, 2)), Communicator("edge", "pp", (2, 4))
    made = topology_of([announced(2, short, long), announced(4, long, short), announced(7)], {})
    assert made.stages(np.array([2, 4, 7])).tolist() == [2, 0, 0]
    # A rank that is not in its pipeline is in the first stage
    assert topology_of([announced(7, Communicator("pp", "pp", (1, 2)))], {}).stages(np.array([7])).tolist() == [0]
    # Stages of ranks that nobody announced are the first
    made = topology_of([announced(1, Communicator("pp", "pp", (0, 1)))], {})
    assert made.stages(np.array([], dtype=np.int64)).tolist() == []
    assert made.stages(np.array([100_000, 1])).tolist() == [0, 1]
    assert Topology(0, {}, {}).stages(np.array([5])).tolist() == [0]
    # Names stand in the order of their codes
    pair = Communicator("b", "tp", (0, 1))
    made = topology_of(
        [announced(0, pair), announced(1, pair, Communicator("left out", "dp", (1, 2)))], {"z": 0, "b": 1}
    )
    assert made.names == ("z", "b")
    assert made.members == {1: (0, 1)}
    assert made.kinds == {1: "tp"}
    # Sends go along the pipeline however ranks are numbered
    stages = {0: 0, 3: 0, 2: 1, 1: 2}
    made = Topology(5, {}, {}, stage_of=stages)
    sends = [(0, 2, 1), (2, 1, 1), (1, 2, -1), (3, 2, 1), (1, 0, -1), (0, 3, 0), (3, 0, 0), (4, 3, -1), (3, 4, 1)]
    assert [made.way(source, destination) for source, destination, _ in sends] == [way for *_, way in sends]
    source, destination, way = np.array(sends).T
    np.testing.assert_array_equal(made.ways(source, destination), way)
    assert made.ways(source[:0], destination[:0]).tolist() == []


def test_roles_and_members() -> None:
    # Groups of one kind and size have one role
    made = Topology(8, {}, {0: (0, 1), 1: (2, 3), 2: (4, 5, 6)}, kinds={0: "tp", 1: "tp", 2: "tp"})
    assert made.kind_code(0) == made.kind_code(1) != made.kind_code(2)
    for of_any_stage in (False, True):
        group, other, pair = (
            made.lane_role(lane, of_any_stage=of_any_stage)
            for lane in (Lane("collective", 0), Lane("collective", 1), Lane("pair", 0, 1))
        )
        assert group == other != pair
    # Roles may differ by stage alone
    made = Topology(4, {}, {0: (0, 1), 1: (2, 3)}, stage_of={0: 0, 1: 0, 2: 1, 3: 1}, kinds={0: "dp", 1: "dp"})
    one, other = Lane("collective", 0), Lane("collective", 1)
    assert made.lane_role(one, of_any_stage=True) == made.lane_role(other, of_any_stage=True)
    assert made.lane_role(one, of_any_stage=False) != made.lane_role(other, of_any_stage=False)
    ways = [
        made.lane_role(lane, of_any_stage=True)
        for lane in (Lane("pair", 0, 2), Lane("pair", 1, 3), Lane("pair", 2, 0))
    ]
    assert ways[0] == ways[1] != ways[2]
    # No announcement is an empty job
    made = topology_of([], {})
    assert (made.world_size, made.members, made.names) == (0, {}, ())
    # Members that nobody announced log nothing
    silent = replace(announced(4), is_logged=False)
    made = topology_of([announced(1, Communicator("world", "world", (1, 4, 9))), silent], {"world": 0})
    assert (made.unlogged, made.logged) == ({4, 9}, {1})
    assert topology_of([announced(1), announced(4)], {}).unlogged == frozenset()


Counts = dict[tuple[int, int], int]


def chain(*ranks: int, count: int = 8) -> Counts:
    steps = list(pairwise(ranks))
    return dict.fromkeys([*steps, *((b, a) for a, b in steps)], count)


def round_trip(*ranks: int, count: int = 8, back: int = 6) -> Counts:
    return chain(*ranks, count=count) | dict.fromkeys([(ranks[-1], ranks[0]), (ranks[0], ranks[-1])], back)


def test_pipelines_that_nobody_announced() -> None:
    # Neighbours that send both ways are stages
    assert stages_from_transfers(chain(0, 2, 4) | chain(1, 3, 5)) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    # Interleaved chunks return to the first stage less often
    assert stages_from_transfers(round_trip(0, 2, 4) | round_trip(1, 3, 5)) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
    # Two chunks of one micro batch each are enough
    counts = round_trip(0, 2, 4, count=2, back=1) | round_trip(1, 3, 5, count=2, back=1)
    assert stages_from_transfers(counts) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


@pytest.mark.parametrize("counts", [
    pytest.param({}, id="nothing is sent"),
    pytest.param(round_trip(0, 2, 4, back=8) | round_trip(1, 3, 5, back=8), id="rings that turn both ways"),
    pytest.param(
        round_trip(0, 2, 4, count=25, back=24) | round_trip(1, 3, 5, count=25, back=24),
        id="rings that lost a row",
    ),
    pytest.param({(0, 2): 8, (2, 4): 8, (4, 0): 8, (1, 3): 8, (3, 5): 8, (5, 1): 8}, id="rings"),
    pytest.param(round_trip(0, 2, 4, count=1, back=0) | round_trip(1, 3, 5, count=1, back=0), id="once each"),
    pytest.param(chain(0, 2, 4), id="one pipeline: nobody has a peer"),
    pytest.param(chain(0, 2) | chain(1, 3), id="pairs may be rings"),
    pytest.param(chain(0, 2, 4) | chain(1, 3), id="of other lengths"),
    pytest.param(chain(0, 4, 2) | chain(1, 3, 5), id="not in order"),
    pytest.param(chain(0, 2, 4) | chain(1, 3, 5) | {(0, 3): 1}, id="one that sends elsewhere"),
])  # fmt: skip
def test_whatever_is_no_pipeline_has_no_stages(counts: Counts) -> None:
    assert stages_from_transfers(counts) == {}


def test_who_logs_nothing_is_of_the_stage_of_those_it_works_with() -> None:
    counts = chain(0, 4, 8) | chain(1, 5, 9)
    groups = [(0, 1, 2, 3), (4, 5, 6), (2, 6, 10), tuple(range(11))]
    known = {0: 0, 1: 0, 4: 1, 5: 1, 8: 2, 9: 2}
    assert stages_from_transfers(counts, groups) == known | {2: 0, 3: 0, 6: 1}


@pytest.mark.parametrize(
    ("slow_transfers", "transfers", "is_stray"),
    [(1.0, 8, True), (1.4, 8, True), (1.6, 8, False), (8.0, 8, False), (1.0, 1, False)],
)
def test_one_transfer_with_all_of_the_excess_is_stray(slow_transfers: float, transfers: int, is_stray: bool) -> None:
    assert LaneExcess(9.0, 9.0, 1.0, 0.0, slow_transfers, transfers).is_stray is is_stray
