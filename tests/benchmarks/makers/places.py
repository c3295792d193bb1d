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
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from irregulars.messages.kinds import device_kind
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.faults import FAULT_KINDS, Fault

Ints = NDArray[np.int64]

# Parts of the faults of work and of transfers that add a delay; the others make these so many times as long
_DELAYED_WORK: Final = 0.5
_DELAYED_TRANSFERS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Wanted:
    seed: int
    kind: str
    shape: str
    excess: float
    spans: tuple[tuple[int, int], ...]


def draw_fault(case: Wanted, engine: Engine, attempt: int = 0) -> Fault:
    """Draw the fault of a case, to be calibrated, in its first span; another one with each `attempt`."""
    generator, topology = np.random.default_rng([case.seed, 3, attempt]), engine.topology
    kind = FAULT_KINDS[case.kind]
    delayed = _DELAYED_WORK if device_kind(kind.device).is_worker else _DELAYED_TRANSFERS
    by = "add_ms" if generator.random() < delayed else "factor"
    first, past = case.spans[0]
    fault = Fault(case.kind, first=first, past=past, shape=case.shape, excess=case.excess, by=by)
    match kind.device:
        case "gpu":
            return replace(fault, rank=int(generator.integers(topology.world_size)))
        case "link":
            source, destination = generator.choice(plain_links(engine)).tolist()
            return replace(fault, rank=source, peer=destination)
        case str(device) if device in topology.shared:
            one, (place,) = int(generator.choice(plain_devices(engine, device))), kind.places
            named: Any = int(np.flatnonzero(topology.shared[device] == one)[0]) if place == "rank" else str(one)
            return replace(fault, **{place: named})
    raise ValueError(f"kind must be one of a device; got {case.kind!r}")


def plain_devices(engine: Engine, kind: str) -> Ints:
    """Devices of a kind that ranks share, each of which is told from all others."""
    match kind:
        case "host":
            return plain_hosts(engine)
        case "switch":
            return plain_switches(engine)
    return np.array([one[1] for one in _carried_alone(engine) if one[0] == kind])


def plain_hosts(engine: Engine) -> Ints:
    """Hosts of several ranks that are not all ranks of the stages which they hold."""
    topology = engine.topology
    size = topology.settings.gpus_per_host
    stage = np.empty(topology.world_size, dtype=np.int64)
    stage[topology.rank_of_seat] = np.arange(topology.world_size) // topology.stage_ranks
    stages = [len(np.unique(stage[topology.host == host])) for host in range(int(topology.host[-1]) + 1)]
    is_plain = np.array(stages) * topology.stage_ranks > size
    return np.flatnonzero(is_plain & (size > 1))


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
    for name, device in topology.shared.items():
        if device_kind(name).is_worker:  # a host slows work, and no lane as such
            continue
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
