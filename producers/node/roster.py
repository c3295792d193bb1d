"""The ranks of this node, the GPU of each, and which rank reports a NIC that several share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.bundles import group_of
from irregulars.messages.records import Header
from irregulars.producers.importers.fabric import Fabric

_SAMPLED: Final = ("bandwidth", "gpu_health")


@dataclass(frozen=True, slots=True)
class Owner:
    """The rank to which a device's samples belong."""

    job: str
    attempt: int
    rank: int
    group: str | None = field(default=None, compare=False)
    start: str | None = None
    since_ns: int | None = None

    def is_beside(self, other: Owner) -> bool:
        """Whether another rank is of the same start of a job."""
        return (self.job, self.attempt, self.start) == (other.job, other.attempt, other.start)

    def header(self, schema: str, rows_before: int, watermark_ns: int, names: tuple[str, ...]) -> Header:
        """Header of a batch of this rank."""
        own, place = (self.job, self.attempt, self.rank), (self.group, self.start, self.since_ns)
        return Header(schema, *own, rows_before, watermark_ns, names, *place)


@dataclass(frozen=True, slots=True)
class Samples:
    """Mean rates of one device, each over the interval since the sample before."""

    owner: Owner  # the rank that the samples are of
    # device, path: Name of the device; index into `messages.records.PATHS`
    device: str
    path: int
    times_ns: np.ndarray  # int64, shape (n,), growing: ends of the intervals
    rates: np.ndarray  # float64, shape (n, 2): bytes/s sent and received; NaN: not known


@dataclass(frozen=True, slots=True)
class HealthSample:
    """State of one GPU at `time_ns`; ``values`` are columns of ``gpu_health`` by name, those not known are absent."""

    owner: Owner
    device: str
    time_ns: int
    values: dict[str, float]


class Roster:
    """The ranks that were announced on this host. A GPU has one rank; a NIC belongs to the first that named it.

    `host`: name of this host, for announcements that have none. `nearest_nics`: NIC of each GPU index by the PCI
    tree, for announcements that have none. `gpus`: GPU indices whose traffic and health are sampled.
    `is_sampling_nics`: whether NICs are sampled. `fabric`: which switches the NICs are below, for announcements
    that do not name them.
    """

    def __init__(
        self,
        host: str,
        nearest_nics: Mapping[int, str] | None = None,
        gpus: Sequence[int] = (),
        *,
        is_sampling_nics: bool = True,
        fabric: Fabric | None = None,
    ) -> None:
        self.fabric = fabric or Fabric()
        self._host, self._nearest_nics = host, dict(nearest_nics or {})
        self._sampled_gpus, self._is_sampling_nics = frozenset(gpus), is_sampling_nics
        # The NICs and GPUs that are sampled, with their owners
        self.nics: dict[str, Owner] = {}
        self.gpus: dict[int, Owner] = {}
        # The rank that uses each device, by its name (``gpu3``, ``mlx5_0``), whether it is sampled or not
        self.users: dict[str, Owner] = {}

    def admit(self, announcement: Announcement) -> Announcement:
        """Add a rank, and complete its announcement: host, NIC, switches, and the sources that we sample."""
        nic = announcement.nic or self._nearest_nics.get(-1 if announcement.gpu is None else announcement.gpu)
        host = announcement.host or self._host
        group = group_of(host, announcement.rank)
        own = (announcement.job, announcement.attempt, announcement.rank)
        owner = Owner(*own, group, announcement.start, announcement.since_ns)
        is_gpu_sampled, is_nic_sampled = self.assign(owner, announcement.gpu, nic)
        # `is_nic_sampled` is 0 or 1: without the GPU, ``bandwidth`` alone or nothing.
        sampled = _SAMPLED if is_gpu_sampled else _SAMPLED[:is_nic_sampled]
        sources = tuple(dict.fromkeys((*announcement.sources, *sampled)))
        return self.fabric.place(replace(announcement, host=host, nic=nic, group=group, sources=sources))

    def assign(self, owner: Owner, gpu: int | None, nic: str | None) -> tuple[bool, bool]:
        """Add a rank, also one that is not announced through this agent.

        Returns whether its GPU, and its NIC, are sampled as its own.
        """
        is_gpu_sampled = gpu is not None and gpu in self._sampled_gpus
        if gpu is not None:
            self.users[f"gpu{gpu}"] = owner
            if is_gpu_sampled:
                self.gpus[gpu] = owner  # the newest: an earlier job may have been killed
        nic = nic or self._nearest_nics.get(-1 if gpu is None else gpu)
        if nic is None:
            return is_gpu_sampled, False
        # Where NICs are not sampled, only `users` is filled.
        for owners in (self.users, self.nics)[: 1 + self._is_sampling_nics]:
            holder = owners.get(nic)
            # The first rank of a start keeps a shared NIC, so that its bytes count once; another start takes it over.
            if holder is None or holder.rank == owner.rank or not holder.is_beside(owner):
                owners[nic] = owner
        return is_gpu_sampled, self._is_sampling_nics and self.nics[nic] == owner

    def release(self, last: Heartbeat) -> None:
        """Remove a rank that has ended, by its last heartbeat: samples of its devices are dropped."""
        ended = Owner(last.job, last.attempt, last.rank, start=last.start, since_ns=last.since_ns)
        self.nics = {name: owner for name, owner in self.nics.items() if owner != ended}
        self.gpus = {index: owner for index, owner in self.gpus.items() if owner != ended}
        self.users = {device: owner for device, owner in self.users.items() if owner != ended}

    @property
    def owners(self) -> tuple[Owner, ...]:
        """Ranks whose devices are sampled."""
        return tuple(dict.fromkeys([*self.nics.values(), *self.gpus.values()]))
