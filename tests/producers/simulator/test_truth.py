from __future__ import annotations

from typing import Any

import pytest

from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.truth import measure
from tests.producers.simulator.conftest import faulty

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
