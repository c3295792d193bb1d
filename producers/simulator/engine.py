"""Runs a simulated job, iteration by iteration, by its true dependencies.

A transfer begins when the last of its ranks has arrived, and takes latency plus bytes over the slowest device that it
crosses; its ranks leave together, up to a small spread. In rooted operators only those wait who depend on the root,
or the root itself. A rank arrives at its next call when it has left the one before and done its work. That is all:
delays, waits and the time of an iteration follow; and when a rank stops, all ranks stop that wait for it.

Transfers that cross a NIC at the same time share its rate, and so take longer, as long as they overlap.

The rate of a NIC is shared evenly, in each direction by itself. When transfers begin depends on how long those before
them take, so an iteration is run again with the lengths that its own overlaps give. A transfer that others share a
NIC with takes longer by the time that the NIC spends on them meanwhile: exact where they overlap as a whole, as ranks
in lockstep do, and where a short one lies within a long one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import numpy as np

from irregulars.dtypes import Floats, Ints
from irregulars.messages.records import PHASES
from irregulars.producers.simulator.effects import NO_EFFECTS, Effects, Faults
from irregulars.producers.simulator.network import Network, nowhere_path
from irregulars.producers.simulator.noise import Noise, draw_noise, drift_factor, no_noise
from irregulars.producers.simulator.plan import COPIED, NOBODY, ROOT, Plan, make_plan
from irregulars.producers.simulator.schedule import EVALUATE, TRAIN
from irregulars.producers.simulator.settings import NS_PER_MS, NS_PER_US, SimulatorSettings
from irregulars.producers.simulator.topology import Topology
from irregulars.producers.simulator.untidiness import Untidiness

# How often an iteration is run again. One is enough where transfers begin together, two where one delays others.
PASSES: Final = 2


@dataclass(frozen=True, slots=True)
class Contention:
    """Who crosses which NIC in one plan."""

    # flow, hop: Each crossing of a hop by a flow, in order of flows
    flow: Ints
    hop: Ints
    # offsets, flows: Where the crossings of each flow begin that has some, and which flow it is
    offsets: Ints
    flows: Ints
    nics: tuple[Ints, Ints]  # NIC of each crossing: the one that sends, and the one that receives

    @classmethod
    def of(cls, topology: Topology, network: Network, plan: Plan) -> Contention:
        """Find all crossings of a plan."""
        flow, hop = network.crossings(plan.flows.path)
        counts = np.bincount(flow, minlength=len(plan.flows.path))
        offsets = np.cumsum(counts) - counts
        crossing = np.flatnonzero(counts)
        nics = topology.nic[network.hop_source[hop]], topology.nic[network.hop_destination[hop]]
        return cls(flow, hop, offsets[crossing], crossing, nics)

    def extra_ns(self, begin_ns: Floats, flow_ns: Floats, flow_bytes: Floats, hop_ns_per_byte: Floats) -> Floats:
        """Return how much longer each flow takes because of others.

        `begin_ns`, `flow_ns`: per flow: when it began, and how long it took; a flow that never begins disturbs no
        other. `flow_bytes`: per flow: bytes that one member sends. `hop_ns_per_byte`: per hop: time per byte of a
        flow, which has the NIC for itself.
        """
        alone_ns = flow_bytes[self.flow] * hop_ns_per_byte[self.hop]
        begin, length = begin_ns[self.flow], flow_ns[self.flow]
        happens = np.isfinite(begin) & np.isfinite(length)
        others_ns = np.zeros(len(alone_ns))
        for nic in self.nics:
            own = others_in_the_way_ns(nic[happens], begin[happens], length[happens], alone_ns[happens])
            others_ns[happens] = np.maximum(others_ns[happens], own)
        result = np.zeros(len(flow_ns))
        slowest = np.maximum.reduceat(alone_ns + others_ns, self.offsets)
        result[self.flows] = slowest - np.maximum.reduceat(alone_ns, self.offsets)
        return result


def others_in_the_way_ns(nic: Ints, begin_ns: Floats, length_ns: Floats, alone_ns: Floats) -> Floats:
    """Time that a NIC spends on other transfers while each of these lasts.

    A transfer spreads its need of the NIC, ``alone_ns``, evenly over the time it takes. With ``W(t)`` the work that a
    NIC has done for all of them up to ``t``, that is the increase of ``W`` less the own part.

    >>> two = np.zeros(2)
    >>> others_in_the_way_ns(np.array([3, 3]), two, two + 5.0, two + 5.0).tolist()
    [5.0, 5.0]
    """
    if not len(nic):
        return np.empty(0)
    begin = begin_ns - begin_ns.min()
    end = begin + length_ns
    span = float(end.max()) + 1.0  # each NIC has a stretch of one long time axis for itself
    rate = alone_ns / np.maximum(length_ns, 1.0)
    # W is a sum of ramps, which begin to climb where a transfer begins and to fall where it ends. In order of NIC and
    # time: their places, and sums over those before of slope and of slope times start.
    ramps = []
    for start in (begin, end):
        order = np.argsort(nic * span + start)
        sums = (np.r_[0.0, np.cumsum(rate[order])], np.r_[0.0, np.cumsum(rate[order] * start[order])])
        ramps.append(((nic * span + start)[order], *sums))

    def done_ns(at: Floats) -> Floats:
        heights = []
        for place, slopes, starts in ramps:
            past, first = np.searchsorted(place, nic * span + at, side="right"), np.searchsorted(place, nic * span)
            heights.append(at * (slopes[past] - slopes[first]) - (starts[past] - starts[first]))
        return np.asarray(heights[0] - heights[1])

    return np.maximum(done_ns(end) - done_ns(begin) - rate * length_ns, 0.0)


LAUNCH_NS: Final = 20 * NS_PER_US  # time between two operators of a rank with no work between them
NEVER_NS: Final = float("inf")  # time of an event that waits for a rank which stopped
_AFTER_LAST_NS = 1 * NS_PER_MS  # logging, zeroing of gradients
_BUFFERED_SEND_NS = 50 * NS_PER_US


@dataclass(frozen=True, slots=True)
class Run:
    """One iteration that has run. Times are ns since the start of the job, on a true clock; `NEVER_NS`: never."""

    iteration: int
    phase: int  # index into `messages.records.PHASES`
    plan: Plan  # its plan
    # start_ns, end_ns: Per rank: from data loading until it is done with everything
    start_ns: Floats
    end_ns: Floats
    # arrival_ns, departure_ns: Per step (`producers.simulator.plan`): when it entered and left its call
    arrival_ns: Floats
    departure_ns: Floats
    begin_ns: Floats  # per transfer: when all were there
    flow_ns: Floats  # per flow: how long its bytes travelled
    # Per rank of a stage: tokens of its experts, relative to the mean; None: 1 for all
    expert_load: Floats | None = None

    @property
    def is_hung(self) -> bool:
        """Whether some rank never ends this iteration."""
        return bool(np.isinf(self.end_ns).any())

    @property
    def elapsed_ns(self) -> float:
        """Time of the iteration: the largest of its ranks'."""
        return float((self.end_ns - self.start_ns).max())

    @property
    def last_ns(self) -> float:
        """When the last operator ended, ns, leaving out those that never did."""
        times = np.concatenate([self.end_ns, self.arrival_ns, self.departure_ns])
        return float(times[np.isfinite(times)].max())


class Engine:
    """A job that runs one iteration per call of `advance`; InputError if a fault does not fit the cluster."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.topology = Topology(settings)
        self.network = Network(self.topology)
        self.plan: Plan = make_plan(self.topology)
        self.plans = {TRAIN: self.plan}
        if settings.evaluate_every:
            self.plans[EVALUATE] = make_plan(self.topology, EVALUATE)
        self._faults = Faults(self.topology, self.network, dict(enumerate(settings.faults)))
        self._untidiness = Untidiness(self.topology)
        self._contention = {
            name: Contention.of(self.topology, self.network, plan)
            for name, plan in (self.plans.items() if settings.is_nic_contended else ())
        }
        self._ready_ns = np.zeros(settings.world_size)
        self.iteration = 0
        self.is_hung = False

    def advance(self) -> Run:
        """Run the next iteration."""
        run = self.run(self.iteration, self._ready_ns, self._faults.effects(self.iteration))
        self._ready_ns = self.ready_after_ns(run)
        self.iteration += 1
        self.is_hung = run.is_hung
        return run

    def turn_of(self, iteration: int) -> str:
        """Return the plan that an iteration follows."""
        every = self.settings.evaluate_every
        return EVALUATE if every and (iteration + 1) % every == 0 else TRAIN

    def ready_after_ns(self, run: Run) -> Floats:
        """Return when each rank begins the iteration after this one."""
        return np.asarray(run.end_ns + self.settings.idle_ms * NS_PER_MS)

    def run(self, iteration: int, ready_ns: Floats, effects: Effects = NO_EFFECTS) -> Run:
        """Run any iteration. `ready_ns`: per rank: when it begins. `effects`: effects of faults in it."""
        plan = self.plans[self.turn_of(iteration)]
        noise = draw_noise(self.settings, iteration, steps=len(plan.step_rank), flows=len(plan.flows.path))
        expert_load = self._untidiness.expert_load(iteration)
        gap_ns = self._gap_ns(plan, iteration, effects, expert_load) * noise.gap
        # Add times without work: a fault's standstill, pauses of ranks, and compiling.
        for stall_ns in (effects.stall_ns, self._untidiness.compile_ns(iteration)):
            if stall_ns is not None:
                gap_ns[plan.first_forward_step] += stall_ns
        ranks, parts, lengths_ns = self._untidiness.pauses(iteration)
        first, last = plan.start_step[ranks] + 1, plan.last_step[ranks]
        # A rank pauses once at most, so no step comes twice, and `+=` by indices adds all.
        gap_ns[first + (parts * (last - first + 1)).astype(np.int64)] += lengths_ns
        wire_bytes = self._wire_bytes(plan, iteration, expert_load)
        flow_ns = self._flow_ns(plan, wire_bytes, effects) * noise.transfer
        may_hang = self.network.is_between_hosts[plan.flows.path] & bool(self.settings.stalls_per_iteration)
        lanes, ratios = self._untidiness.stalls(iteration, np.flatnonzero(may_hang))
        # The usual time costs a run of the plan: it is asked for only where a transfer hangs.
        flow_ns[lanes] += ratios * (self._nominal_ns if len(lanes) else 0.0)
        connecting = self._untidiness.connecting(iteration, plan.flows.path, nowhere_path(self.topology))
        flow_ns[connecting] += self.settings.connect_ms * NS_PER_MS
        stuck_steps = self._stop(plan, gap_ns, effects)
        meet = partial(_meet, plan, ready_ns, gap_ns, noise=noise, stuck_steps=stuck_steps)
        alone_ns = flow_ns
        arrival_ns, departure_ns, begin_ns = meet(flow_ns)
        for _ in range(PASSES if self._contention else 0):
            # Each flow takes longer, since others cross its NICs too.
            contention = self._contention[next(name for name, one in self.plans.items() if one is plan)]
            hop_ns_per_byte, _ = self.network.hop_times(effects.slow_devices)
            begins_ns = begin_ns[plan.flows.transfer]
            flow_ns = alone_ns + contention.extra_ns(begins_ns, flow_ns, wire_bytes, hop_ns_per_byte)
            arrival_ns, departure_ns, begin_ns = meet(flow_ns)
        phase, tail_ns = self._tail(iteration)
        end_ns = departure_ns[plan.last_step] + tail_ns * noise.tail
        return Run(iteration, phase, plan, ready_ns, end_ns, arrival_ns, departure_ns, begin_ns, flow_ns, expert_load)

    @cached_property
    def _nominal_ns(self) -> float:
        """Time of an iteration in which nothing is uneven."""
        plan = self.plan
        noise = no_noise(len(plan.step_rank))
        start_ns = np.zeros(self.settings.world_size)
        gap_ns, flow_ns = plan.work_ns() + LAUNCH_NS, self._flow_ns(plan, self._wire_bytes(plan, 0, None), NO_EFFECTS)
        _, departure_ns, _ = _meet(plan, start_ns, gap_ns, flow_ns, noise, None)
        return float(departure_ns[plan.last_step].max())

    def _gap_ns(self, plan: Plan, iteration: int, effects: Effects, expert_load: Floats | None) -> Floats:
        load = self._untidiness.load(iteration)
        if effects.load is not None:
            load = load * effects.load
        factor = drift_factor(self.settings, iteration) * self._untidiness.warm_up_factor(iteration)
        gap_ns = plan.work_ns(load, expert_load) * factor
        for by_rank in (self._untidiness.work_factor(iteration), effects.work_factor):
            if by_rank is not None:
                gap_ns *= by_rank[plan.step_rank]
        return np.asarray(gap_ns + LAUNCH_NS * plan.is_call)

    def _wire_bytes(self, plan: Plan, iteration: int, expert_load: Floats | None) -> Floats:
        flows, longer = plan.flows, self.settings.workload_factor(iteration)
        wire_bytes = flows.wire_bytes if longer == 1 else flows.wire_bytes * np.where(flows.is_scaled, longer, 1.0)
        if expert_load is None:
            return wire_bytes
        # The rank with most tokens decides how long an exchange takes.
        busiest = np.ones(nowhere_path(self.topology) + 1)
        loads = np.tile(expert_load, self.settings.pp)[self.topology.seat]
        # Ranks without such a group have -1, which is the last path: the one that leads nowhere.
        np.maximum.at(busiest, self.topology.groups.numbers["ep"], loads)
        return np.asarray(wire_bytes * busiest[flows.path])

    def _flow_ns(self, plan: Plan, wire_bytes: Floats, effects: Effects) -> Floats:
        latency_ns, ns_per_byte = self.network.path_times(effects.slow_devices)
        return np.asarray(latency_ns[plan.flows.path] + wire_bytes * ns_per_byte[plan.flows.path])

    def _stop(self, plan: Plan, gap_ns: Floats, effects: Effects) -> Ints | None:
        """Stop ranks before a call; return the steps inside which others stop."""
        inside = []
        for fault in effects.hangs:
            rank = int(fault.rank or 0)
            calls = np.unique(plan.rows.step[plan.rows.of_seat(int(self.topology.seat[rank]))])  # that it logs
            step = int(calls[int(fault.at * len(calls))])
            gap_ns[step + fault.is_inside : plan.last_step[rank] + 1] = NEVER_NS
            if fault.is_inside:
                inside.append(step)
        return np.array(inside) if inside else None

    def _tail(self, iteration: int) -> tuple[int, float]:
        settings = self.settings
        phase, tail_ns = "train", _AFTER_LAST_NS
        if settings.checkpoint_every and not (iteration + 1) % settings.checkpoint_every:
            phase = "checkpoint" if settings.is_checkpoint_marked else "train"
            tail_ns += settings.checkpoint_ms * NS_PER_MS
        if self.turn_of(iteration) == EVALUATE:
            phase = "eval" if settings.is_evaluation_marked else "train"
        return PHASES.index(phase), tail_ns


def _meet(
    plan: Plan, start_ns: Floats, gap_ns: Floats, flow_ns: Floats, noise: Noise, stuck_steps: Ints | None
) -> tuple[Floats, Floats, Floats]:
    """Run a plan wave by wave: arrivals, departures, and when transfers begin."""
    transfer_ns = flow_ns[: plan.transfers].copy()
    # A batched send and recv is over when both of its flows are.
    batched = plan.flows.transfer[plan.transfers :]
    transfer_ns[batched] = np.maximum(transfer_ns[batched], flow_ns[plan.transfers :])
    # -inf, so that the first part of a step with several parts has no earlier departure to wait for.
    arrival_ns, departure_ns = np.empty_like(gap_ns), np.full_like(gap_ns, -NEVER_NS)
    begin_ns = np.empty(plan.transfers)
    arrival_ns[plan.start_step] = departure_ns[plan.start_step] = start_ns
    for wave in plan.waves:
        # Each share enters after its work, and after all steps that it waits for.
        before_ns, own_ns = departure_ns[wave.before], gap_ns[wave.shares]
        free_ns = before_ns
        for other in wave.others:
            free_ns = np.maximum(free_ns, departure_ns[other])
        arrived = free_ns + own_ns
        if wave.is_queued is not None:
            arrived = np.where(wave.is_queued, np.maximum(before_ns + own_ns, free_ns), arrived)
        begin = np.maximum.reduceat(arrived, wave.offsets)
        length = transfer_ns[wave.first : wave.past]
        left = (begin + length)[wave.owner] + noise.spread_ns(wave.shares, length[wave.owner])
        if wave.roles is not None:
            alone_ns = length[wave.owner]  # of those who do not wait for all
            root_ns = np.maximum(arrived, arrived[wave.offsets][wave.owner]) + alone_ns
            left = np.where(wave.roles == COPIED, np.minimum(arrived + _BUFFERED_SEND_NS, left), left)
            left = np.where(wave.roles == ROOT, root_ns, left)
            left = np.where(wave.roles == NOBODY, arrived + alone_ns, left)
        if wave.is_merging:
            left = np.maximum(left, departure_ns[wave.shares])
        if stuck_steps is not None:
            left[np.isin(wave.shares, stuck_steps)] = NEVER_NS
        arrival_ns[wave.shares], departure_ns[wave.shares] = arrived, left
        begin_ns[wave.first : wave.past] = begin
    return arrival_ns, departure_ns, begin_ns
