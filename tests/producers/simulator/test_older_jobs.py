"""Jobs of older settings and seeds stay what they were: figures measured on them stay comparable."""

from __future__ import annotations

from typing import Any

import pytest

from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.presets import with_preset
from irregulars.producers.simulator.settings import SimulatorSettings

SIX: dict[str, Any] = {
    "dp": 2, "pp": 2, "tp": 2, "cp": 2, "ep": 2, "shards": 2, "rank_order": "tp-cp-ep-pp-dp", "micro_batches": 6,
    "gpus_per_nic": 2,
}  # fmt: skip


@pytest.mark.parametrize(("preset", "shape", "second_ns", "fourth_ns"), [
    ("default", {}, 241703863.0, 243145304.0), ("suite", {}, 249864690.1, 267260610.0),
    ("untidy", {}, 249561122.5, 262778106.7), ("suite", {"model_chunks": 2, "dp": 2}, 225655978.4, 232859571.1),
    ("suite", SIX, 173360490.5, 191026022.4),
])  # fmt: skip
def test_iterations_take_as_long(preset: str, shape: dict[str, Any], second_ns: float, fourth_ns: float) -> None:
    """The figures are of the commit before any of `producers.simulator.settings` came."""
    engine = Engine(with_preset(SimulatorSettings(iterations=4, seed=3, **shape), preset))
    times_ns = [engine.advance().elapsed_ns for _ in range(4)]
    assert times_ns[1::2] == pytest.approx([second_ns, fourth_ns], abs=1.0)
