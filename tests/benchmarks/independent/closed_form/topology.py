"""Names of the arrays that the modules hand to one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Flags = NDArray[np.bool_]

Item = TypeVar("Item")


def choose(rng: np.random.Generator, items: Sequence[Item]) -> Item:
    return items[int(rng.integers(len(items)))]


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A number between low and high whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def autoregressive(rng: np.random.Generator, n: int, rho: float, sigma: float) -> Floats:
    """Slowly changing noise around 0."""
    x = np.empty(n)
    x[0] = rng.normal(0, sigma)
    for i in range(1, n):
        x[i] = rho * x[i - 1] + rng.normal(0, sigma * np.sqrt(1 - rho * rho))
    return x


DIMS = ("tp", "cp", "ep", "zs", "dp", "pp")  # the first varies fastest with the rank (Megatron's order)
KIND_IN_CONTRACT = {"tp": "tp", "cp": "cp", "ep": "ep", "dp": "dp", "zero": "dp", "rep": "dp", "edp": "dp"}


class Layout:
    """A rank is lane + stage * lanes; all stage-local communicators are sets of lanes, alike in every stage.

    zs splits data parallelism in two: shards (zs) and replicas of the shards (dp), as hybrid sharding does.
    """

    def __init__(self, dims: Mapping[str, int]) -> None:
        self.dims = {name: int(dims.get(name, 1)) for name in DIMS}
        self.pp = self.dims["pp"]
        self.lanes = int(np.prod([self.dims[d] for d in DIMS if d != "pp"]))
        self.size = self.lanes * self.pp
        # Lanes that read the same data.
        self.replica: Ints = np.arange(self.lanes) // (self.dims["tp"] * self.dims["cp"])
        self.groups: dict[str, Ints] = {}  # kind -> (number of groups, members) lanes
        axes: dict[str, tuple[str, ...]] = {"tp": ("tp",), "cp": ("cp",), "ep": ("ep",)}
        if self.dims["zs"] > 1:
            axes |= {"zero": ("cp", "ep", "zs"), "rep": ("dp",)}
        else:
            axes["dp"] = ("cp", "ep", "dp")
        if self.dims["ep"] > 1:
            axes["edp"] = ("zs", "dp")
        for kind, names in axes.items():
            order = [d for d in reversed(DIMS) if d != "pp"]
            lanes = np.arange(self.lanes).reshape([self.dims[d] for d in order])
            chosen = [order.index(n) for n in order if n in names]
            lanes = np.moveaxis(lanes, chosen, range(lanes.ndim - len(chosen), lanes.ndim))
            members = lanes.reshape(-1, int(np.prod([self.dims[n] for n in names])))
            if members.shape[1] > 1:
                self.groups[kind] = members
        self.lane_group: dict[str, Ints] = {}
        for kind, members in self.groups.items():
            index = np.empty(self.lanes, np.int64)
            index[members] = np.arange(len(members))[:, None]
            self.lane_group[kind] = index

    def ranks_of(self, kind: str, stage: int) -> Ints:
        return self.groups[kind] + stage * self.lanes


@dataclass
class Health:
    """What is left of the network, where 1 is all of it."""

    tx: Floats  # by NIC
    rx: Floats
    link: dict[tuple[int, int], float] = field(default_factory=dict)  # (source rank, target rank) -> share left

    def copy(self) -> Health:
        return Health(self.tx.copy(), self.rx.copy(), dict(self.link))


@dataclass(frozen=True)
class Hardware:
    """What hosts and their network are made of; rates are in bytes a second, the latency in seconds."""

    gpus: int  # a host
    gpus_per_nic: int
    rails: bool  # a leaf switch serves one rail of a pod, instead of whole hosts
    hosts_per_switch: int
    nic_rate: float
    nvlink_rate: float
    latency: float


class Plan(NamedTuple):
    """How the groups of a kind use the network."""

    crosses: bool  # between hosts
    channels: int  # NICs a host
    share: int  # groups that share a NIC
    members_a_host: float


class Fabric:
    """Where ranks live, and what the NICs, switches and links between them carry."""

    def __init__(self, layout: Layout, hardware: Hardware, rng: np.random.Generator) -> None:
        ranks = np.arange(layout.size)
        self.layout = layout
        self.gpus, self.gpus_per_nic, self.rails = hardware.gpus, hardware.gpus_per_nic, hardware.rails
        self.nic_rate, self.nvlink_rate = hardware.nic_rate, hardware.nvlink_rate
        self.latency = hardware.latency
        self.host: Ints = ranks // self.gpus
        self.gpu: Ints = ranks % self.gpus
        self.nics_per_host = self.gpus // self.gpus_per_nic
        self.nic_index: Ints = self.gpu // self.gpus_per_nic
        self.nic: Ints = self.host * self.nics_per_host + self.nic_index
        self.hosts, self.nics = int(self.host[-1]) + 1, int(self.nic[-1]) + 1
        pod = self.host // hardware.hosts_per_switch
        self.switch: Ints = pod * self.nics_per_host + self.nic_index if self.rails else pod
        self.switches = int(self.switch.max()) + 1
        tx, rx = (np.clip(rng.normal(1, 0.006, self.nics), 0.97, 1.03) for _ in range(2))
        self.health = Health(tx, rx)
        self.plan = {kind: self._plan(members) for kind, members in layout.groups.items()}

    def _plan(self, members: Ints) -> Plan:
        host, nic = self.host[members], self.nic[members]
        crosses = bool((host != host[:, :1]).any())
        hosts = len(np.unique(host[0]))
        channels = max(1, len(np.unique(nic[0])) // hosts)
        pairs = np.unique(np.stack([np.repeat(np.arange(len(members)), members.shape[1]), nic.ravel()]), axis=1)
        share = int(np.bincount(pairs[1]).max())
        return Plan(crosses, channels, share, members.shape[1] / hosts)

    def group_rate(self, kind: str, stage: int, health: Health) -> Floats:
        """Bytes a second on the ring of every group of a kind: its slowest NIC's, or NVLink's."""
        plan = self.plan[kind]
        members = self.layout.ranks_of(kind, stage)
        if not plan.crosses:
            return np.full(len(members), self.nvlink_rate)
        left: Floats = np.minimum(health.tx, health.rx)[self.nic[members]].min(1)
        rate: Floats = left * self.nic_rate * plan.channels / plan.share
        return rate

    def world_rate(self, health: Health) -> float:
        """Bytes a second on the ring of all ranks, which is as slow as the slowest NIC."""
        return float(np.minimum(health.tx, health.rx).min() * self.nic_rate / self.gpus_per_nic)

    def pair_rate(self, source: int, target: int, health: Health) -> Floats:
        """Bytes a second from each rank of stage `source` to the same lane of stage `target`."""
        lanes = np.arange(self.layout.lanes)
        a, b = lanes + source * self.layout.lanes, lanes + target * self.layout.lanes
        rate = np.minimum(health.tx[self.nic[a]], health.rx[self.nic[b]]) * self.nic_rate / self.gpus_per_nic
        same_host = self.host[a] == self.host[b]
        rate = np.where(same_host, self.nvlink_rate, rate)
        for (src, dst), left in health.link.items():
            if src // self.layout.lanes == source and dst // self.layout.lanes == target:
                rate[src % self.layout.lanes] *= left
        return rate


def ring_traffic(operator: str, n: int) -> float:
    """Bytes that each of n members moves, per byte of the whole buffer."""
    if operator == "all_reduce":
        return 2 * (n - 1) / n
    return 0.0 if operator == "barrier" else (n - 1) / n


@dataclass
class Communicators:
    """All communicators of a job, one entry each, and the number of the first of every kind."""

    names: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    members: list[Ints] = field(default_factory=list)
    base: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, kind: str, members: Ints) -> None:
        self.names.append(name)
        self.kinds.append(kind)
        self.members.append(members)


def communicators(layout: Layout) -> Communicators:
    table = Communicators()
    for kind in layout.groups:
        table.base[kind] = len(table.names)
        for stage in range(layout.pp):
            for ranks in layout.ranks_of(kind, stage):
                table.add(f"{kind}{len(table.names) - table.base[kind]}", KIND_IN_CONTRACT[kind], ranks)
    if layout.pp > 1:
        table.base["pp"] = len(table.names)
        for lane in range(layout.lanes):
            table.add(f"pp{lane}", "pp", lane + np.arange(layout.pp) * layout.lanes)
    table.base["world"] = len(table.names)
    table.add("world", "world", np.arange(layout.size))
    return table
