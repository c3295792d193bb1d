"""The discrete-event engine: ranks execute programs, kernels wait on streams, flows share resources max-min fairly.

A kernel starts when its stream is free; it then sits there, waiting for the others included, until its transfers have
ended.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.independent.event_level.cluster import VOLUME, Cluster, FlowShare, Pair, Uses
from tests.benchmarks.independent.event_level.faults import Fault
from tests.benchmarks.independent.event_level.noise import SALTS, Noise
from tests.benchmarks.independent.event_level.programs import Compute, Handle, Instructions, Job, Put, Share


class Row(NamedTuple):
    """What is logged of one share of a kernel; the end is None where it never ended, the peer -1 for a collective."""

    rank: int
    communicator: int
    operator: str
    sequence: int
    peer: int
    start: float
    end: float | None
    size: int
    iteration: int


class IterationRow(NamedTuple):
    """When a rank began and ended an iteration."""

    rank: int
    iteration: int
    start: float
    end: float


# Dictionaries hold these four by identity, so none may be compared by value.
@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way over some resources."""

    uses: Uses
    left: float
    transfer: Transfer
    since: float
    rate: float = 0.0
    version: int = 0  # of the rate: the end that was foreseen for another rate does not count


@dataclass(slots=True, eq=False)
class Kernel:
    rank: Rank
    stream: Hashable
    shares: tuple[Share, ...]
    pending: int
    iteration: int
    sequences: list[int] = field(default_factory=list)
    start: float = 0.0
    done: bool = False
    is_stuck: bool = False
    is_awaited: bool = False


@dataclass(slots=True, eq=False)
class Transfer:
    """The part of an operator that moves bytes; `open` holds the (kernel, number of share) that end with it."""

    operator: str
    communicator: int
    ends: Pair | None
    salt: int
    size: float
    open: list[tuple[Kernel, int]] = field(default_factory=list)
    flows: int = 0
    state: str = "waiting"  # then "moving", then "sent"


@dataclass(slots=True, eq=False)
class Rank:
    number: int
    iteration: int = -1
    place: int = 0
    begin: float = 0.0
    is_dead: bool = False
    program: Instructions = field(default_factory=list)
    streams: dict[Hashable, deque[Kernel]] = field(default_factory=dict)
    handles: dict[Handle, Kernel] = field(default_factory=dict)
    counts: dict[Hashable, int] = field(default_factory=dict)


class Engine:
    """Runs some iterations of all ranks; see `rows`, `iteration_rows` and `nic_bytes` afterwards."""

    def __init__(
        self, cluster: Cluster, job: Job, noise: Noise, fault: Fault, iterations: int, does_log_nics: bool = False
    ) -> None:
        self.cluster, self.job, self.iterations = cluster, job, iterations
        self.rows: list[Row] = []
        self.iteration_rows: list[IterationRow] = []
        self.now = 0.0
        # Dictionaries with empty values are sets that keep their order: the run must not depend on addresses.
        self.running: dict[Kernel, None] = {}  # kernels that have started and not ended
        self.transfers: dict[tuple[int, Pair | None, int], Transfer] = {}  # some of whose ends have not come
        self._noise, self._fault = noise, fault
        self._capacity = list(cluster.capacity)
        self._users: list[dict[Flow, None]] = [{} for _ in self._capacity]
        self._dirty: dict[int, None] = {}  # resources whose use has changed
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._ticket = count()  # events of one instant come in the order in which they were foreseen
        self._templates: dict[Hashable, list[FlowShare]] = {}
        nics = [*cluster.nic_tx.values(), *cluster.nic_rx.values()] if does_log_nics else []
        self._nic_log: dict[int, list[tuple[float, float]]] = {resource: [] for resource in nics}

    def run(self) -> Engine:
        """Run everything, and return the engine itself."""
        for number in range(self.cluster.world):
            self._at(self._noise.launch[number], self._advance, Rank(number))
        events = self._events
        while events:
            if self._dirty and events[0][0] > self.now:
                self._share_out()
                continue
            self.now, _, action, arguments = heapq.heappop(events)
            action(*arguments)
            if self._dirty and not events:
                self._share_out()
        return self

    def leave_open(self) -> None:
        """Log what had begun and never ended (a hang)."""
        for kernel in self.running:
            self._log(kernel, None)

    def nic_bytes(self, resource: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the times at which the rate of one direction of a NIC changed, and the bytes by then."""
        log = np.array(self._nic_log[resource] or [(0.0, 0.0)])
        at, rate = log[:, 0], np.maximum(0.0, np.cumsum(log[:, 1]))
        return at, np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(at))])

    def iteration_times(self) -> NDArray[np.float64]:
        """Return how long each iteration took the rank that needed longest."""
        longest = np.zeros(self.iterations)
        for row in self.iteration_rows:
            longest[row.iteration] = max(longest[row.iteration], row.end - row.start)
        return longest

    def _at(self, time: float, action: Callable[..., None], *arguments: object) -> None:
        heapq.heappush(self._events, (time, next(self._ticket), action, arguments))

    # Ranks

    def _advance(self, rank: Rank) -> None:
        """Execute instructions of a rank until it computes or waits."""
        while not rank.is_dead:
            if rank.place == len(rank.program) and not self._begin_iteration(rank):
                return
            instruction = rank.program[rank.place]
            if self._fault.hangs(rank.number, rank.iteration, rank.place):
                rank.is_dead = True
                return
            rank.place += 1
            if isinstance(instruction, Compute):
                self._at(self.now + self._compute_seconds(rank, instruction), self._advance, rank)
                return
            if isinstance(instruction, Put):
                self._enqueue(rank, instruction)
            else:
                kernel = rank.handles[instruction.handle]
                if not kernel.done:
                    kernel.is_awaited = True
                    return

    def _compute_seconds(self, rank: Rank, instruction: Compute) -> float:
        noise, number, iteration = self._noise, rank.number, rank.iteration
        seconds, data, segment = instruction
        seconds *= (
            noise.speed[iteration][number]
            * noise.segments[iteration][number][segment]
            * noise.data[iteration][self.job.replica[number]][data]
            * self._fault.compute(number, iteration, data)
        )
        return seconds + noise.stalls.get((iteration, number, segment), 0.0)

    def _begin_iteration(self, rank: Rank) -> bool:
        """End the iteration of a rank and begin its next; false when there is none."""
        if rank.iteration >= 0:
            self.iteration_rows.append(IterationRow(rank.number, rank.iteration, rank.begin, self.now))
        rank.iteration += 1
        if rank.iteration == self.iterations:
            return False
        rank.place, rank.begin = 0, self.now
        rank.program = self.job.programs[self._noise.phase[rank.iteration]][rank.number]
        rank.handles = {}
        if rank.number == self._fault.reference:
            for resource, rate in self._fault.capacities(rank.iteration, self.cluster):
                if self._capacity[resource] != rate:
                    self._capacity[resource] = rate
                    self._dirty[resource] = None
        return True

    # Kernels

    def _enqueue(self, rank: Rank, instruction: Put) -> None:
        kernel = Kernel(rank, instruction.stream, instruction.shares, len(instruction.shares), rank.iteration)
        for share in kernel.shares:
            key: Hashable = share.communicator
            if share.peer >= 0:
                key = (share.communicator, share.operator, share.peer)
            rank.counts[key] = sequence = rank.counts.get(key, 0) + 1
            kernel.sequences.append(sequence)
        rank.handles[instruction.handle] = kernel
        queue = rank.streams.setdefault(kernel.stream, deque())
        queue.append(kernel)
        if len(queue) == 1:
            self._start(kernel)

    def _start(self, kernel: Kernel) -> None:
        kernel.start = self.now
        me = kernel.rank.number
        kernel.is_stuck = self._fault.sticks(me, kernel.iteration, kernel.rank.place)
        self.running[kernel] = None
        for place, (share, sequence) in enumerate(zip(kernel.shares, kernel.sequences, strict=True)):
            ends = None
            if share.peer >= 0:
                ends = (me, share.peer) if share.operator == "send" else (share.peer, me)
            key = (share.communicator, ends, sequence)
            transfer = self.transfers.get(key)
            if transfer is None:
                size = self._size(kernel, share)
                transfer = Transfer(share.operator, share.communicator, ends, _salt(*key), size)
                self.transfers[key] = transfer
            transfer.open.append((kernel, place))
            if ends is not None:
                # One side of a send and recv has arrived.
                are_both_here = len(transfer.open) == 2
                if are_both_here or transfer.state == "sent":
                    del self.transfers[key]
                if transfer.state == "waiting":
                    is_eager = kernel.shares[place].operator == "send" and transfer.size <= self.job.eager
                    if are_both_here or is_eager:
                        self._begin(transfer, kernel.iteration)
                    # With gloo, the sender is through as soon as its bytes are in the operating system.
                    if are_both_here and self.job.buffered and transfer.size <= self.job.buffered:
                        sender = next(end for end in transfer.open if end[0].shares[end[1]].operator == "send")
                        transfer.open.remove(sender)
                        self._at(self.now + 3e-5 + transfer.size / 6e9, self._end_share, *sender)
                elif transfer.state == "sent":  # eager bytes were here before the recv
                    self._at(self.now + 4e-6, self._end_share, kernel, place)
            elif len(transfer.open) == len(self.job.members[share.communicator]):
                del self.transfers[key]
                self._begin(transfer, kernel.iteration)

    def _size(self, kernel: Kernel, share: Share) -> float:
        if not self.job.elastic:
            return share.size
        return share.size * self._noise.data[kernel.iteration][self.job.replica[kernel.rank.number]][share.data]

    def _begin(self, transfer: Transfer, iteration: int) -> None:
        """All have arrived: latency first, then bytes."""
        transfer.state = "moving"
        members = 2 if transfer.ends else len(self.job.members[transfer.communicator])
        delay = self.job.latency * (1.0 + (0.25 * members if members > 2 else 0.0))
        delay += self._noise.late[transfer.salt]
        self._at(self.now + delay, self._launch, transfer, iteration)

    def _end_share(self, kernel: Kernel, place: int) -> None:
        kernel.pending -= 1
        if kernel.pending or kernel.is_stuck:
            return
        del self.running[kernel]
        self._log(kernel, self.now)
        kernel.done = True
        queue = kernel.rank.streams[kernel.stream]
        queue.popleft()
        if queue:
            self._start(queue[0])
        if kernel.is_awaited:
            kernel.is_awaited = False
            self._at(self.now, self._advance, kernel.rank)

    def _log(self, kernel: Kernel, end: float | None) -> None:
        for share, sequence in zip(kernel.shares, kernel.sequences, strict=True):
            who, size = (kernel.rank.number, share.communicator, share.operator), int(self._size(kernel, share))
            self.rows.append(Row(*who, sequence, share.peer, kernel.start, end, size, kernel.iteration))

    # Transfers and flows

    def _launch(self, transfer: Transfer, iteration: int) -> None:
        volume = transfer.size * self._noise.network[transfer.salt]
        if not transfer.ends:
            volume *= VOLUME[transfer.operator](len(self.job.members[transfer.communicator]))
        flows = self._flows(transfer, iteration)
        if volume <= 0 or not flows:
            self._end_transfer(transfer)
            return
        transfer.flows = len(flows)
        for uses, share in flows:
            flow = Flow(uses, volume * share, transfer, self.now)
            is_alone = True
            for resource, _ in uses:
                if self._users[resource] or resource in self._dirty:
                    is_alone = False
                self._users[resource][flow] = None
            if is_alone:
                self._set_rate(flow, min(self._capacity[resource] / weight for resource, weight in uses))
            else:
                self._dirty.update((resource, None) for resource, _ in uses)

    def _flows(self, transfer: Transfer, iteration: int) -> list[FlowShare]:
        members = self.job.members[transfer.communicator]
        if not transfer.ends and transfer.operator == "all_to_all":
            load = [self._noise.load[iteration][rank] * self._fault.load(rank, iteration) for rank in members]
            return self.cluster.exchange_flows(members, load, self.job.coupled)
        key: Hashable = transfer.ends or transfer.communicator
        flows = self._templates.get(key)
        if flows is None:
            if transfer.ends:
                flows = [(tuple((resource, 1.0) for resource in self.cluster.path(*transfer.ends)), 1.0)]
            else:
                flows = self.cluster.ring_flows(members, self.job.coupled)
            self._templates[key] = flows
        return flows

    def _end_flow(self, flow: Flow, version: int) -> None:
        if flow.version != version:
            return
        self._log_rate(flow, 0.0)
        flow.version += 1
        for resource, _ in flow.uses:
            users = self._users[resource]
            del users[flow]
            if users:
                self._dirty[resource] = None
        transfer = flow.transfer
        transfer.flows -= 1
        if not transfer.flows:
            self._end_transfer(transfer)

    def _end_transfer(self, transfer: Transfer) -> None:
        transfer.state = "sent"
        for kernel, place in transfer.open:
            self._end_share(kernel, place)

    # Max-min fairness

    def _share_out(self) -> None:
        """Give new rates to the flows that share, directly or through others, a resource whose use has changed."""
        flows = self._touched()
        if len(flows) == 1:
            for flow in flows:
                self._set_rate(flow, min(self._capacity[resource] / weight for resource, weight in flow.uses))
            return
        weight: dict[int, float] = {}
        for flow in flows:
            for resource, part in flow.uses:
                weight[resource] = weight.get(resource, 0.0) + part
        left = {resource: self._capacity[resource] for resource in weight}
        while flows:
            level = max(1.0, min(left[resource] / weight[resource] for resource in weight))
            full = [resource for resource in weight if left[resource] <= level * weight[resource] * (1 + 1e-9)]
            for flow in self._fix(full, flows, level):
                for resource, part in flow.uses:
                    left[resource] -= level * part
                    weight[resource] -= part
            weight = {resource: part for resource, part in weight.items() if part > 1e-9}

    def _touched(self) -> dict[Flow, None]:
        stack, seen = list(self._dirty), self._dirty
        self._dirty = {}
        flows: dict[Flow, None] = {}
        while stack:
            for flow in self._users[stack.pop()]:
                if flow not in flows:
                    flows[flow] = None
                    for resource, _ in flow.uses:
                        if resource not in seen:
                            seen[resource] = None
                            stack.append(resource)
        return flows

    def _fix(self, full: Sequence[int], flows: dict[Flow, None], level: float) -> Iterable[Flow]:
        """Yield the flows that cross a full resource, which have their rate now, and leave `flows`."""
        for resource in full:
            for flow in self._users[resource]:
                if flow in flows:
                    del flows[flow]
                    self._set_rate(flow, level)
                    yield flow

    def _set_rate(self, flow: Flow, rate: float) -> None:
        if abs(rate - flow.rate) <= 1e-9 * rate:
            return
        self._log_rate(flow, rate)
        flow.left = max(0.0, flow.left - flow.rate * (self.now - flow.since))
        flow.since, flow.rate = self.now, rate
        flow.version += 1
        self._at(self.now + flow.left / rate, self._end_flow, flow, flow.version)

    def _log_rate(self, flow: Flow, rate: float) -> None:
        if not self._nic_log:
            return
        for resource, weight in flow.uses:
            log = self._nic_log.get(resource)
            if log is not None:
                log.append((self.now, (rate - flow.rate) * weight))


def _salt(communicator: int, ends: Pair | None, sequence: int) -> int:
    """Return which of the draws for transfers one gets: the same in the twin."""
    own = 0 if ends is None else ends[0] * 31 + ends[1] * 17
    return (communicator * 7919 + sequence * 104729 + own) % SALTS
