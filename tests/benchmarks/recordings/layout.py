"""Where ranks live: their hosts, their NICs, and the leaf switches that these hang on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SPINE: Final = "spine-0"


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster with one NIC for each rank.

    Parameters
    ----------
    ranks_per_host
        Ranks `n * ranks_per_host` to `(n + 1) * ranks_per_host - 1` live on host `n`.
    hosts_per_leaf
        Hosts that share a leaf switch. 0: rails, that is NIC `i` of every host hangs on leaf `i`.
    """

    world_size: int
    ranks_per_host: int = 2
    hosts_per_leaf: int = 1

    def host_number(self, rank: int) -> int:
        """Number of the rank's host."""
        return rank // self.ranks_per_host

    def host(self, rank: int) -> str:
        """Name of the rank's host."""
        return f"node-{self.host_number(rank)}"

    def gpu(self, rank: int) -> int:
        """Index of the rank on its host."""
        return rank % self.ranks_per_host

    def nic(self, rank: int) -> str:
        """Name of the rank's network interface."""
        return f"eth{self.gpu(rank)}"

    def leaf_number(self, rank: int) -> int:
        """Number of the leaf switch of the rank's NIC.

        >>> [Layout(8, 2, 2).leaf_number(rank) for rank in range(8)]
        [0, 0, 0, 0, 1, 1, 1, 1]
        >>> [Layout(8, 4, 0).leaf_number(rank) for rank in range(8)]
        [0, 1, 2, 3, 0, 1, 2, 3]
        """
        return self.gpu(rank) if self.hosts_per_leaf == 0 else self.host_number(rank) // self.hosts_per_leaf

    def leaf(self, rank: int) -> str:
        """Name of that leaf switch."""
        return f"leaf-{self.leaf_number(rank)}"

    @property
    def leaves(self) -> int:
        """How many leaf switches there are."""
        return 1 + max(self.leaf_number(rank) for rank in range(self.world_size))

    def ranks_of_host(self, number: int) -> tuple[int, ...]:
        """All ranks of a host."""
        return tuple(rank for rank in range(self.world_size) if self.host_number(rank) == number)

    def ranks_of_leaf(self, number: int) -> tuple[int, ...]:
        """All ranks whose NIC hangs on a leaf switch."""
        return tuple(rank for rank in range(self.world_size) if self.leaf_number(rank) == number)

    def address(self, rank: int) -> str:
        """IPv4 address of the rank's NIC; nobody outside of the recording's own network sees it."""
        return f"10.77.0.{rank + 1}"

    def places(self) -> Mapping[str, Mapping[str, Any]]:
        """Give ``ranks`` of ``job.json``."""
        return {
            str(rank): {
                "host": self.host(rank), "gpu": self.gpu(rank), "nic": self.nic(rank), "switch": self.leaf(rank),
            }
            for rank in range(self.world_size)
        }  # fmt: skip
