from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.producers.simulator.job.groups import VARYING
from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.job.topology import Topology

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
    for communicator in topology.groups.communicators:
        group = communicator.id.split("_")[0]
        places = np.array([place[rank] for rank in communicator.ranks])
        moving = {axis for axis, column in zip(VARYING["world"], places.T, strict=True) if len(set(column)) > 1}
        assert moving <= set(VARYING[group])
        assert list(communicator.ranks) == sorted(communicator.ranks)
        wanted = int(np.prod([getattr(settings, axis) for axis in VARYING[group]]))
        assert len(communicator.ranks) == (2 if group == "emb" else wanted)


@given(settings=SHAPES)
def test_the_order_of_a_ranks_communicators_is_that_of_its_codes(settings: SimulatorSettings) -> None:
    groups = Topology(settings).groups
    codes = groups.local_codes()
    for rank in (0, settings.world_size - 1):
        numbers = groups.of_rank(rank)
        for group, own in groups.numbers.items():
            if own[rank] >= 0:
                assert numbers[codes[group][rank]] == own[rank]


def test_dimensions_nest_as_megatron_documents_them() -> None:
    found = ranks_of(SimulatorSettings(tp=2, cp=2, ep=2, dp=2, pp=2))
    assert found["tp_p0_d0_e0_c0"] == (0, 1)
    assert found["cp_p0_d0_e0_t0"] == (0, 2)
    assert found["ep_p0_d0_c0_t0"] == (0, 4)
    assert found["dp_p0_t0"] == tuple(range(0, 16, 2))
    assert found["edp_p0_e0_t0"] == (0, 2, 8, 10)
    assert found["pp_d0_e0_c0_t0"] == (0, 16)


def test_the_other_order_puts_stages_inside_replicas() -> None:
    found = ranks_of(SimulatorSettings(tp=2, dp=2, pp=2, rank_order="tp-cp-ep-pp-dp"))
    assert found["tp_p1_d0"] == (2, 3)
    assert found["pp_d0_t0"] == (0, 2)
    assert found["dp_p0_t0"] == (0, 4)


def test_shards_of_the_optimizer_split_the_gradient_group() -> None:
    found = ranks_of(SimulatorSettings(tp=2, dp=2, shards=4, pp=1))
    assert found["shard_p0_d1_t0"] == (8, 10, 12, 14)
    assert found["replica_p0_s0_t1"] == (1, 9)
    assert not any(name.startswith("dp") for name in found)


@pytest.mark.parametrize(
    ("name", "kind"), [("shard_p0_d0_t0", "dp"), ("emb_d0_s0_t0", "unknown"), ("world", "world")]
)
def test_kinds_are_those_of_the_contract(name: str, kind: str) -> None:
    groups = Topology(SimulatorSettings(shards=2, has_tied_embeddings=True)).groups
    assert {c.id: c.kind for c in groups.communicators}[name] == kind


def test_tied_embeddings_join_the_first_and_the_last_stage() -> None:
    found = ranks_of(SimulatorSettings(dp=1, pp=4, tp=2, has_tied_embeddings=True))
    assert found["emb_d0_t1"] == (1, 7)
