"""Effects of faults in one iteration: longer work, standstill, heavier micro-batches, slower devices.

Nothing else is touched: the waiting follows in the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from irregulars.dtypes import Floats, Ints
from irregulars.errors import InputError
from irregulars.messages.kinds import GPU, STAGE, device_kind
from irregulars.producers.simulator.faults import FAULT_KINDS, Fault
from irregulars.producers.simulator.network import Network, SlowDevice
from irregulars.producers.simulator.noise import FAULTS, generator_of
from irregulars.producers.simulator.settings import NS_PER_MS
from irregulars.producers.simulator.topology import Topology


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of all faults in one iteration; None: none of this sort."""

    # work_factor, stall_ns: Per rank
    work_factor: Floats | None = None
    stall_ns: Floats | None = None
    load: Floats | None = None  # array ``(replicas, micro-batches)``: weight of each micro-batch
    slow_devices: tuple[SlowDevice, ...] = ()  # of the network
    hangs: tuple[Fault, ...] = ()  # the faults that stop a rank


NO_EFFECTS = Effects()


class Faults:
    """Some faults, checked against a cluster.

    `faults`: by number, on which a fault's random draws depend. Raises InputError if a fault names a device that the
    cluster does not have, or a link over which nothing travels, or if its strength is not known yet.
    """

    def __init__(self, topology: Topology, network: Network, faults: Mapping[int, Fault]) -> None:
        self._topology = topology
        self._faults = dict(faults)
        for fault in self._faults.values():
            check_place(fault, topology, network)
            if not fault.is_calibrated:
                rule = "excess must be calibrated before a job runs"
                raise InputError(f"{rule}; got {fault.excess!r} (fault {fault.kind})")

    def effects(self, iteration: int) -> Effects:
        """Return the effects of all faults in this iteration."""
        active = [(n, fault) for n, fault in self._faults.items() if fault.is_active(iteration)]
        if not active:
            return NO_EFFECTS
        settings = self._topology.settings
        work_factor, stall_ns = np.ones(self._topology.world_size), np.zeros(self._topology.world_size)
        load: Floats | None = None
        slow_devices = []
        for number, fault in active:
            part = fault.part(iteration)
            if fault.shape == "fluctuating":
                part = float(generator_of(settings, FAULTS, number, iteration).random())
            factor, add_ms = fault.factor, fault.add_ms
            # A factor of 1 does nothing, so its part above 1 is scaled.
            if part != 1:
                factor, add_ms = 1 + (factor - 1) * part, add_ms * part
            if fault.kind == "uneven_data":
                generator = generator_of(settings, FAULTS, number, iteration)
                sigma = float(np.sqrt(np.log1p(fault.spread**2)))
                shape = settings.replicas, settings.micro_batches
                drawn = generator.lognormal(-(sigma**2) / 2, sigma, shape)
                load = drawn if load is None else load * drawn
            device = FAULT_KINDS[fault.kind].device
            if device_kind(device).is_worker:
                ranks = fault_ranks(fault, self._topology)
                work_factor[ranks] *= factor
                stall_ns[ranks] += add_ms * NS_PER_MS
            elif device is not None:
                is_way = device_kind(device).is_way
                where = (int(fault.rank or 0), int(fault.peer or 0)) if is_way else (_index(fault, self._topology),)
                slow_devices.append(SlowDevice(device, where, factor, add_ms * NS_PER_MS))
        hangs = tuple(fault for _, fault in active if fault.kind == "hang")
        return Effects(work_factor, stall_ns, load, tuple(slow_devices), hangs)


def fault_ranks(fault: Fault, topology: Topology) -> Ints:
    """Return all ranks of a fault: none for ``uneven_data``; of a link the sender first."""
    device = FAULT_KINDS[fault.kind].device
    if device is None:
        return np.empty(0, dtype=np.int64)
    if device == GPU or device_kind(device).is_way:
        return np.array([rank for rank in (fault.rank, fault.peer) if rank is not None])
    if device == STAGE:
        return np.sort(topology.grid[fault.stage].ravel())
    return np.flatnonzero(topology.shared[device] == _index(fault, topology))


def _index(fault: Fault, topology: Topology) -> int:
    """Index of the device of a fault that ranks share: by its name in the fault, or by a rank that uses it."""
    kind = FAULT_KINDS[fault.kind]
    device, (place,) = str(kind.device), kind.places
    if place == "rank":
        return int(topology.shared[device][fault.rank])
    return topology.find(device, str(getattr(fault, place)))


def check_place(fault: Fault, topology: Topology, network: Network) -> None:
    """Raise `InputError` unless the cluster has the device of the fault."""
    for name, value, limit in (
        ("rank", fault.rank, topology.world_size),
        ("dst", fault.peer, topology.world_size),
        ("stage", fault.stage, topology.settings.pp),
    ):
        if value is not None and value >= limit:
            raise InputError(f"{name} must be below {limit}; got {value!r} (fault {fault.kind})")
    fault_ranks(fault, topology)  # raises where there is no such host or switch
    if fault.kind == "slow_link":
        source, destination = int(fault.rank or 0), int(fault.peer or 0)
        if not network.has_link(source, destination):
            reached = sorted(set(network.hop_destination[network.hop_source == source].tolist()))
            raise InputError(
                f"slow_link must name two ranks on different hosts that exchange data; got src={source}, "
                f"dst={destination} (rank {source} sends to {reached or 'no other host'})"
            )
    kind = FAULT_KINDS[fault.kind]
    is_of_network = not device_kind(kind.device).is_worker and kind.places == ("rank",)
    if is_of_network and not np.isin(network.hop_source, fault_ranks(fault, topology)).any():
        rule = f"{fault.kind} must name a rank that talks to another host"
        raise InputError(f"{rule}; got {fault.rank!r} (fault {fault.kind})")
