"""The machines: ranks on hosts, NICs, leaf switches; each is a resource with a capacity in bytes per second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeVar

GB: Final = 1e9

Item = TypeVar("Item")

Nic = tuple[int, int]  # a host, and which of its NICs
Pair = tuple[int, int]  # a rank that sends, and the one that receives
Uses = tuple[tuple[int, float], ...]
"""The resources of a flow, each with the bytes that cross it for one byte of the flow."""

FlowShare = tuple[Uses, float]  # a flow of an operator, and which share of the operator's bytes it carries


@dataclass
class Cluster:
    """Resources by number, and the way between any two ranks."""

    world: int
    gpus: int  # of a host
    nics: int  # of a host; gpus / nics ranks share one
    hosts_per_leaf: int
    nic_rate: float
    nvlink_rate: float
    oversubscription: float
    capacity: list[float] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    nic_tx: dict[Nic, int] = field(default_factory=dict)
    nic_rx: dict[Nic, int] = field(default_factory=dict)
    nvlink_tx: dict[int, int] = field(default_factory=dict)
    nvlink_rx: dict[int, int] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    link: dict[Pair, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hosts = self.world // self.gpus
        self.leaves = -(-self.hosts // self.hosts_per_leaf)
        for host in range(self.hosts):
            for nic in range(self.nics):
                self.nic_tx[host, nic] = self._add(f"tx{host}.{nic}", self.nic_rate)
                self.nic_rx[host, nic] = self._add(f"rx{host}.{nic}", self.nic_rate)
        for rank in range(self.world):
            self.nvlink_tx[rank] = self._add(f"nvtx{rank}", self.nvlink_rate)
            self.nvlink_rx[rank] = self._add(f"nvrx{rank}", self.nvlink_rate)
        for leaf in range(self.leaves):
            members = min(self.hosts_per_leaf, self.hosts - leaf * self.hosts_per_leaf)
            rate = self.nic_rate * self.nics * members / self.oversubscription
            self.up[leaf], self.down[leaf] = self._add(f"up{leaf}", rate), self._add(f"down{leaf}", rate)

    def _add(self, name: str, rate: float) -> int:
        self.capacity.append(rate)
        self.name.append(name)
        return len(self.capacity) - 1

    def host(self, rank: int) -> int:
        return rank // self.gpus

    def nic(self, rank: int) -> Nic:
        return self.host(rank), (rank % self.gpus) * self.nics // self.gpus

    def leaf(self, rank: int) -> int:
        return self.host(rank) // self.hosts_per_leaf

    def nic_ranks(self, nic: Nic) -> list[int]:
        return [rank for rank in range(self.world) if self.nic(rank) == nic]

    def add_link(self, source: int, target: int) -> None:
        """Add a resource for what one rank sends to another, as wide as their path until a fault narrows it."""
        rate = min(self.capacity[resource] for resource in self.path(source, target))
        self.link[source, target] = self._add(f"link{source}>{target}", rate)

    def path(self, source: int, target: int) -> list[int]:
        """Return the resources between two ranks."""
        if self.host(source) == self.host(target):
            way = [self.nvlink_tx[source], self.nvlink_rx[target]]
        else:
            way = [self.nic_tx[self.nic(source)], self.nic_rx[self.nic(target)]]
            if self.leaf(source) != self.leaf(target):
                way += [self.up[self.leaf(source)], self.down[self.leaf(target)]]
        if (source, target) in self.link:
            way.append(self.link[source, target])
        return way

    def ring_edges(self, ranks: Sequence[int]) -> list[tuple[int, int, float]]:
        """Return the (source, target, share of the bytes) of a ring.

        Where several members live on each host, the edges between hosts are spread over them as NCCL spreads
        channels: the k-th member of one host talks to the k-th of the next.
        """
        by_host: dict[int, list[int]] = {}
        for rank in ranks:
            by_host.setdefault(self.host(rank), []).append(rank)
        groups = list(by_host.values())
        if len(groups) == 1:
            return [(a, b, 1.0) for a, b in round_pairs(ranks)] if len(ranks) > 1 else []
        edges = []
        for group, after in round_pairs(groups):
            edges += [(a, b, 1.0) for a, b in pairwise(group)]
            channels = min(len(group), len(after))
            edges += [(group[k], after[k], 1.0 / channels) for k in range(channels)]
        return edges

    def ring_flows(self, ranks: Sequence[int], coupled: bool) -> list[FlowShare]:
        """Return the flows of a ring.

        Coupled: the chunks of a ring go round in step, one rate for all edges. Otherwise every edge between hosts is
        a flow of its own (deep buffers), and the NVLink edges are one.
        """
        inside: dict[int, float] = {}
        between: list[FlowShare] = []
        for source, target, share in self.ring_edges(ranks):
            way = self.path(source, target)
            if coupled or self.host(source) == self.host(target):
                for resource in way:
                    inside[resource] = inside.get(resource, 0.0) + share
            else:
                between.append((tuple((resource, 1.0) for resource in way), share))
        return ([(tuple(inside.items()), 1.0)] if inside else []) + between

    def exchange_flows(self, ranks: Sequence[int], load: Sequence[float], coupled: bool = False) -> list[FlowShare]:
        """Return a flow for each source of an all_to_all, spread over the targets by the load they attract."""
        total = sum(load)
        flows: list[FlowShare] = []
        for source in ranks:
            uses: dict[int, float] = {}
            sent = 0.0
            for target, attracted in zip(ranks, load, strict=True):
                if target == source:
                    continue
                part = attracted / total
                sent += part
                for resource in self.path(source, target):
                    uses[resource] = uses.get(resource, 0.0) + part
            flows.append((tuple((resource, weight / sent) for resource, weight in uses.items()), sent))
        return [_as_one(flows)] if coupled else flows


def _as_one(flows: Sequence[FlowShare]) -> FlowShare:
    uses: dict[int, float] = {}
    for way, sent in flows:
        for resource, weight in way:
            uses[resource] = uses.get(resource, 0.0) + weight * sent
    return tuple(uses.items()), 1.0


def round_pairs(items: Sequence[Item]) -> Iterator[tuple[Item, Item]]:
    """Return every item with the one after it, the last with the first."""
    return zip(items, [*items[1:], *items[:1]], strict=True)


VOLUME: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: n - 1.0,
    "all_to_all": lambda n: 1.0,
    "broadcast": lambda n: 1.0,
    "barrier": lambda n: 0.0,
}
"""Bytes over each ring edge for one byte of `size_bytes` (all_gather logs its input, a shard), by members."""


def seconds_per_byte(cluster: Cluster, ranks: Sequence[int], operator: str) -> float:
    """Return how long a lone operator takes for one byte of `size_bytes` on healthy resources."""
    if operator == "all_to_all":
        flows = cluster.exchange_flows(ranks, [1.0] * len(ranks))
    else:
        flows = cluster.ring_flows(ranks, coupled=False)
    slowest = (share * max(weight / cluster.capacity[r] for r, weight in uses) for uses, share in flows)
    return max(slowest, default=0.0) * VOLUME[operator](len(ranks))
