"""Events that this node's devices report, of the ranks that use them."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from irregulars.messages.device_events import MOST_TEXT, DeviceEvent
from irregulars.messages.records import THROTTLE_REASONS
from irregulars.producers.node.kernel_log import Devices, KernelEvent, KernelLog
from irregulars.producers.node.roster import HealthSample, Owner, Roster
from irregulars.producers.node.sysfs import is_name, text_of

_LOG: Final = logging.getLogger("irregulars.agent")
Event = tuple[Owner, DeviceEvent]

_COUNTERS: Final = (
    "counters/link_downed", "counters/link_error_recovery", "counters/symbol_error", "counters/port_rcv_errors",
    "counters/excessive_buffer_overrun_errors", "counters/local_link_integrity_errors",
    "hw_counters/rnr_nak_retry_err", "hw_counters/roce_slow_restart", "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
)  # fmt: skip
"""Counters of a port of InfiniBand or RoCE that stand still while all is well."""
_OF_INTERFACE: Final = ("statistics/rx_errors", "statistics/tx_errors", "statistics/rx_crc_errors")
_MOST_FILES: Final = 10_000  # error files that are looked at; a directory of years may hold more
_MOST_FILE_BYTES: Final = 1 << 20
_SAME_NS: Final = 5_000_000_000  # an XID that is reported twice within this is one
# Clocks that stay held down are reported again after this, ns: half of `events_before_s`, in which an event counts.
_AGAIN_NS: Final = 300_000_000_000
_HELD_DOWN: Final = sum(
    1 << bit
    for bit, reason in enumerate(THROTTLE_REASONS)
    if reason in ("hw_slowdown", "thermal", "hw_thermal", "hw_power_brake", "board_limit", "reliability")
)
"""Reasons that are no setting and no load: a power cap and idling are usual."""


class NodeEvents:
    """Gathers events of the ranks in the roster.

    `logs`: of the kernel, and of Slurm. `sysfs`: as `producers.node.sysfs`. `error_files`: where torchrun has the
    error files of its processes; None: nowhere.
    """

    def __init__(
        self,
        roster: Roster,
        host: str,
        devices: Devices,
        sysfs: Path,
        logs: Sequence[KernelLog],
        now_ns: Callable[[], int] = time.time_ns,
        error_files: ErrorFiles | None = None,
    ) -> None:
        self._error_files = error_files
        self._roster, self._host, self._devices, self._now_ns = roster, host, devices, now_ns
        self._logs = logs
        self._links = LinkWatch(sysfs)
        # By GPU: the rank of which its clocks were reported last, the reasons, and when
        self._held_down: dict[str, tuple[Owner, int, int]] = {}
        self._xids: dict[tuple[str, int | None], int] = {}  # told last when: NVML and the kernel both report it

    def take(self) -> list[Event]:
        """Return the events of logs, of NICs and of ended processes since the last call. Never blocks."""
        lines = [line for log in self._logs for line in log.take()]
        found = [event for time_ns, line in lines for event in self._of_line(time_ns, line)]
        self._links.keep_counts(self._roster.users)
        for name, owner in self._roster.users.items():
            for kind, code, detail in self._links.look(name):
                found.append((owner, self._event(owner, kind, name, code, detail, self._now_ns())))
        jobs = {one.job for one in self._roster.users.values()}
        for run, local_rank, message in self._error_files.take() if self._error_files is not None else ():
            device = f"gpu{local_rank}"
            user = self._roster.users.get(device)
            # Of several jobs, each counts local ranks from 0 on: the folder of its run begins with the id.
            if user is not None and (len(jobs) == 1 or run.startswith(f"{user.job}_")):
                found.append((user, self._event(user, "process_exit", device, None, message, self._now_ns())))
        return found

    def of_health(self, samples: Iterable[HealthSample]) -> Iterator[Event]:
        """Yield the events in states of GPUs: XIDs, memory errors that stayed, clocks that are held down."""
        for one in samples:
            for kind, name in (("xid", "xid"), ("ecc", "ecc_uncorrected")):
                code = int(one.values.get(name) or 0)
                if code > 0 and (kind != "xid" or self._is_first(one.device, code, one.time_ns)):
                    yield one.owner, self._event(one.owner, kind, one.device, code, "", one.time_ns)
            mask = int(one.values.get("throttle_reasons") or 0) & _HELD_DOWN
            if "throttle_reasons" in one.values and self._is_held_down_anew(one, mask):
                reasons = ", ".join(reason for bit, reason in enumerate(THROTTLE_REASONS) if mask >> bit & 1)
                yield one.owner, self._event(one.owner, "throttle", one.device, None, reasons, one.time_ns)

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs:
            log.close()

    def _of_line(self, time_ns: int, line: KernelEvent) -> Iterator[Event]:
        """Yield an event of the rank that uses the device; one of the host itself goes to one rank of each job.

        One of a task goes to the rank of its number, where that is here: Slurm starts ranks, or torchrun as one task.
        A job that is named by a number has that of Slurm: on a node that is shared, other jobs' ends are not its own.
        """
        device = self._devices.name_of(line.device) if line.device else ""
        if device is None:
            _LOG.info("event=kernel_event_of_another_device kind=%s device=%s", line.kind, line.device)
            return
        if line.kind == "xid" and not self._is_first(device, line.code, time_ns):
            return
        users = self._roster.users
        owners = [users[device]] if device in users else []
        if not device:
            owners = list({(one.job, one.attempt, one.start): one for one in users.values()}.values())
        jobs = {one.job for one in owners}
        if line.job and (len(jobs) > 1 or all(map(str.isdecimal, jobs))):
            owners = [one for one in owners if one.job == line.job]
        for one in owners:
            tasks = [(name, user) for name, user in users.items() if user.is_beside(one) and user.rank == line.task]
            name, owner = min(tasks, default=(device, one), key=lambda own: not own[0].startswith("gpu"))
            yield owner, self._event(owner, line.kind, name, line.code, line.detail, time_ns)

    def _is_first(self, device: str, code: int | None, time_ns: int) -> bool:
        before_ns = self._xids.get((device, code))
        if before_ns is not None and abs(time_ns - before_ns) <= _SAME_NS:
            return False
        # Of one that goes on for an hour some are told all along: a fault that begins late has one beside it.
        self._xids[device, code] = time_ns
        return True

    def _is_held_down_anew(self, state: HealthSample, mask: int) -> bool:
        """Return whether a GPU's clocks are to be reported.

        That is where they begin to be held down, where the reasons change, where another rank takes the GPU over, and
        now and then while it lasts; the end is no event.
        """
        if not mask:
            self._held_down.pop(state.device, None)
            return False
        owner, known, told_ns = self._held_down.get(state.device, (state.owner, 0, 0))
        if (owner, known) == (state.owner, mask) and abs(state.time_ns - told_ns) < _AGAIN_NS:
            return False
        self._held_down[state.device] = state.owner, mask, state.time_ns
        return True

    def _event(
        self, owner: Owner, kind: str, device: str, code: int | None, detail: str, time_ns: int
    ) -> DeviceEvent:
        return DeviceEvent(time_ns, owner.rank, kind, self._host, device, code, detail)


class ErrorFiles:
    """Watches for the files in which processes of torchrun leave their last error.

    With ``--log-dir DIR`` they are ``DIR/RUN/attempt_N/LOCAL_RANK/error.json``. Those that are there when the agent
    begins are of earlier ends. A local rank is taken for the index of its GPU.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known = set(self._files())

    def take(self) -> Iterator[tuple[str, int, str]]:
        """Yield name of the run's folder, local rank and message of new files."""
        for path in self._files():
            if path not in self._known and path.parent.name.isdigit():
                self._known.add(path)
                yield path.parents[2].name, int(path.parent.name), _message_of(path)

    def _files(self) -> list[Path]:
        found: list[Path] = []
        with suppress(OSError):  # a folder vanished while it was read: the next call sees the rest
            found.extend(islice(self._directory.glob("*/attempt_*/*/error.json"), _MOST_FILES))
        return found


def _message_of(path: Path) -> str:
    """Return the first line of the error that a process left; empty where the file has none."""
    try:
        # Users' jobs may write there: to open a pipe would wait for a writer, and a link may lead to any file.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            value = json.loads(os.read(descriptor, _MOST_FILE_BYTES) if is_file else b"{}")
        finally:
            os.close(descriptor)
        message = value["message"] if isinstance(value, dict) else ""
        text = message["message"] if isinstance(message, dict) else message
        return str(text).strip().split("\n")[0][:MOST_TEXT]
    except (OSError, ValueError, KeyError, RecursionError):
        return ""


class LinkWatch:
    """Watches the state and the error counters of NICs in sysfs."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._counts: dict[str, dict[str, int]] = {}  # by NIC and counter
        self._is_up: dict[str, bool] = {}

    def keep_counts(self, names: Collection[str]) -> None:
        """Forget the counts of all NICs but these: errors while no rank uses one belong to no job."""
        for name in [name for name in self._counts if name not in names]:
            del self._counts[name]

    def look(self, name: str) -> Iterator[tuple[str, int | None, str]]:
        """Yield kind, code and detail of a NIC's changes since the last call; nothing at the first."""
        if not is_name(name):
            return
        device, _, port = name.partition(":")
        folder = self._sysfs / "class" / "infiniband" / device / "ports" / (port or "1")
        is_port = folder.exists()
        folder = folder if is_port else self._sysfs / "class" / "net" / name
        state, counters = ("state", _COUNTERS) if is_port else ("operstate", _OF_INTERFACE)
        text = text_of(folder / state)
        if text:
            # Drivers that report no state have ``unknown``, as ``lo`` does: such a link counts as up.
            is_up = text.endswith(("ACTIVE", "up", "unknown"))
            if is_up != self._is_up.setdefault(name, is_up):
                self._is_up[name] = is_up
                yield "link_up" if is_up else "link_down", None, text
        counts = self._counts.setdefault(name, {})
        for counter in counters:
            value = text_of(folder / counter)
            if not value.isdigit():  # this NIC does not count it
                continue
            before, counts[counter] = counts.get(counter), int(value)
            # A counter that fell was reset: its growth is not known.
            if before is not None and int(value) > before:
                yield "link_errors", int(value) - before, counter.rpartition("/")[2]
