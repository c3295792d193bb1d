from __future__ import annotations

from typing import Any

import pytest

from irregulars.errors import InputError
from irregulars.messages.kinds import DEVICE_KINDS, VERDICT_KINDS
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.faults import FAULT_KINDS, Fault, parse_fault
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.truth import measure
from tests.producers.simulator.conftest import faulty


@pytest.mark.parametrize(("text", "fault"), [
    ("slow_nic:rank=17,from=40,to=60,factor=8", Fault("slow_nic", first=40, past=60, factor=8.0, rank=17)),
    ("slow_rank:rank=5,from=10,add_ms=50", Fault("slow_rank", first=10, add_ms=50.0, rank=5)),
    ("slow_rank: rank=5, factor=1.5", Fault("slow_rank", factor=1.5, rank=5)),
    ("slow_link:src=1,dst=9,factor=4", Fault("slow_link", factor=4.0, rank=1, peer=9)),
    ("slow_host:host=node-2,factor=2", Fault("slow_host", factor=2.0, host="node-2")),
    ("slow_switch:switch=0,add_ms=1", Fault("slow_switch", add_ms=1.0, switch="0")),
    ("slow_stage:stage=3,factor=1.2", Fault("slow_stage", factor=1.2, stage=3)),
    ("uneven_data:spread=0.3", Fault("uneven_data", spread=0.3)),
    ("slow_nic:rank=3,excess=0.2", Fault("slow_nic", excess=0.2, by="factor", rank=3)),
    ("slow_link:src=1,dst=9,excess=1,by=add_ms", Fault("slow_link", excess=1.0, by="add_ms", rank=1, peer=9)),
    ("slow_rank:rank=1,factor=2,shape=from_start", Fault("slow_rank", shape="from_start", factor=2.0, rank=1)),
    ("hang:rank=4,from=9,at=0.25,inside=yes", Fault("hang", first=9, rank=4, at=0.25, is_inside=True)),
    ("slow_rank:rank=0,from=7,factor=9,shape=spike", Fault("slow_rank", 7, 8, "spike", 9.0, rank=0)),
])  # fmt: skip
def test_a_fault_reads_as_it_is_written(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(("text", "reason"), [
    ("", "fault must begin with one of slow_rank"),
    ("slow_gpu:rank=1,factor=2", "got 'slow_gpu'"),
    ("slow_rank:factor=2", "slow_rank must say rank=…"),
    ("slow_rank:rank=1", "slow_rank must say factor=… or add_ms=…"),
    ("slow_rank:rank=1,factor", "must be key=value; got 'factor'"),
    ("slow_rank:rank=1,rank=2,factor=2", "given once; got 'rank' twice"),
    ("slow_rank:rank=1,speed=2", "rank, factor, add_ms, from, to, shape, over, excess, by; got 'speed'"),
    ("slow_rank:rank=-1,factor=2", "rank must be an integer of at least 0; got '-1'"),
    ("slow_rank:rank=one,factor=2", "rank must be an integer of at least 0; got 'one'"),
    ("slow_rank:rank=1,factor=fast", "factor must be a number above 1; got 'fast'"),
    ("slow_rank:rank=1,factor=0.5", "factor must be a number above 1; got '0.5'"),
    ("slow_rank:rank=1,factor=nan", "factor must be a number above 1; got 'nan'"),
    ("slow_rank:rank=1,factor=inf", "factor must be a number above 1; got 'inf'"),
    ("slow_rank:rank=1,factor=2,from=9,to=9", "to must be above from = 9; got 9"),
    ("slow_rank:rank=1,factor=2,shape=odd", "fluctuating, from_start, ramp, sawtooth; got 'odd'"),
    ("slow_stage:stage=1,add_ms=5", "got 'add_ms'"),
    ("slow_rank:rank=1,factor=2,from=3,shape=from_start", "from must be 0 where shape is from_start; got 3"),
    ("slow_rank:rank=1,factor=2,excess=0.1", "excess must stand without factor; got both"),
    ("slow_rank:rank=1,excess=0", "excess must be a number above 0; got '0'"),
    ("slow_stage:stage=1,excess=0.1,by=add_ms", "by must be one of factor; got 'add_ms'"),
    ("slow_rank:rank=1,factor=2,by=factor", "by must stand with excess"),
    ("hang:rank=1,factor=2", "a setting of hang must be one of rank, from, at, inside; got 'factor'"),
    ("hang:rank=1,at=1", "at must be a number from 0 to below 1; got '1'"),
    ("hang:rank=1,at=now", "at must be a number from 0 to below 1; got 'now'"),
    ("hang:rank=1,inside=maybe", "inside must be one of yes, no; got 'maybe'"),
    ("uneven_data:spread=0", "spread must be a number above 0; got '0'"),
    ("slow_rank:rank=1,factor=2,over=4", "over must stand with shape ramp or sawtooth; got 4"),
    ("slow_rank:rank=1,factor=2,shape=ramp,over=0", "over must be an integer of at least 1; got '0'"),
])  # fmt: skip
def test_a_wrong_fault_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_fault(text)
    assert reason in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(("text", "reason"), [
    ("slow_rank:rank=64,factor=2", "rank must be below 64; got 64"),
    ("slow_link:src=0,dst=99,factor=2", "dst must be below 64; got 99"),
    ("slow_stage:stage=4,factor=2", "stage must be below 4; got 4"),
    ("slow_host:host=node-8,factor=2", "host must be node-0 to node-7, or its number; got 'node-8'"),
    ("slow_switch:switch=spine,factor=2", "switch must be leaf-0 to leaf-1, or its number; got 'spine'"),
    ("slow_link:src=0,dst=1,factor=2", "on different hosts that exchange data; got src=0, dst=1"),
    ("slow_link:src=0,dst=33,factor=2", "(rank 0 sends to [8, 16])"),
    ("slow_rank:rank=0,excess=0.2", "excess must be calibrated before a job runs; got 0.2"),
    ("hang:rank=64", "rank must be below 64; got 64"),
])  # fmt: skip
def test_a_fault_that_does_not_fit_the_cluster_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        Engine(SimulatorSettings(faults=(parse_fault(text),)))
    assert reason in str(caught.value)


def test_every_kind_has_a_verdict_that_is_right_for_it() -> None:
    assert {kind.verdict for kind in FAULT_KINDS.values()} <= set(VERDICT_KINDS)
    assert {kind.device for kind in FAULT_KINDS.values()} - {None} <= set(DEVICE_KINDS)


NIC = "slow_nic:rank=17,from=5,to=9,factor=8"


@pytest.mark.parametrize(("texts", "expected"), [
    ([], {"kind": "none", "ranks": [], "iterations": [0, 0], "world_size": 64}),
    ([NIC], {"kind": "slow_nic", "rank": 17, "ranks": [17], "iterations": [5, 9], "hard": False}),
    ([NIC, "hang:rank=1,from=18"], {"kind": "slow_nic", "iterations": [5, 9], "hard": False}),
    (["slow_host:host=1,add_ms=50"], {"kind": "slow_rank", "rank": 8, "ranks": list(range(8, 16))}),
    (["slow_stage:stage=3,factor=1.5"], {"kind": "slow_stage", "rank": 48, "iterations": [0, 20]}),
    (["slow_switch:switch=1,factor=9"], {"kind": "slow_communicator", "switch": "leaf-1"}),
    (["uneven_data:spread=0.3"], {"kind": "imbalance", "rank": None, "ranks": []}),
    (["slow_link:src=17,dst=25,factor=9"], {"kind": "slow_link", "peer": 25, "communicator": "dp_p1_t1"}),
    (["slow_rank:rank=2,from=15,to=99,add_ms=9"], {"kind": "slow_rank", "iterations": [15, 20]}),
    (["slow_rank:rank=2,add_ms=0.5"], {"hard": True}),  # it drowns in the noise
])  # fmt: skip
def test_the_label_names_what_a_verdict_should(texts: list[str], expected: dict[str, Any]) -> None:
    found = measure(faulty(SimulatorSettings(iterations=20), *texts)).label
    assert {key: found[key] for key in expected} == expected
    assert [one["fault"] for one in found.get("faults", ())] == [text.partition(":")[0] for text in texts]
