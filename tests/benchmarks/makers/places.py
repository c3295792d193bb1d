"""Where a fault may sit so that what it does tells it from every other device.

Drawn by rule, before anything is judged. A device of the network is told by the *lanes* (communicators and directed
pairs of ranks) that it slows. If another device carries exactly the same lanes, nobody can know which of the two it
was, and neither is drawn: so each link of a ring that has no other traffic, and a NIC which serves such a ring alone.
The communicator of all ranks does not count: it carries some bytes, and hardly shows a slow device. Links are those
of sends and recvs alone: in which order a collective connects its ranks stands in no log.
A host must be less than a stage of the pipeline, and a stage not a host.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.faults import Fault

Ints = NDArray[np.int64]

_DELAYED: Final = {"slow_rank": 0.5, "slow_host": 0.5, "slow_nic": 0.25, "slow_link": 0.25, "slow_switch": 0.25}
"""Part of the faults that add a delay; the others make work or transfers so many times as long."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The fault that a job is to have."""

    seed: int
    kind: str
    shape: str
    excess: float
    spans: tuple[tuple[int, int], ...]


def draw_fault(case: Wanted, engine: Engine, attempt: int = 0) -> Fault:
    """Draw the fault of a case, to be calibrated, in its first span; another one with each `attempt`."""
    generator = np.random.default_rng([case.seed, 3, attempt])
    by = "add_ms" if generator.random() < _DELAYED[case.kind] else "factor"
    first, past = case.spans[0]
    fault = Fault(case.kind, first=first, past=past, shape=case.shape, excess=case.excess, by=by)
    match case.kind:
        case "slow_rank":
            return replace(fault, rank=int(generator.integers(engine.topology.world_size)))
        case "slow_host":
            return replace(fault, host=str(generator.choice(plain_hosts(engine))))
        case "slow_nic":
            nic = int(generator.choice(plain_nics(engine)))
            return replace(fault, rank=int(np.flatnonzero(engine.topology.nic == nic)[0]))
        case "slow_link":
            source, destination = generator.choice(plain_links(engine)).tolist()
            return replace(fault, rank=source, peer=destination)
        case "slow_switch":
            return replace(fault, switch=str(generator.choice(plain_switches(engine))))
    raise ValueError(f"kind must be one of a device; got {case.kind!r}")


def plain_hosts(engine: Engine) -> Ints:
    """Hosts of several ranks that are not all ranks of the stages which they hold."""
    topology = engine.topology
    size = topology.settings.gpus_per_host
    stage = np.empty(topology.world_size, dtype=np.int64)
    stage[topology.rank_of_seat] = np.arange(topology.world_size) // topology.stage_ranks
    stages = [len(np.unique(stage[topology.host == host])) for host in range(int(topology.host[-1]) + 1)]
    is_plain = np.array(stages) * topology.stage_ranks > size
    return np.flatnonzero(is_plain & (size > 1))


def plain_nics(engine: Engine) -> Ints:
    """NICs whose lanes no other device carries."""
    return np.array([one[1] for one in _carried_alone(engine) if one[0] == "nic"])


def plain_links(engine: Engine) -> Ints:
    """Directed pairs of ranks that send and recv, one row each, whose lanes no other device carries."""
    network, found = engine.network, _carried_alone(engine)
    is_collective = (network.hop_path < len(engine.topology.groups.communicators)) & _is_loaded(engine)
    ringed = set(zip(network.hop_source[is_collective].tolist(), network.hop_destination[is_collective].tolist(),
                     strict=True))  # fmt: skip
    return np.array([one[1:] for one in found if one[0] == "link" and one[1:] not in ringed])


def plain_switches(engine: Engine) -> Ints:
    """Switches above several hosts, whose lanes no other device carries, and beside which there are others."""
    topology, alone = engine.topology, _carried_alone(engine)
    every = len(np.unique(engine.network.hop_path[_is_loaded(engine)]))
    return np.array(
        [one[1] for one, lanes in alone.items() if one[0] == "switch" and lanes < every
         and len(np.unique(topology.host[topology.switch == one[1]])) > 1]
    )  # fmt: skip


def _carried_alone(engine: Engine) -> dict[_Device, int]:
    """Devices of the network with lanes that are no other device's, and the number of these lanes."""
    found = _carried(engine)
    times = Counter(found.values())
    return {device: lanes[1] for device, lanes in found.items() if times[lanes] == 1}


_Device = tuple[str, int] | tuple[str, int, int]


def _carried(engine: Engine) -> dict[_Device, tuple[int, int]]:
    """For each device of the network the lanes that it carries: a hash over them, and their number."""
    topology, network = engine.topology, engine.network
    is_loaded = _is_loaded(engine)
    source, destination, path = (
        hops[is_loaded] for hops in (network.hop_source, network.hop_destination, network.hop_path)
    )
    mark = np.random.default_rng(0).integers(0, 1 << 62, int(path.max(initial=0)) + 1, dtype=np.uint64)
    found: dict[_Device, tuple[int, int]] = {}
    for name, device in (("nic", topology.nic), ("switch", topology.switch)):
        ends = np.concatenate([device[source], device[destination]])
        pairs = np.unique(np.stack([ends, np.concatenate([path, path])], axis=1), axis=0)
        for one, hashed in _hashes(pairs[:, 0], mark[pairs[:, 1]]):
            found[name, one] = hashed
    width = topology.world_size
    pairs = np.unique(np.stack([source * width + destination, path], axis=1), axis=0)
    for one, hashed in _hashes(pairs[:, 0], mark[pairs[:, 1]]):
        found["link", one // width, one % width] = hashed
    return found


def _is_loaded(engine: Engine) -> NDArray[np.bool_]:
    """Which hops carry more than a few bytes: all but those of the communicator of all ranks."""
    worlds = [number for number, one in enumerate(engine.topology.groups.communicators) if one.kind == "world"]
    return ~np.isin(engine.network.hop_path, worlds)


def _hashes(device: Ints, mark: NDArray[np.uint64]) -> list[tuple[int, tuple[int, int]]]:
    """Sum of marks (modulo 2^64: any order) and number of lanes of each device; `device` ascends."""
    devices, first, counts = np.unique(device, return_index=True, return_counts=True)
    sums = np.add.reduceat(mark, first) if len(first) else mark[:0]
    return list(zip(devices.tolist(), zip(sums.tolist(), counts.tolist(), strict=True), strict=True))
