"""Runs a simulated job, iteration by iteration, by its true dependencies.

A transfer begins when the last of its ranks has arrived, and takes latency plus bytes over the slowest device that it
crosses; its ranks leave together, up to a small spread. A rank arrives at its next call when it has left the one
before and done its work. That is all: what is late, who waits and how long an iteration takes follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from producers.simulator.effects import Effects, Faults
from producers.simulator.network import Network
from producers.simulator.noise import Noise, draw_noise, drift_factor
from producers.simulator.plan import Plan, make_plan
from producers.simulator.settings import NS_PER_MS, NS_PER_US, SimulatorSettings
from producers.simulator.topology import Topology
from streams.records import PHASES

Floats = NDArray[np.float64]

LAUNCH_NS = 20 * NS_PER_US
"""Time between two operators of a rank with no work between them."""

_AFTER_LAST_NS = 1 * NS_PER_MS  # logging, zeroing of gradients
_BUFFERED_SEND_NS = 50 * NS_PER_US


@dataclass(frozen=True, slots=True)
class Run:
    """One iteration that has run. Times are ns since the start of the job, on a true clock.

    Attributes
    ----------
    start_ns, end_ns
        Per rank: from data loading until it is done with everything.
    arrival_ns, departure_ns
        Per step (`producers.simulator.plan`): when it entered and left its call.
    begin_ns
        Per transfer: when all were there.
    flow_ns
        Per flow: how long its bytes travelled.
    phase
        Index into `streams.records.PHASES`.
    """

    iteration: int
    phase: int
    start_ns: Floats
    end_ns: Floats
    arrival_ns: Floats
    departure_ns: Floats
    begin_ns: Floats
    flow_ns: Floats


class Engine:
    """A job that runs one iteration per call of `advance`.

    Parameters
    ----------
    settings
        The job. The same settings give the same run.

    Raises
    ------
    InputError
        If a fault does not fit the cluster.
    """

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.topology = Topology(settings)
        self.network = Network(self.topology)
        self.plan: Plan = make_plan(self.topology)
        self._faults = Faults(self.topology, self.network)
        self._healthy_work_ns = self.plan.work_ns()
        self._healthy_flow_ns = self._flow_ns(None)
        self._ready_ns = np.zeros(settings.world_size)
        self.iteration = 0

    def advance(self) -> Run:
        """Run the next iteration."""
        iteration, plan = self.iteration, self.plan
        effects = self._faults.effects(iteration)
        noise = draw_noise(self.settings, iteration, steps=len(plan.step_rank), flows=len(self._healthy_flow_ns))
        gap_ns = self._gap_ns(effects, noise)
        healthy = effects.network is None
        flow_ns = (self._healthy_flow_ns if healthy else self._flow_ns(effects)) * noise.transfer
        start_ns = self._ready_ns
        arrival_ns, departure_ns, begin_ns = self._meet(start_ns, gap_ns, flow_ns, noise)
        phase, tail_ns = self._tail(iteration)
        end_ns = departure_ns[plan.last_step] + tail_ns * noise.tail
        self._ready_ns = end_ns + self.settings.idle_ms * NS_PER_MS
        self.iteration += 1
        return Run(iteration, phase, start_ns, end_ns, arrival_ns, departure_ns, begin_ns, flow_ns)

    def _gap_ns(self, effects: Effects, noise: Noise) -> Floats:
        plan = self.plan
        work_ns = self._healthy_work_ns if effects.load is None else plan.work_ns(effects.load)
        gap_ns = work_ns * drift_factor(self.settings, self.iteration)
        if effects.work_factor is not None:
            gap_ns *= effects.work_factor[plan.step_rank]
        gap_ns = (gap_ns + LAUNCH_NS) * noise.gap
        if effects.stall_ns is not None:
            gap_ns[plan.first_forward_step] += effects.stall_ns
        return gap_ns

    def _flow_ns(self, effects: Effects | None) -> Floats:
        flows = self.plan.flows
        latency_ns, ns_per_byte = self.network.path_times(effects.network if effects else None)
        return np.asarray(latency_ns[flows.path] + flows.wire_bytes * ns_per_byte[flows.path])

    def _meet(self, start_ns: Floats, gap_ns: Floats, flow_ns: Floats, noise: Noise) -> tuple[Floats, Floats, Floats]:
        plan = self.plan
        transfer_ns = flow_ns[: plan.transfers].copy()
        batched = plan.flows.transfer[plan.transfers :]
        transfer_ns[batched] = np.maximum(transfer_ns[batched], flow_ns[plan.transfers :])
        arrival_ns, departure_ns = np.empty_like(gap_ns), np.empty_like(gap_ns)
        begin_ns = np.empty(plan.transfers)
        arrival_ns[plan.start_step] = departure_ns[plan.start_step] = start_ns
        for wave in plan.waves:
            arrived = departure_ns[wave.shares - 1] + gap_ns[wave.shares]
            begin = np.maximum.reduceat(arrived, wave.offsets)
            length = transfer_ns[wave.first : wave.past]
            left = (begin + length)[wave.owner] + noise.spread_ns(wave.shares, length[wave.owner])
            arrival_ns[wave.shares] = arrived
            departure_ns[wave.shares] = left if wave.waits is None else _left(wave.waits, arrived, left)
            begin_ns[wave.first : wave.past] = begin
        return arrival_ns, departure_ns, begin_ns

    def _tail(self, iteration: int) -> tuple[int, float]:
        every = self.settings.checkpoint_every
        if not every or (iteration + 1) % every:
            return PHASES.index("train"), _AFTER_LAST_NS
        phase = "checkpoint" if self.settings.is_checkpoint_marked else "train"
        return PHASES.index(phase), _AFTER_LAST_NS + self.settings.checkpoint_ms * NS_PER_MS


def _left(waits: NDArray[np.bool_], arrived: Floats, left: Floats) -> Floats:
    """Shares that wait for nobody leave when their bytes are copied."""
    return np.where(waits, left, np.minimum(arrived + _BUFFERED_SEND_NS, left))
