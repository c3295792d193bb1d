"""What the benchmark of the agent gives it to do: operators of eight ranks, and a tree of counters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.records import UNKNOWN, Batch, Header
from irregulars.producers.publishing.sources import Record

JOB = "bench"
LOOPBACK = Path("/sys/class/net/lo/statistics")


class Operators:
    """Announces `ranks` ranks, one GPU and one NIC each, and gives `per_s` operators of each in a batch a second.

    The columns are ready beforehand: what is measured is the agent, not whatever makes the records.
    """

    def __init__(self, ranks: int, per_s: int) -> None:
        self._ranks, self._per_s = ranks, per_s
        self._given = 0
        self._next_s = time.monotonic()
        self._is_announced = False
        random = np.random.default_rng(1)
        ordinals = np.arange(per_s, dtype=np.int64)
        self._columns: dict[str, np.ndarray] = {
            "communicator": random.integers(0, 2, per_s).astype(np.uint16),
            "operator": random.integers(0, 3, per_s).astype(np.uint8),
            "sequence": ordinals,
            "peer": np.full(per_s, UNKNOWN),
            "start_ns": ordinals * (10**9 // max(per_s, 1)) + random.integers(0, 10**5, per_s),
            "elapsed_ns": random.integers(10**4, 10**6, per_s).astype(np.float64),
            "size_bytes": random.choice([1e6, 2e6, 4e6], per_s),
            "iteration": ordinals // 100,
        }

    def poll(self, max_records: int) -> Sequence[Record]:
        if not self._is_announced:
            self._is_announced = True
            return [self._announcement(rank) for rank in range(self._ranks)]
        if self._per_s == 0 or time.monotonic() < self._next_s:
            return ()
        self._next_s += 1.0
        given, self._given = self._given, self._given + self._per_s
        now_ns = time.time_ns() - 10**9
        moved = {"sequence": given, "start_ns": now_ns, "iteration": given // 100}
        columns = {
            name: np.add(column, moved[name]) if name in moved else column for name, column in self._columns.items()
        }
        return [
            Batch(Header("commops", JOB, 0, rank, given, now_ns, ("world", "dp")), columns)
            for rank in range(self._ranks)
        ]

    def _announcement(self, rank: int) -> Announcement:
        everybody = tuple(range(self._ranks))
        groups = (Communicator("world", "world", everybody), Communicator("dp", "dp", everybody))
        nic = f"mlx5_{rank}"
        return Announcement(JOB, 0, rank, self._ranks, self._ranks, groups, ("commops",), gpu=rank, nic=nic)

    def position(self) -> str:
        return str(self._given)

    @property
    def is_exhausted(self) -> bool:
        return False

    def close(self) -> None:
        pass


def make_sysfs(root: Path, nics: int) -> None:
    """Make a tree with InfiniBand devices whose counters are those of the loopback interface, in the real sysfs."""
    for ordinal in range(nics):
        counters = root / "class" / "infiniband" / f"mlx5_{ordinal}" / "ports" / "1" / "counters"
        counters.mkdir(parents=True)
        (counters / "port_xmit_data").symlink_to(LOOPBACK / "tx_bytes")
        (counters / "port_rcv_data").symlink_to(LOOPBACK / "rx_bytes")
        (counters.parent / "rate").write_text("400 Gb/sec (4X NDR)\n")
