from __future__ import annotations

import pytest

from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.truth import measure
from tests.producers.simulator.conftest import faulty

BASE = SimulatorSettings(iterations=20)


def labelled(*texts: str) -> dict[str, object]:
    return measure(faulty(BASE, *texts)).label


def test_a_healthy_job_has_nothing_to_find() -> None:
    found = measure(BASE).label
    assert (found["kind"], found["ranks"], found["iterations"]) == ("none", [], [0, 0])
    assert found["world_size"] == 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "slow_nic:rank=17,from=5,to=9,factor=8",
            {"kind": "slow_nic", "rank": 17, "ranks": [17], "iterations": [5, 9]},
        ),
        ("slow_host:host=1,add_ms=50", {"kind": "slow_rank", "rank": 8, "ranks": list(range(8, 16))}),
        ("slow_stage:stage=3,factor=1.5", {"kind": "slow_stage", "rank": 48, "iterations": [0, 20]}),
        ("slow_switch:switch=1,factor=9", {"kind": "slow_communicator", "switch": "leaf-1"}),
        ("uneven_data:spread=0.3", {"kind": "imbalance", "rank": None, "ranks": []}),
        ("slow_link:src=17,dst=25,factor=9", {"kind": "slow_link", "peer": 25, "communicator": "dp_p1_t1"}),
        ("slow_rank:rank=2,from=15,to=99,add_ms=9", {"kind": "slow_rank", "iterations": [15, 20]}),
        ("slow_rank:rank=2,add_ms=0.5", {"hard": True}),  # it drowns in the noise
    ],
)
def test_the_label_names_what_a_verdict_should(text: str, expected: dict[str, object]) -> None:
    found = labelled(text)
    assert {key: found[key] for key in expected} == expected


def test_two_faults_are_two_truths() -> None:
    found = labelled("slow_rank:rank=2,from=3,to=6,add_ms=50", "slow_nic:rank=40,from=10,to=12,factor=9")
    faults = found["faults"]
    assert isinstance(faults, list)
    assert [fault["kind"] for fault in faults] == ["slow_rank", "slow_nic"]
    assert found["kind"] == "slow_rank"
    assert all(fault["excess_ratio"] > 0.1 and not fault["hard"] for fault in faults)
