"""Quotas of CPU time for ranks, by the kernel's control groups (version 1 or 2)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from irregulars.errors import ServiceUnavailable

PERIOD_US: Final = 20_000
"""A quota is refilled this often, µs: well below an iteration, so that it looks like a slow CPU. The kernel takes
no quota below 1 ms."""

SHARES: Final = 29_154
"""Weight of a group beside other work, in the unit of ``cpu.shares``: that of niceness -15, as the other ranks have.
A group's default is that of niceness 0, and its ranks would be slow without any quota."""

ROOT: Final = Path("/sys/fs/cgroup")
_REMOVE_S: Final = 5.0


class CpuGroups:
    """Control groups of one recording; removed when it ends.

    Parameters
    ----------
    root
        Where control groups are mounted.
    period_us
        How often quotas are refilled, µs.

    Raises
    ------
    ServiceUnavailable
        If there is no controller for CPU time that this process may use.
    """

    def __init__(self, root: Path = ROOT, period_us: int = PERIOD_US) -> None:
        self._is_first = (root / "cpu" / "cpu.cfs_quota_us").exists() or (root / "cpu" / "cpu.shares").exists()
        self._parent = root / "cpu" if self._is_first else root
        self._prefix = f"irregulars-recording-{secrets.token_hex(4)}"
        self._made: list[Path] = []
        self._period_us = period_us
        if not self._is_first and "cpu" not in _words(root / "cgroup.subtree_control"):
            raise ServiceUnavailable(f"{root}: must offer the controller cpu to new groups; it does not")

    def make(self, processes: Sequence[int]) -> Path:
        """Make a group of processes, without a limit."""
        path = self._parent / f"{self._prefix}-{len(self._made)}"
        try:
            path.mkdir()
            self._made.append(path)
            name, weight = ("cpu.shares", SHARES) if self._is_first else ("cpu.weight", SHARES * 100 // 1_024)
            (path / name).write_text(str(weight))
            for process in processes:
                (path / "cgroup.procs").write_text(str(process))
        except OSError as error:
            raise ServiceUnavailable(f"{path}: must take processes; it did not: {error.strerror}") from None
        return path

    def limit(self, group: Path, cores: float | None) -> None:
        """Give a group so many cores at most; `None`: all that there are."""
        quota_us = None if cores is None else round(cores * self._period_us)
        if self._is_first:
            (group / "cpu.cfs_period_us").write_text(str(self._period_us))
            (group / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))
        else:
            (group / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {self._period_us}")

    def close(self) -> None:
        """Remove the groups; their processes have ended, or go back to the parent."""
        deadline_s = time.monotonic() + _REMOVE_S
        for path in self._made:
            for process in _words(path / "cgroup.procs"):
                with suppress(OSError):  # ended meanwhile
                    (self._parent / "cgroup.procs").write_text(process)
            while path.exists() and time.monotonic() < deadline_s:
                with suppress(OSError):  # busy for a moment after its last process has ended
                    path.rmdir()
                    break
                time.sleep(0.02)
        self._made = []


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
