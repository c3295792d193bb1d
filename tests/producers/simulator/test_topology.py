from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.messages.announcements import decode_announcement, encode_announcement
from irregulars.messages.records import GROUP_KINDS
from irregulars.producers.simulator.network import Network, SlowDevice
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.topology import VARYING, Topology

SIZES = st.integers(1, 3)
SHAPES = st.builds(
    SimulatorSettings,
    dp=SIZES, pp=SIZES, tp=st.integers(2, 3), cp=SIZES, ep=SIZES, shards=SIZES,
    rank_order=st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"]), has_tied_embeddings=st.booleans(),
)  # fmt: skip


def ranks_of(settings: SimulatorSettings) -> dict[str, tuple[int, ...]]:
    return {c.id: c.ranks for c in Topology(settings).groups.communicators}


@given(settings=SHAPES)
def test_the_ranks_of_a_group_differ_in_its_dimensions_alone(settings: SimulatorSettings) -> None:
    topology = Topology(settings)
    place = {int(rank): index for index, rank in np.ndenumerate(topology.grid)}
    assert sorted(place) == list(range(settings.world_size))
    ids = [one.id for one in topology.groups.communicators]
    assert len(set(ids)) == len(ids)
    for announcement in topology.announcements(("commops",)):
        assert all(announcement.rank in one.ranks and one.kind in GROUP_KINDS for one in announcement.communicators)
    for communicator in topology.groups.communicators:
        group = communicator.id.split("_")[0]
        places = np.array([place[rank] for rank in communicator.ranks])
        moving = {axis for axis, column in zip(VARYING["world"], places.T, strict=True) if len(set(column)) > 1}
        assert moving <= set(VARYING[group])
        assert list(communicator.ranks) == sorted(communicator.ranks)
        wanted = int(np.prod([getattr(settings, axis) for axis in VARYING[group]]))
        assert len(communicator.ranks) == (2 if group == "emb" else wanted)


@pytest.mark.parametrize(("shape", "wanted"), [
    ({"tp": 2, "cp": 2, "ep": 2, "dp": 2, "pp": 2}, {  # as Megatron documents them
        "tp_p0_d0_e0_c0": (0, 1), "cp_p0_d0_e0_t0": (0, 2), "ep_p0_d0_c0_t0": (0, 4),
        "dp_p0_t0": tuple(range(0, 16, 2)), "edp_p0_e0_t0": (0, 2, 8, 10), "pp_d0_e0_c0_t0": (0, 16)}),
    ({"dp": 4, "pp": 4, "tp": 4}, {"tp_p0_d1": (4, 5, 6, 7), "dp_p1_t1": (17, 21, 25, 29),
                                   "pp_d0_t1": (1, 17, 33, 49), "world": tuple(range(64))}),
    ({"tp": 2, "dp": 2, "pp": 2, "rank_order": "tp-cp-ep-pp-dp"},  # stages inside replicas
     {"tp_p1_d0": (2, 3), "pp_d0_t0": (0, 2), "dp_p0_t0": (0, 4)}),
    ({"tp": 2, "dp": 2, "shards": 4, "pp": 1},
     {"shard_p0_d1_t0": (8, 10, 12, 14), "replica_p0_s0_t1": (1, 9), "dp_p0_t0": None, "dp_p0_t1": None}),
    ({"dp": 1, "pp": 4, "tp": 2, "has_tied_embeddings": True}, {"emb_d0_t1": (1, 7)}),
])  # fmt: skip
def test_dimensions_nest(shape: dict[str, Any], wanted: dict[str, tuple[int, ...] | None]) -> None:
    found = ranks_of(SimulatorSettings(**shape))
    assert {name: found.get(name) for name in wanted} == wanted


def test_kinds_are_those_of_the_contract_and_announcements_travel_as_json() -> None:
    tied = Topology(SimulatorSettings(shards=2, has_tied_embeddings=True))
    kinds = {one.id: one.kind for one in tied.groups.communicators}
    assert (kinds["shard_p0_d0_t0"], kinds["emb_d0_s0_t0"], kinds["world"]) == ("dp", "unknown", "world")
    topology = Topology(SimulatorSettings(clock="per_host"))
    announcements = list(topology.announcements(("commops", "bandwidth")))
    assert len(announcements) == 64
    found = announcements[42]
    assert (found.host, found.gpu, found.nic, found.switch) == ("node-5", 2, "mlx5_2", "leaf-1")
    assert found.clock == "per_host"
    assert found.sources == ("commops", "bandwidth")
    assert decode_announcement(encode_announcement(found)) == found


def test_only_the_first_user_of_a_shared_nic_reports_its_traffic() -> None:
    topology = Topology(SimulatorSettings(dp=2, pp=2, tp=2, gpus_per_host=4, gpus_per_nic=2))
    announcements = list(topology.announcements(("commops", "bandwidth")))
    assert [a.nic for a in announcements[:4]] == ["mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"]
    assert ["bandwidth" in a.sources for a in announcements[:4]] == [True, False, True, False]


@pytest.mark.parametrize(("values", "reason"), [
    ({"dp": 0}, "dp must be an integer of at least 1; got 0"),
    ({"dp": 1, "pp": 1, "tp": 1}, "dp * pp * tp * cp * ep * shards must be 2 or more; got 1"),
    ({"gap_noise_ratio": -0.1}, "gap_noise_ratio must be a number of at least 0; got -0.1"),
    ({"forward_ms": float("nan")}, "forward_ms must be a number of at least 0; got nan"),
    ({"clock": "gps"}, "clock must be one of shared, per_host; got 'gps'"),
    ({"gradient_sync": "none"}, "gradient_sync must be one of sharded, all_reduce, fsdp; got 'none'"),
    ({"spike_factor_high": 1.0}, "spike_factor_high must be at least spike_factor_low = 3.0; got 1.0"),
    ({"job": ""}, "job must be text that is not empty; got ''"),
])  # fmt: skip
def test_settings_out_of_range_are_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        SimulatorSettings(**values)  # type: ignore[arg-type]
    assert reason in str(caught.value)


WITHOUT_LATENCY = SimulatorSettings(nvlink_latency_us=0.0, network_latency_us=0.0)
TOPOLOGY = Topology(WITHOUT_LATENCY)
IDS = [one.id for one in TOPOLOGY.groups.communicators]
DOWN = len(IDS)
"""Path of rank 0 as the sender down the pipeline."""


def test_bytes_of_a_collective_are_split_between_the_nics_of_a_host_and_inside_one_cross_none() -> None:
    _, ns_per_byte = Network(TOPOLOGY).path_times()
    alone = 1e9 / WITHOUT_LATENCY.nic_bytes_per_s
    # two members on each host: half the bytes over each of two NICs
    assert ns_per_byte[IDS.index("dp_p1_t1")] == pytest.approx(alone / 2)
    assert ns_per_byte[DOWN + 1] == pytest.approx(alone)
    assert ns_per_byte[IDS.index("tp_p0_d0")] == pytest.approx(1e9 / WITHOUT_LATENCY.nvlink_bytes_per_s)


def test_faults_on_the_same_path_multiply_and_their_delays_add_up() -> None:
    network = Network(TOPOLOGY)
    _, healthy = network.path_times()
    devices = SlowDevice("nic", (17,), 3.0, 2e6), SlowDevice("link", (1, 17), 2.0, 1e6)
    latency_ns, slow = network.path_times(devices)
    assert slow[[DOWN + 1, DOWN + 17]] == pytest.approx(healthy[[DOWN + 1, DOWN + 17]] * [6, 3])
    assert latency_ns[[DOWN + 1, DOWN + 17]].tolist() == [3e6, 2e6]
    assert np.flatnonzero(latency_ns).tolist() == np.flatnonzero(slow > healthy * 1.01).tolist()
