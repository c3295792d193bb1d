"""Simulated jobs of every shape, small enough to be judged some thousand times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import OFF_CLOCKS, SimulatorSettings, with_preset
from irregulars.producers.simulator.source import simulate_trace
from tests.benchmarks.metamorphic.recording import Recording, read_recording

_CLUSTER: Final[Mapping[str, Any]] = {"gpus_per_host": 4, "hosts_per_switch": 2, "micro_batches": 4, "iterations": 80}
_DDP: Final[Mapping[str, Any]] = {"dp": 16, "pp": 1, "tp": 1, "gradient_sync": "all_reduce"}
_BUCKETS: Final[Mapping[str, Any]] = {**_DDP, "gradient_buckets": 4, "is_gradient_overlapped": True}
_QUEUED: Final[Mapping[str, Any]] = {**_BUCKETS, "gradient_buckets": 8, "gradient_bytes": 1 << 30}
"""Buckets are ready sooner than the one before is through: each begins exactly when that ends."""

_TP: Final[Mapping[str, Any]] = {"dp": 4, "pp": 1, "tp": 4}
_PP: Final[Mapping[str, Any]] = {"dp": 4, "pp": 4, "tp": 1}
_THREE: Final[Mapping[str, Any]] = {"dp": 4, "pp": 2, "tp": 2}
_CHUNKS: Final[Mapping[str, Any]] = {"dp": 2, "pp": 4, "tp": 2, "model_chunks": 2}
_CONTEXT: Final[Mapping[str, Any]] = {"dp": 2, "pp": 2, "tp": 2, "cp": 2}
_EXPERTS: Final[Mapping[str, Any]] = {"dp": 2, "pp": 2, "tp": 2, "ep": 2}
_SHARDS: Final[Mapping[str, Any]] = {"dp": 2, "pp": 2, "tp": 2, "shards": 2}
_TIED: Final[Mapping[str, Any]] = {"dp": 2, "pp": 4, "tp": 2, "has_tied_embeddings": True, "is_send_buffered": True}
_LEADERS: Final[Mapping[str, Any]] = {"dp": 4, "pp": 2, "tp": 4, "logged": "tp_leaders"}


@dataclass(frozen=True, slots=True)
class Job:
    """One simulated job: its shape, how untidy it is, whether clocks are off, what is broken."""

    shape: Mapping[str, Any]
    fault: str = ""
    preset: str = "suite"
    is_off: bool = False
    other: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, seed: int) -> SimulatorSettings:
        clocks = OFF_CLOCKS if self.is_off else {}
        faults = (parse_fault(self.fault),) if self.fault else ()
        plain = with_preset(SimulatorSettings(), self.preset)
        return replace(plain, **{**_CLUSTER, **self.shape, **clocks, **self.other, "faults": faults, "seed": seed})


_SLOW: Final = "from=40,to=60"
JOBS: Final[Mapping[str, Job]] = {
    "ddp-rank": Job(_DDP, f"slow_rank:rank=5,{_SLOW},factor=1.5"),
    "ddp-rank-start": Job(_DDP, "slow_rank:rank=6,factor=1.5,shape=from_start", is_off=True),
    "ddp-nic": Job(_DDP, f"slow_nic:rank=9,{_SLOW},factor=6"),
    "ddp-healthy": Job(_DDP, is_off=True),
    "buckets-rank": Job(_BUCKETS, f"slow_rank:rank=5,{_SLOW},factor=1.5"),
    "buckets-spike": Job(_BUCKETS, "slow_rank:rank=3,from=45,factor=3,shape=spike"),
    "buckets-host": Job(_BUCKETS, f"slow_host:host=2,{_SLOW},factor=1.5", is_off=True),
    "buckets-healthy": Job(_BUCKETS, preset="untidy"),
    "tp-rank": Job(_TP, f"slow_rank:rank=5,{_SLOW},factor=1.4"),
    "tp-rank-off": Job(_TP, f"slow_rank:rank=10,{_SLOW},factor=1.4", is_off=True),
    "tp-host": Job(_TP, f"slow_host:host=1,{_SLOW},factor=1.5"),
    "tp-nic": Job(_TP, f"slow_nic:rank=6,{_SLOW},factor=8"),
    "pp-rank": Job(_PP, f"slow_rank:rank=6,{_SLOW},factor=1.5"),
    "pp-link": Job(_PP, f"slow_link:src=5,dst=9,{_SLOW},factor=30"),
    "pp-link-off": Job(_PP, f"slow_link:src=2,dst=6,{_SLOW},factor=30", is_off=True),
    "pp-stage": Job(_PP, "slow_stage:stage=2,factor=1.4,shape=from_start"),
    "pp-hang": Job(_PP, "hang:rank=7,from=50"),
    "three-rank": Job(_THREE, f"slow_rank:rank=3,{_SLOW},factor=1.5"),
    "three-rank-start": Job(_THREE, "slow_rank:rank=9,factor=1.5,shape=from_start"),
    "three-fluctuating": Job(_THREE, f"slow_rank:rank=12,{_SLOW},factor=1.8,shape=fluctuating", is_off=True),
    "three-spike": Job(_THREE, "slow_rank:rank=5,from=50,factor=3,shape=spike"),
    "three-nic": Job(_THREE, f"slow_nic:rank=5,{_SLOW},factor=10"),
    "three-switch": Job(_THREE, f"slow_switch:switch=1,{_SLOW},factor=8"),
    "three-hang": Job(_THREE, "hang:rank=6,from=50", is_off=True),
    "three-hang-inside": Job(_THREE, "hang:rank=11,from=50,inside=yes"),
    "three-uneven": Job(_THREE, f"uneven_data:{_SLOW},spread=0.6"),
    "three-healthy": Job(_THREE),
    "three-longer": Job(_THREE, other={"workload_changes": ((40, 1.4),)}),
    "three-evaluates": Job(_THREE, other={"evaluate_every": 20, "checkpoint_every": 25}),
    "three-untidy": Job(_THREE, f"slow_rank:rank=7,{_SLOW},factor=1.5", preset="untidy", is_off=True),
    "chunks-rank": Job(_CHUNKS, f"slow_rank:rank=6,{_SLOW},factor=1.5"),
    "chunks-nic": Job(_CHUNKS, f"slow_nic:rank=5,{_SLOW},factor=10", is_off=True),
    "context-rank": Job(_CONTEXT, f"slow_rank:rank=3,{_SLOW},factor=1.5", is_off=True),
    "context-healthy": Job(_CONTEXT, preset="untidy"),
    "experts-rank": Job(_EXPERTS, f"slow_rank:rank=13,{_SLOW},factor=1.5"),
    "experts-link": Job(_EXPERTS, f"slow_link:src=1,dst=9,{_SLOW},factor=30"),
    "shards-rank": Job(_SHARDS, f"slow_rank:rank=2,{_SLOW},factor=1.5", preset="untidy"),
    "shards-host": Job(_SHARDS, "slow_host:host=3,factor=1.5,shape=from_start"),
    "tied-rank": Job(_TIED, f"slow_rank:rank=14,{_SLOW},factor=1.5"),
    "tied-nic": Job(_TIED, f"slow_nic:rank=9,{_SLOW},factor=10", preset="untidy"),
    "queued-rank": Job(_QUEUED, f"slow_rank:rank=5,{_SLOW},factor=1.5"),
    "queued-rank-start": Job(_QUEUED, "slow_rank:rank=6,factor=1.5,shape=from_start"),
    "queued-nic": Job(_QUEUED, f"slow_nic:rank=9,{_SLOW},factor=4", is_off=True),
    "queued-healthy": Job(_QUEUED),
    "leaders-rank": Job(_LEADERS, f"slow_rank:rank=8,{_SLOW},factor=1.5"),
    "leaders-healthy": Job(_LEADERS, is_off=True),
}
"""By name; the seed is the place in this table."""


def simulate(name: str, directory: Path) -> Recording:
    """Run a job of the table, write its trace directory and read it."""
    simulate_trace(directory, JOBS[name].settings(list(JOBS).index(name)))
    return read_recording(directory)
