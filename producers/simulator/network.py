"""How long a transfer takes: latency, and bytes over the slowest device that it crosses.

A *path* is the way of a communicator's or an ordered pair's bytes: the numbers of communicators come first, then each
rank as the sender down the pipeline, then each rank as the receiver up the pipeline, then, where keys and values go
round, each rank as the sender to the next in its context parallel group, then the one that leads nowhere and takes no
time. Between hosts a path consists of
*hops*, from one NIC to another. A collective over several hosts runs one ring per NIC, as NCCL builds them (members
of equal place on their hosts form a ring, and the bytes are split between the rings); inside a host it uses NVLink
and crosses no NIC. Ranks that share a NIC transfer at the same time and get their part of its rate, unless
`producers.simulator.engine` adds the contention that really occurs (``is_nic_contended``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from irregulars.dtypes import Floats, Ints
from irregulars.producers.simulator.settings import NS_PER_S, NS_PER_US
from irregulars.producers.simulator.topology import AXES, Topology


def wire_factor(operator: str, ranks: int) -> float:
    """Bytes that a member of a ring sends per byte of payload (nccl-tests, PERFORMANCE.md).

    >>> wire_factor("all_reduce", 4)
    1.5
    """
    if operator in ("send", "recv"):
        return 1.0
    return (2 if operator == "all_reduce" else 1) * (ranks - 1) / ranks


def ring_path(topology: Topology) -> int:
    """Path of rank 0 to the next in its context parallel group; those of the other ranks follow."""
    return len(topology.groups.communicators) + 2 * topology.world_size


def nowhere_path(topology: Topology) -> int:
    """The path that takes no time: the last one."""
    return ring_path(topology) + (topology.world_size if topology.settings.cp_exchange == "ring" else 0)


@dataclass(frozen=True, slots=True)
class SlowDevice:
    """A fault of the network in one iteration: a factor on the time per byte, and a delay of each transfer."""

    kind: str  # a way between ranks, or one of `Topology.shared`
    where: tuple[int, ...]  # its index; of a way the ranks that send and receive
    factor: float = 1.0
    delay_ns: float = 0.0


class Network:
    """Paths and hops of one job.

    `hop_path`, `hop_source`, `hop_destination`: per hop: its path, and the ranks whose NICs it joins. Sorted by path.
    `hop_load`: per hop: part of a flow's bytes that it carries.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        settings = topology.settings
        hops = [
            _ring_hops(number, communicator.ranks, topology.host)
            for number, communicator in enumerate(topology.groups.communicators)
            if communicator.kind != "pp"  # pipeline groups hold pairs only
        ]
        hops += _pair_hops(topology)
        count = nowhere_path(topology) + 1
        path, source, destination, load = (np.concatenate(column) for column in zip(*hops, strict=True))
        order = np.argsort(path, kind="stable")
        self.hop_path, self.hop_source = path[order], source[order]
        self.hop_destination, self.hop_load = destination[order], load[order]
        self.is_between_hosts = np.bincount(self.hop_path, minlength=count) > 0
        uses_nvlink = ~self.is_between_hosts
        steps = np.ones(count)  # rounds of messages: the depth of a tree over the members, 1 for a pair
        for number, communicator in enumerate(topology.groups.communicators):
            steps[number] = np.ceil(np.log2(len(communicator.ranks)))
            hosts = topology.host[list(communicator.ranks)]
            uses_nvlink[number] = len(np.unique(hosts)) < len(hosts)
        self._latency_ns = steps * np.where(
            self.is_between_hosts, settings.network_latency_us * NS_PER_US, settings.nvlink_latency_us * NS_PER_US
        )
        # The last path leads nowhere, and takes no time.
        self._latency_ns[-1] = 0.0
        self._nvlink_ns_per_byte = np.where(uses_nvlink, NS_PER_S / settings.nvlink_bytes_per_s, 0.0)

    def crossings(self, path: Ints) -> tuple[Ints, Ints]:
        """Return each crossing of a hop by a flow, in order of flows: number of the flow, and of the hop.

        `path`: path of each flow.
        """
        paths = np.arange(len(self.is_between_hosts))
        first = np.searchsorted(self.hop_path, paths)
        counts = np.searchsorted(self.hop_path, paths, side="right") - first
        return count_up(first[path], counts[path])

    def has_link(self, source: int, destination: int) -> bool:
        """Whether any transfer of the job goes from this rank's NIC to that one's."""
        return bool(np.any((self.hop_source == source) & (self.hop_destination == destination)))

    def path_times(self, slow: Sequence[SlowDevice] = ()) -> tuple[Floats, Floats]:
        """Latency in ns, and ns per byte, of each path."""
        hop_ns_per_byte, delay_ns = self.hop_times(slow)
        ns_per_byte, latency_ns = self._nvlink_ns_per_byte.copy(), self._latency_ns.copy()
        if len(self.hop_path):
            paths, offsets = np.unique(self.hop_path, return_index=True)
            ns_per_byte[paths] = np.maximum(ns_per_byte[paths], np.maximum.reduceat(hop_ns_per_byte, offsets))
            latency_ns[paths] += np.maximum.reduceat(delay_ns, offsets)
        return latency_ns, ns_per_byte

    def hop_times(self, slow: Sequence[SlowDevice] = ()) -> tuple[Floats, Floats]:
        """Return the ns per byte of a flow, and the delay in ns, of each hop."""
        hops, topology, s = len(self.hop_path), self._topology, self._topology.settings
        factor, delay_ns = np.ones(hops), np.zeros(hops)
        for kind, device_of in topology.shared.items():
            own = [one for one in slow if one.kind == kind]
            if not own:
                continue
            own_factor, own_delay_ns = np.ones(len(device_of)), np.zeros(len(device_of))
            for one in own:
                own_factor[one.where[0]] *= one.factor
                own_delay_ns[one.where[0]] += one.delay_ns
            # The slower of the devices at both ends counts.
            ends = device_of[self.hop_source], device_of[self.hop_destination]
            factor *= np.maximum(*(own_factor[end] for end in ends))
            delay_ns += np.maximum(*(own_delay_ns[end] for end in ends))
        for one in slow:
            if len(one.where) > 1:
                on_link = (self.hop_source == one.where[0]) & (self.hop_destination == one.where[1])
                factor[on_link] *= one.factor
                delay_ns[on_link] += one.delay_ns
        # Contending ranks are in each other's way when they do transfer at the same time: the engine adds that.
        sharers = 1 if s.is_nic_contended else min(s.gpus_per_nic, s.gpus_per_host)
        return np.asarray(self.hop_load * factor * NS_PER_S * sharers / s.nic_bytes_per_s), delay_ns


# Path, source, destination and load of each hop
_Hops = tuple[Ints, Ints, Ints, Floats]


def _hops(path: int | Ints, source: Ints, destination: Ints, load: float) -> _Hops:
    return np.broadcast_to(path, source.shape), source, destination, np.full(source.shape, load)


def count_up(first: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Count up from each `first`, `counts` times: its index, and the number.

    >>> owner, number = count_up(np.array([5, 9]), np.array([2, 1]))
    >>> owner.tolist(), number.tolist()
    ([0, 0, 1], [5, 6, 9])
    """
    owner = np.repeat(np.arange(len(first)), counts)
    begins = np.cumsum(counts) - counts
    return owner, first[owner] + np.arange(len(owner)) - begins[owner]


def _ring_hops(path: int, ranks: Sequence[int], host: Ints) -> _Hops:
    members = np.array(ranks)
    _, first, counts = np.unique(host[members], return_index=True, return_counts=True)
    # All members are on one host: no hop leaves it.
    if len(first) == 1:
        first, counts = first[:0], np.ones(1, dtype=np.int64)
    # As many rings as the host with the fewest members can join.
    rings = int(counts.min())
    grid = members[np.add.outer(first, np.arange(rings))]  # members are in order of rank, and so of host
    return _hops(path, grid.ravel(), np.roll(grid, -1, axis=0).ravel(), 1 / rings)


def _pair_hops(topology: Topology) -> list[_Hops]:
    """One hop for each ordered pair of ranks on different hosts that send to each other.

    These are neighbours in the pipeline, and in context parallel groups in which keys and values go round.
    """
    settings, grid = topology.settings, topology.grid
    stages = settings.pp if settings.model_chunks > 1 else settings.pp - 1
    lower, upper = grid[:stages].ravel(), np.roll(grid, -1, axis=0)[:stages].ravel()
    down = len(topology.groups.communicators)
    pairs = [(down + lower, lower, upper), (down + topology.world_size + lower, upper, lower)]
    if settings.cp_exchange == "ring" and settings.cp > 1:
        source, target = grid.ravel(), np.roll(grid, -1, axis=AXES.index("cp")).ravel()
        pairs.append((ring_path(topology) + source, source, target))
    hops = []
    for path, source, target in pairs:
        is_far = topology.host[source] != topology.host[target]
        hops.append(_hops(path[is_far], source[is_far], target[is_far], 1.0))
    return hops
