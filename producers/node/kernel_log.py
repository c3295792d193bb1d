"""The kernel's log: XIDs of GPUs, lack of memory, PCIe and links, as lines of ``/dev/kmsg`` or of a text file."""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from irregulars.messages.device_events import MOST_TEXT

_LOG: Final = logging.getLogger("irregulars.agent")
_READ_BYTES: Final = 1 << 16
_MOST_LINES: Final = 4096  # of one poll: a storm of lines must not hold up the agent


class KernelEvent(NamedTuple):
    """An event in a line: kind as in `records.EVENT_KINDS`, the device's PCI address or name, code, and the line."""

    kind: str
    device: str  # empty: the host itself
    code: int | None
    detail: str
    # Of a process that ended: its job, and its number among all of the job's, as its scheduler has them
    job: str = ""
    task: int | None = None


# NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
_XID: Final = re.compile(
    r"NVRM: Xid \(PCI:(?P<device>[0-9a-fA-F:.]{4,20})\): (?P<code>\d{1,9})(?!\d)(?:,\s*(?P<detail>.*))?"
)
# Memory cgroup out of memory: Killed process 4711 (python) total-vm:…, and the same without "Memory cgroup"
_OUT_OF_MEMORY: Final = re.compile(r"[Oo]ut of memory: Killed process (?P<code>\d{1,10}) (?P<detail>\([^)]{0,64}\))?")
# pcieport 0000:5d:00.0: AER: Uncorrected (Non-Fatal) error received: …; "Corrected" ones are common and left out.
# Newer kernels put "AER: " before the second line too: PCIe Bus Error: ….
_PCIE: Final = re.compile(
    r"(?:[\w.-]+ )?(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): "
    r"(?P<detail>(?:AER: (?:Multiple )?(?:Uncorrect|Fatal)|(?:AER: )?PCIe Bus Error: severity=Uncorrect).*)"
)
# mlx5_core 0000:3b:00.0 eth0: Link down; IPv6 lines and those of bridges have another form
_LINK: Final = re.compile(
    r"mlx5_core (?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])[^:]*: (?:Port: \d+ )?Link (?P<way>up|down)"
)


def parse_line(line: str) -> KernelEvent | None:
    """Return the event in a line of the kernel's log; None: nothing of ours.

    >>> parse_line("NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python, GPU has fallen off the bus.")[:3]
    ('xid', '0000:3b:00', 79)
    >>> parse_line("Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB").kind
    'out_of_memory'
    >>> parse_line("pcieport 0000:5d:00.0: AER: Corrected error received: 0000:5d:00.0") is None
    True
    """
    # Bounds the cost of the searches: a process may write any text into the log.
    line = line[:1024]
    if found := _XID.search(line):
        return KernelEvent("xid", found["device"].lower(), int(found["code"]), (found["detail"] or "")[:MOST_TEXT])
    if found := _OUT_OF_MEMORY.search(line):
        return KernelEvent(
            "out_of_memory", "", int(found["code"]), f"process {found['detail'] or 'killed'}"[:MOST_TEXT]
        )
    if found := _LINK.search(line):
        return KernelEvent(f"link_{found['way']}", found["device"], None, "")
    if found := _PCIE.search(line):
        return KernelEvent("pcie", found["device"], None, found["detail"][:MOST_TEXT])
    return None


Parse = Callable[[str], KernelEvent | None]


class KernelLog:
    """Follows the kernel's log from its end on; lines from before the agent began are not read.

    `path`: ``/dev/kmsg``, where each read is one record ``priority,number,µs since boot,flags;line``, or a text file
    that something appends to, which may be replaced. One that can't be read is logged once, and sought again.
    `parse`: finds the event in a line.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.time_ns, parse: Parse = parse_line) -> None:
        self._path, self._now_ns, self._parse = path, now_ns, parse
        self._file = -1
        self._inode = 0
        self._rest = b""
        self._waiting: deque[bytes] = deque()  # whole lines of a text file that no poll has had room for
        self._has_failed = False
        self._open(at_end=True)

    def take(self) -> list[tuple[int, KernelEvent]]:
        """Return the events in new lines, with their times, ns since the epoch. Never blocks."""
        if self._file < 0 or self._is_replaced():
            self._open(at_end=False)
        found = []
        # `range` comes first: at the limit `zip` must not take one more line, which it would lose.
        for _, line in zip(range(_MOST_LINES), self._lines(), strict=False):
            event = self._parse(line)
            if event is not None:
                found.append((self._now_ns(), event))
        return found

    def close(self) -> None:
        """Close the log."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _open(self, *, at_end: bool) -> None:
        self.close()
        self._rest = b""
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            state = os.fstat(self._file)
            self._inode, self._is_device = state.st_ino, stat.S_ISCHR(state.st_mode)
            # A text file that has replaced another is read from its beginning, a device always from its end.
            if at_end or self._is_device:
                os.lseek(self._file, 0, os.SEEK_END)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                effect = "no events of this log"
                _LOG.warning(
                    "event=kernel_log_missing path=%s reason=%r effect=%r", self._path, error.strerror, effect
                )
            self._has_failed = True

    def _is_replaced(self) -> bool:
        try:
            state = self._path.stat()
        except OSError:  # between the renaming of the old file and the making of a new one
            return False
        # A text file that is shorter than our position was emptied in place.
        is_cut = not self._is_device and os.lseek(self._file, 0, os.SEEK_CUR) > state.st_size
        return state.st_ino != self._inode or is_cut

    def _lines(self) -> Iterator[str]:
        while True:
            while self._waiting:
                yield self._waiting.popleft().decode(errors="replace")
            if self._file < 0:
                return
            try:
                value = os.read(self._file, _READ_BYTES)
            except BlockingIOError:  # no new record
                return
            except BrokenPipeError:  # records were overwritten before we read them: the next read is of those left
                continue
            except OSError as error:
                _LOG.warning("event=kernel_log_lost path=%s reason=%r", self._path, error.strerror)
                self.close()
                return
            if not value:
                return
            if self._is_device:
                yield value.partition(b";")[2].partition(b"\n")[0].decode(errors="replace")
                continue
            *lines, self._rest = (self._rest + value).split(b"\n")
            # A line that never ends must not fill the memory: its beginning is dropped.
            self._rest = self._rest[-_READ_BYTES:]
            self._waiting.extend(lines)


class Devices:
    """Finds the name of a device by its PCI address.

    `gpus`: addresses of GPUs by index, `nics` those of NICs by name, as sysfs has them.
    """

    def __init__(self, gpus: Mapping[int, str], nics: Mapping[str, str]) -> None:
        self._names = {_short(address): f"gpu{index}" for index, address in gpus.items()}
        self._names |= {_short(address): name for name, address in nics.items()}

    def name_of(self, address: str) -> str | None:
        """Return its name, or None where it is none of ours.

        >>> Devices({0: "0000:3b:00.0"}, {"mlx5_0": "0000:5e:00.0"}).name_of("0000:3b:00")
        'gpu0'
        """
        return self._names.get(_short(address))


def _short(address: str) -> str:
    """Return an address without function and leading zeros of the domain: NVIDIA's driver writes 0000:3b:00."""
    domain, _, rest = address.lower().rpartition(":")[0].rpartition(":")
    own = address.lower().rpartition(":")[2].partition(".")[0]
    return f"{domain.lstrip('0')}:{rest}:{own}"
