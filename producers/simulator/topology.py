"""Where the ranks of a simulated job live, and which groups they form.

Ranks follow Megatron's order, ``rank = (stage * dp + dp_index) * tp + tp_index``; hosts are filled in order of rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from producers.simulator.settings import SimulatorSettings
from streams.errors import InputError
from streams.records import Announcement, Communicator

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Topology:
    """The cluster and the groups of one job.

    Attributes
    ----------
    host, gpu, nic, switch
        Per rank: index of its host, of its GPU inside the host, of its NIC and of its leaf switch.
    nic_host
        Per NIC: its host.
    """

    settings: SimulatorSettings

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.settings.world_size

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.settings.dp * self.settings.tp

    @cached_property
    def grid(self) -> Ints:
        """All ranks, as an array of shape ``(pp, dp, tp)``."""
        s = self.settings
        return np.arange(self.world_size).reshape(s.pp, s.dp, s.tp)

    @cached_property
    def host(self) -> Ints:
        """Host of each rank."""
        return np.arange(self.world_size) // self.settings.gpus_per_host

    @cached_property
    def gpu(self) -> Ints:
        """Local GPU of each rank."""
        return np.arange(self.world_size) % self.settings.gpus_per_host

    @cached_property
    def nic(self) -> Ints:
        """NIC of each rank."""
        return self.host * self._nics_per_host + self.gpu // self.settings.gpus_per_nic

    @cached_property
    def nic_host(self) -> Ints:
        """Host of each NIC."""
        return np.arange(int(self.nic[-1]) + 1) // self._nics_per_host

    @cached_property
    def nic_rank(self) -> Ints:
        """For each NIC the first rank that uses it: the one that reports its traffic."""
        return np.searchsorted(self.nic, np.arange(len(self.nic_host)))

    @cached_property
    def switch(self) -> Ints:
        """Leaf switch of each rank."""
        return self.host // self.settings.hosts_per_switch

    @property
    def _nics_per_host(self) -> int:
        return -(-self.settings.gpus_per_host // self.settings.gpus_per_nic)

    def host_name(self, host: int) -> str:
        """Name of a host."""
        return f"node-{host}"

    def nic_name(self, nic: int) -> str:
        """Name of a NIC, unique in its host."""
        return f"mlx5_{nic % self._nics_per_host}"

    def switch_name(self, switch: int) -> str:
        """Name of a leaf switch."""
        return f"leaf-{switch}"

    def find_host(self, name: str) -> int:
        """Index of a host that is given by name or index; raises `InputError`."""
        return _find(name, "host", "node-", int(self.host[-1]) + 1)

    def find_switch(self, name: str) -> int:
        """Index of a switch that is given by name or index; raises `InputError`."""
        return _find(name, "switch", "leaf-", int(self.switch[-1]) + 1)

    @cached_property
    def groups(self) -> Groups:
        """The communicators of the job."""
        return Groups(self.grid)

    def announcements(self, sources: Sequence[str]) -> Iterator[Announcement]:
        """Yield the announcement of each rank, in order of rank.

        Parameters
        ----------
        sources
            Schemas that the job sends; of a shared NIC only its first rank sends ``bandwidth``.
        """
        s = self.settings
        for rank in range(self.world_size):
            nic = int(self.nic[rank])
            own = tuple(x for x in sources if x != "bandwidth" or self.nic_rank[nic] == rank)
            yield Announcement(
                job=s.job,
                attempt=s.attempt,
                rank=rank,
                world_size=self.world_size,
                logged_ranks=self.world_size,
                communicators=tuple(self.groups.communicators[c] for c in self.groups.of_rank(rank)),
                sources=own,
                clock=s.clock,
                host=self.host_name(int(self.host[rank])),
                gpu=int(self.gpu[rank]),
                nic=self.nic_name(nic),
                switch=self.switch_name(int(self.switch[rank])),
                lost_rows=0,
            )


class Groups:
    """Communicators by index: ``world``, then those of tp, dp and pp; groups of one rank are none.

    Attributes
    ----------
    communicators
        All of them; the index in this tuple is the communicator's number in the simulator.
    world, tp, dp, pp
        Per rank: the number of its communicator of this kind, -1 where it has none.
    """

    def __init__(self, grid: Ints) -> None:
        pp, dp, tp = grid.shape
        self._found: list[Communicator] = []
        self.world = self._add("world", grid.reshape(1, -1), ["world"])
        self.tp = self._add("tp", grid.reshape(-1, tp), [f"tp_p{p}_d{d}" for p in range(pp) for d in range(dp)])
        across_dp = grid.transpose(0, 2, 1).reshape(-1, dp)
        self.dp = self._add("dp", across_dp, [f"dp_p{p}_t{t}" for p in range(pp) for t in range(tp)])
        across_pp = grid.transpose(1, 2, 0).reshape(-1, pp)
        self.pp = self._add("pp", across_pp, [f"pp_d{d}_t{t}" for d in range(dp) for t in range(tp)])
        self.communicators = tuple(self._found)

    def of_rank(self, rank: int) -> list[int]:
        """Numbers of the communicators that a rank is in; the order is that of its batches' `names`."""
        return [int(kind[rank]) for kind in (self.world, self.tp, self.dp, self.pp) if kind[rank] >= 0]

    def local_codes(self) -> Ints:
        """Array of shape ``(4, ranks)``: place of world, tp, dp and pp in what `of_rank` returns."""
        exists = np.stack([self.world, self.tp, self.dp, self.pp]) >= 0
        return np.cumsum(exists, axis=0) - 1

    def _add(self, kind: str, members: Ints, names: list[str]) -> Ints:
        numbers = np.full(members.size, -1)
        if members.shape[1] > 1:
            first = len(self._found)
            numbers[members] = first + np.arange(len(members))[:, None]
            self._found += [
                Communicator(name, kind, tuple(ranks)) for name, ranks in zip(names, members.tolist(), strict=True)
            ]
        return numbers


def _find(name: str, what: str, prefix: str, count: int) -> int:
    digits = name.removeprefix(prefix)
    if not (digits.isascii() and digits.isdigit() and int(digits) < count):
        raise InputError(f"{what} must be {prefix}0 to {prefix}{count - 1}, or its number; got {name!r} (fault)")
    return int(digits)
