"""Where the ranks of a simulated job live, and which groups they form.

Ranks follow Megatron's order. With ``tp-cp-ep-dp-pp``, the default,
``rank = ((((stage * dp + replica) * shards + shard) * ep + expert) * cp + context) * tp + tensor``; with
``tp-cp-ep-pp-dp`` the stage comes between the shard and the expert. Hosts are filled in order of rank.

A rank's *seat* is where it sits in the grid: stages in order, and in each stage the same order of coordinates. In
the default order, the seat is the rank.

The communicators of a simulated job.

===========  =====================================================  ==========================================
group        its ranks differ in                                    exists where
===========  =====================================================  ==========================================
``world``    everything                                             always
``tp``       tp                                                     tp > 1
``cp``       cp                                                     cp > 1
``ep``       ep                                                     ep > 1
``dp``       dp, shards, ep, cp: dense gradients                    shards = 1
``shard``    shards, ep, cp: dense gradients and parameters         shards > 1
``replica``  dp: shards of gradients between the optimizer's copies  shards > 1 and dp > 1
``edp``      dp, shards, cp: gradients of experts                   ep > 1
``pp``       pp                                                     pp > 1
``emb``      pp, first and last stage only                          tied embeddings and pp > 2
===========  =====================================================  ==========================================

Kinds are those of the contract: the four groups that carry gradients are ``dp``, ``emb`` is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Final

import numpy as np

from irregulars.dtypes import Flags, Ints
from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement, Communicator, Ranks, ranks_to_runs
from irregulars.producers.simulator.noise import LOGGING, generator_of
from irregulars.producers.simulator.settings import SimulatorSettings

AXES: Final = ("pp", "dp", "shards", "ep", "cp", "tp")  # order of the axes of the grid of ranks
VARYING: Final[Mapping[str, tuple[str, ...]]] = {
    "world": AXES, "tp": ("tp",), "cp": ("cp",), "ep": ("ep",), "dp": ("dp", "shards", "ep", "cp"),
    "shard": ("shards", "ep", "cp"), "replica": ("dp",), "edp": ("dp", "shards", "cp"), "pp": ("pp",), "emb": ("pp",),
}  # fmt: skip
"""Axes along which the ranks of a group differ, in the order in which a rank lists its communicators."""

_KINDS: Final = {"shard": "dp", "replica": "dp", "edp": "dp", "emb": "unknown"}
_LETTERS: Final = {"pp": "p", "dp": "d", "shards": "s", "ep": "e", "cp": "c", "tp": "t"}
_ALWAYS_NAMED: Final = frozenset({"pp", "dp", "tp"})
_PREFIXES: Final = {"host": "node-", "switch": "leaf-"}  # of names, by the kind of device


def has_group(settings: SimulatorSettings, group: str) -> bool:
    """Whether ranks of this job form such groups, of two ranks or more."""
    size = int(np.prod([getattr(settings, axis) for axis in VARYING[group]]))
    match group:
        case "dp":
            return size > 1 and settings.shards == 1
        case "shard" | "replica":
            return size > 1 and settings.shards > 1
        case "edp":
            return size > 1 and settings.ep > 1
        case "emb":
            return settings.has_tied_embeddings and settings.pp > 1
        case _:
            return size > 1


def along(grid: Ints, group: str) -> Ints:
    """Give the members of each group of one sort, a row for each, of an array in the shape of the grid.

    >>> along(np.arange(8).reshape(2, 1, 1, 1, 1, 4), "pp").tolist()
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    """
    moved = [axis for axis, name in enumerate(AXES) if name in VARYING[group]]
    fixed = [axis for axis in range(len(AXES)) if axis not in moved]
    width = int(np.prod([grid.shape[axis] for axis in moved]))
    rows = grid.transpose(*fixed, *moved).reshape(-1, width)
    return rows[:, [0, -1]] if group == "emb" else rows


class Groups:
    """Communicators by index, in the order of `VARYING`.

    `communicators`: all of them; the index in this tuple is the communicator's number in the simulator. `numbers`: by
    group, per rank: the number of its communicator, -1 where it has none.
    """

    def __init__(self, settings: SimulatorSettings, grid: Ints) -> None:
        found: list[Communicator] = []
        self.numbers: dict[str, Ints] = {}
        for group in VARYING:
            numbers = self.numbers[group] = np.full(grid.size, -1)
            if not has_group(settings, group):
                continue
            members = np.sort(along(grid, group), axis=1)
            # Row n of `members` holds the ranks of the n-th group of its sort.
            numbers[members] = len(found) + np.arange(len(members))[:, None]
            # Names are the coordinates that a group's ranks share, without unused dimensions.
            fixed = [axis for axis in AXES if axis not in VARYING[group]]
            places = product(*(range(getattr(settings, axis)) for axis in fixed))
            for place, ranks in zip(places, members.tolist(), strict=True):
                own = [f"{_LETTERS[axis]}{x}" for axis, x in zip(fixed, place, strict=True)
                       if axis in _ALWAYS_NAMED or getattr(settings, axis) > 1]  # fmt: skip
                found.append(Communicator("_".join([group, *own]), _KINDS.get(group, group), tuple(ranks)))
        self.communicators = tuple(found)

    def of_rank(self, rank: int) -> list[int]:
        """Numbers of the communicators that a rank is in; the order is that of its batches' `names`."""
        return [int(numbers[rank]) for numbers in self.numbers.values() if numbers[rank] >= 0]

    def local_codes(self) -> dict[str, Ints]:
        """Return by group, per rank: the place of its communicator in the result of `of_rank`."""
        exists = np.stack(list(self.numbers.values())) >= 0
        return dict(zip(self.numbers, np.cumsum(exists, axis=0) - 1, strict=True))


class Topology:
    """The cluster and the groups of one job."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings: Final = settings
        self.world_size: Final = settings.world_size
        self.stage_ranks: Final = settings.stage_ranks
        ranks = np.arange(self.world_size)
        pp, dp, shards, *rest = (getattr(settings, axis) for axis in AXES)
        if settings.rank_order == "tp-cp-ep-dp-pp":
            self.grid: Ints = ranks.reshape(pp, dp, shards, *rest)  # all ranks, with the axes of `AXES`
        else:
            self.grid = ranks.reshape(dp, shards, pp, *rest).transpose(2, 0, 1, 3, 4, 5)
        self.rank_of_seat: Ints = self.grid.ravel()
        # Per rank: its seat, and the index of its host, of its GPU inside the host, of its NIC and of its leaf switch
        self.seat: Ints = np.argsort(self.rank_of_seat)
        self.host: Ints = ranks // settings.gpus_per_host
        self.gpu: Ints = ranks % settings.gpus_per_host
        self._nics_per_host = -(-settings.gpus_per_host // settings.gpus_per_nic)
        self.nic: Ints = self.host * self._nics_per_host + self.gpu // settings.gpus_per_nic
        self.switch: Ints = self.host // settings.hosts_per_switch
        # The devices that ranks share, by kind: per rank the index of its own
        self.shared: Final[Mapping[str, Ints]] = {"host": self.host, "nic": self.nic, "switch": self.switch}
        self.nic_host: Ints = np.arange(int(self.nic[-1]) + 1) // self._nics_per_host  # per NIC: its host

    @cached_property
    def is_logged(self) -> Flags:
        """Whether a rank writes rows."""
        if self.settings.logged == "all":
            return np.ones(self.world_size, dtype=np.bool_)
        if self.settings.logged == "tp_leaders":
            is_leader = np.zeros(self.world_size, dtype=np.bool_)
            is_leader[self.grid[..., 0]] = True
            return is_leader
        units = self.host if self.settings.logged == "some_hosts" else np.arange(self.world_size)
        count = int(units[-1]) + 1
        order = generator_of(self.settings, LOGGING).permutation(count)
        return np.isin(units, order[: max(round(count * (1 - self.settings.unlogged_ratio)), 1)])

    @cached_property
    def nic_rank(self) -> Ints:
        """For each NIC the first logged rank that uses it: the one that reports its traffic; -1: none does."""
        ranks = np.flatnonzero(self.is_logged)
        nics, first = np.unique(self.nic[ranks], return_index=True)
        result = np.full(len(self.nic_host), -1)
        result[nics] = ranks[first]
        return result

    def name_of(self, kind: str, index: int) -> str:
        """Name of a host or leaf switch."""
        return f"{_PREFIXES[kind]}{index}"

    def nic_name(self, nic: int) -> str:
        """Name of a NIC, unique in its host."""
        return f"mlx5_{nic % self._nics_per_host}"

    def find(self, kind: str, name: str) -> int:
        """Index of a host or switch that is given by name or index; raises `InputError`."""
        prefix, count = _PREFIXES[kind], int(self.shared[kind][-1]) + 1
        digits = name.removeprefix(prefix)
        if not (digits.isascii() and digits.isdigit() and int(digits) < count):
            raise InputError(f"{kind} must be {prefix}0 to {prefix}{count - 1}, or its number; got {name!r} (fault)")
        return int(digits)

    @cached_property
    def groups(self) -> Groups:
        """The communicators of the job."""
        return Groups(self.settings, self.grid)

    def announcements(self, sources: Sequence[str], recorded_until_ns: int | None = None) -> Iterator[Announcement]:
        """Yield the announcement of each rank, in order of rank.

        `sources`: schemas that the job sends; of a shared NIC only its first rank sends ``bandwidth``.
        `recorded_until_ns`: when recording ended, ns since the epoch, if that is known.
        """
        s = self.settings
        logged_ranks = int(np.count_nonzero(self.is_logged))
        # As runs: 100,000 ranks that each list all others would be ten thousand million numbers to encode.
        communicators = [replace(one, ranks=Ranks(ranks_to_runs(one.ranks))) for one in self.groups.communicators]
        for rank in range(self.world_size):
            nic = int(self.nic[rank])
            is_logged = bool(self.is_logged[rank])
            own = tuple(x for x in sources if is_logged and (x != "bandwidth" or self.nic_rank[nic] == rank))
            yield Announcement(
                job=s.job, attempt=s.attempt, rank=rank, world_size=self.world_size, logged_ranks=logged_ranks,
                communicators=tuple(communicators[c] for c in self.groups.of_rank(rank)), sources=own,
                is_logged=is_logged, clock=s.clock, host=self.name_of("host", int(self.host[rank])),
                gpu=int(self.gpu[rank]), nic=self.nic_name(nic),
                switch=self.name_of("switch", int(self.switch[rank])), recorded_until_ns=recorded_until_ns,
                lost_rows=None if s.loss_ratio else 0,  # an exporter that counted its losses would have none
            )  # fmt: skip
