from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.messages.announcements import decode_announcement, encode_announcement
from irregulars.messages.records import KINDS
from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.job.topology import Topology

SIZES = st.integers(1, 5)


def test_ranks_follow_megatrons_order() -> None:
    topology = Topology(SimulatorSettings(dp=4, pp=4, tp=4))
    named = {c.id: c.ranks for c in topology.groups.communicators}
    assert named["tp_p0_d1"] == (4, 5, 6, 7)
    assert named["dp_p1_t1"] == (17, 21, 25, 29)
    assert named["pp_d0_t1"] == (1, 17, 33, 49)
    assert named["world"] == tuple(range(64))


@given(dp=SIZES, pp=SIZES, tp=SIZES, gpus=SIZES)
def test_each_rank_is_once_in_each_kind_of_group_that_has_two_ranks(dp: int, pp: int, tp: int, gpus: int) -> None:
    if dp * pp * tp < 2:
        return
    topology = Topology(SimulatorSettings(dp=dp, pp=pp, tp=tp, gpus_per_host=gpus))
    announcements = list(topology.announcements(("commops",)))
    sizes = {"world": dp * pp * tp, "tp": tp, "dp": dp, "pp": pp}
    for announcement in announcements:
        kinds = [c.kind for c in announcement.communicators]
        assert kinds == [kind for kind in ("world", "tp", "dp", "pp") if sizes[kind] > 1]
        assert all(announcement.rank in c.ranks and c.kind in KINDS for c in announcement.communicators)
    ids = Counter(c.id for c in topology.groups.communicators)
    assert max(ids.values()) == 1


def test_announcements_say_where_a_rank_lives_and_travel_as_json() -> None:
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


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"dp": 0}, "dp must be above 0; got 0"),
        ({"dp": 1, "pp": 1, "tp": 1}, "dp * pp * tp * cp * ep * shards must be 2 or more; got 1"),
        ({"gap_noise_ratio": -0.1}, "gap_noise_ratio must be 0 or more; got -0.1"),
        ({"forward_ms": float("nan")}, "forward_ms must be 0 or more; got nan"),
        ({"clock": "gps"}, "clock must be one of shared, per_host; got 'gps'"),
        ({"gradient_sync": "none"}, "gradient_sync must be one of sharded, all_reduce, fsdp; got 'none'"),
        ({"spike_factor_high": 1.0}, "spike_factor_high must be at least spike_factor_low = 3.0; got 1.0"),
        ({"job": ""}, "job must be a text that is not empty; got ''"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        SimulatorSettings(**values)  # type: ignore[arg-type]
    assert reason in str(caught.value)
