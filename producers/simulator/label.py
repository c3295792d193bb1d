"""The truth about a simulated job, in the form of a recording's ``label.json``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from producers.simulator.effects import fault_ranks
from producers.simulator.engine import Engine
from producers.simulator.faults import Fault
from producers.simulator.settings import SimulatorSettings
from producers.simulator.topology import Topology

VERDICT_OF: Final = {
    "slow_rank": "slow_rank", "slow_host": "slow_rank", "slow_stage": "slow_stage", "slow_nic": "slow_nic",
    "slow_link": "slow_link", "slow_switch": "slow_communicator", "uneven_data": "imbalance",
}  # fmt: skip
"""The kind of verdict that is right for a kind of fault."""


def label(settings: SimulatorSettings) -> dict[str, Any]:
    """Describe what was injected, and what it did.

    Returns
    -------
    dict
        The keys of a recording's label for the first fault; ``faults`` has the same for each of them, with
        ``excess_ratio``: by how much the iterations in its range took longer than in the same run without any fault.
        ``hard``: that is less than the spread of the healthy iterations.
    """
    common = {"world_size": settings.world_size, "dims": {"dp": settings.dp, "pp": settings.pp, "tp": settings.tp}}
    if not settings.faults:
        return _nothing() | common
    topology = Topology(settings)
    healthy_ns, measured_ns = _iteration_times_ns(replace(settings, faults=())), _iteration_times_ns(settings)
    found = [_described(fault, topology) | _measured(fault, healthy_ns, measured_ns) for fault in settings.faults]
    return found[0] | common | {"faults": found}


def _nothing() -> dict[str, Any]:
    empty = dict.fromkeys(("rank", "peer", "communicator", "switch"))
    return {"kind": "none", **empty, "ranks": [], "iterations": [0, 0], "hard": False}


def _described(fault: Fault, topology: Topology) -> dict[str, Any]:
    ranks = fault_ranks(fault, topology).tolist()
    is_link, is_switch = fault.kind == "slow_link", fault.kind == "slow_switch"
    return {
        "kind": VERDICT_OF[fault.kind],
        "rank": ranks[0] if ranks else None,
        "peer": fault.peer,
        "ranks": ranks,
        "communicator": _shared_communicator(ranks, topology) if is_link else None,
        "switch": topology.switch_name(topology.find_switch(str(fault.switch))) if is_switch else None,
        "iterations": list(fault.iterations(topology.settings.iterations)),
        "fault": fault.kind,
        "shape": fault.shape,
    }


def _shared_communicator(ranks: list[int], topology: Topology) -> str | None:
    """Smallest communicator that both ends of a link are in: the one whose transfers it carries."""
    both = [c for c in topology.groups.communicators if set(ranks) <= set(c.ranks)]
    return min(both, key=lambda c: len(c.ranks)).id if both else None


def _measured(fault: Fault, healthy_ns: np.ndarray, measured_ns: np.ndarray) -> dict[str, Any]:
    span = slice(*fault.iterations(len(healthy_ns)))
    if not len(healthy_ns[span]):
        return {"excess_ratio": 0.0, "hard": True}
    excess = float(measured_ns[span].mean() / healthy_ns[span].mean() - 1)
    return {"excess_ratio": excess, "hard": excess < float(healthy_ns.std() / healthy_ns.mean())}


def _iteration_times_ns(settings: SimulatorSettings) -> np.ndarray:
    engine = Engine(settings)
    runs = (engine.advance() for _ in range(settings.iterations))
    return np.array([float((run.end_ns - run.start_ns).max()) for run in runs])
