"""The truth about a simulated job, in the form of a recording's ``label.json``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from irregulars.producers.simulator.job.faults import Fault
from irregulars.producers.simulator.job.settings import NS_PER_S, SimulatorSettings
from irregulars.producers.simulator.job.topology import Topology
from irregulars.producers.simulator.run.calibration import calibrated
from irregulars.producers.simulator.run.effects import fault_ranks
from irregulars.producers.simulator.run.engine import Engine

Floats = NDArray[np.float64]

VERDICT_OF: Final = {
    "slow_rank": "slow_rank", "slow_host": "slow_rank", "slow_stage": "slow_stage", "slow_nic": "slow_nic",
    "slow_link": "slow_link", "slow_switch": "slow_communicator", "uneven_data": "imbalance", "hang": "hang",
}  # fmt: skip
"""The kind of verdict that is right for a kind of fault."""

# Of normal noise: the median of |x - y| of two values is 0.954 of its standard deviation.
_STD_OF_MEDIAN_STEP: Final = 1 / 0.954


@dataclass(frozen=True, slots=True)
class Truth:
    """What a job is, with the strengths of its faults, and what becomes of it.

    Attributes
    ----------
    label
        See `label_of`.
    hung_ns
        Since the start of the job: when the last rank came to a standstill; None if the job does not hang.
    """

    settings: SimulatorSettings
    label: dict[str, Any]
    hung_ns: float | None

    def recorded_until_ns(self, start_ns: int) -> int | None:
        """When recording of a job that started then ends, ns since the epoch; None if it does not hang."""
        if self.hung_ns is None:
            return None
        return start_ns + round(self.hung_ns + self.settings.recorded_after_hang_s * NS_PER_S)


def measure(settings: SimulatorSettings) -> Truth:
    """Run a job twice, with and without its faults, and tell what was injected and what it did.

    Raises
    ------
    InputError
        If a fault does not fit the cluster, or can't cause the excess that is wanted.
    """
    settings = calibrated(settings)
    topology = Topology(settings)
    if not settings.faults:
        return Truth(settings, label_of(settings, topology, np.empty(0), np.empty(0)), None)
    measured_s, hung_ns = _run(settings)
    healthy_s, _ = _run(replace(settings, faults=()))
    return Truth(settings, label_of(settings, topology, healthy_s[: len(measured_s)], measured_s), hung_ns)


def label(settings: SimulatorSettings) -> dict[str, Any]:
    """Return what `measure` tells."""
    return measure(settings).label


def label_of(
    settings: SimulatorSettings, topology: Topology, healthy_s: Floats, measured_s: Floats
) -> dict[str, Any]:
    """Describe what was injected, and what it did.

    Parameters
    ----------
    healthy_s, measured_s
        Time of each iteration without and with the faults.

    Returns
    -------
    dict
        The keys of a recording's label for the first fault; ``faults`` has the same for each of them, with
        ``excess_ratio``: by how much the iterations in its range took longer than in the same run without any fault,
        those left out in which the job warms up.
        ``hard``: that is less than the spread of healthy iterations.
    """
    common = {"world_size": settings.world_size, "dims": _dims(settings)}
    if not settings.faults:
        return _nothing() | common
    warm_from = settings.warm_from
    found = [
        _described(fault, topology) | _measured(fault, healthy_s, measured_s, warm_from) for fault in settings.faults
    ]
    return found[0] | common | {"faults": found}


def _dims(settings: SimulatorSettings) -> dict[str, int]:
    further = {axis: getattr(settings, axis) for axis in ("cp", "ep", "shards")}
    return {"dp": settings.dp, "pp": settings.pp, "tp": settings.tp} | {k: v for k, v in further.items() if v > 1}


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
        "factor": fault.factor,
        "add_ms": fault.add_ms,
        "spread": fault.spread,
        "wanted_excess_ratio": fault.excess or None,
    }


def _shared_communicator(ranks: list[int], topology: Topology) -> str | None:
    """Smallest communicator that both ends of a link are in: the one whose transfers it carries."""
    both = [c for c in topology.groups.communicators if set(ranks) <= set(c.ranks)]
    return min(both, key=lambda c: len(c.ranks)).id if both else None


def _measured(fault: Fault, healthy_s: Floats, measured_s: Floats, warm_from: int) -> dict[str, Any]:
    first, past = fault.iterations(len(healthy_s))
    span = slice(max(first, warm_from) if warm_from < past else first, past)
    if fault.kind == "hang":
        return {"iterations": [fault.first, fault.first + 1], "excess_ratio": None, "hard": False}
    if not (len(healthy_s[span]) and np.isfinite(measured_s[span]).all()):
        return {"excess_ratio": 0.0, "hard": True}
    excess = float(measured_s[span].mean() / healthy_s[span].mean() - 1)
    return {"excess_ratio": excess, "hard": excess < _noise_ratio(healthy_s)}


def _noise_ratio(times_s: Floats) -> float:
    """Spread of healthy iterations from one to the next: neither a drift nor a few long ones are part of it."""
    steps_s = np.abs(np.diff(times_s))
    return float(_STD_OF_MEDIAN_STEP * np.median(steps_s) / np.median(times_s)) if len(steps_s) else 0.0


def _run(settings: SimulatorSettings) -> tuple[Floats, float | None]:
    """Times of the iterations, and when the job hung."""
    engine, times_s = Engine(settings), []
    while engine.iteration < settings.iterations:
        run = engine.advance()
        times_s.append(run.elapsed_ns / NS_PER_S)
        if run.is_hung:
            return np.array(times_s), run.last_ns
    return np.array(times_s), None
