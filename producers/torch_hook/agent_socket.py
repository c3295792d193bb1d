"""The agent's end of the local socket: training processes of this node as one source."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from irregulars.errors import InputError, RecordError
from irregulars.messages.announcements import Announcement, Heartbeat, SourceProgress
from irregulars.messages.records import Batch
from irregulars.producers.publishing.batches import take_rows
from irregulars.producers.publishing.sources import GONE, Process, RankKey, Record, key_of, row_count
from irregulars.producers.torch_hook.frames import End, Frame, FrameReader, Lost, Unmarked, Waiting

_LOG: Final = logging.getLogger("irregulars.agent")
_READ_BYTES: Final = 1 << 20
_PEER: Final = struct.Struct("iII")  # process, user and group of the other end, as in unix(7)
# Records that wait to be polled; above it sockets are not read, and rows wait in the rings of the ranks.
_MOST_QUEUED: Final = 256
# A process sends batches of 1,500 rows, about 0.1 MB; an announcement must fit into one message anyway.
_MOST_FRAME_BYTES: Final = 4 << 20
# Of all frames that are not whole, and as much again of those that wait to be polled: processes that write to the
# socket can't take more of the agent's memory.
_MOST_HELD_BYTES: Final = 24 << 20
GONE_S: Final = 600.0
"""Seconds after which a rank whose connection closed without an end is gone. A process that lives connects again in a
few; until then its devices are sampled, so that the iteration in which it was killed is judged with their rates."""


@dataclass(eq=False, slots=True)
class _Connection:
    socket: socket.socket
    reader: FrameReader = field(default_factory=lambda: FrameReader(_MOST_FRAME_BYTES))
    announced: Announcement | None = None
    is_unmarked: bool = False
    has_ended: bool = False
    process: tuple[int, str] = (0, "")  # the number of the other end's, and when it began


def require_permissions(mode: int, path: Path) -> None:
    """Raise `InputError` unless `mode` is permissions with which the socket's owner can use it."""
    if not 0o600 <= mode <= 0o777:
        raise InputError(f"mode must be permissions, 0o600 to 0o777; got {mode:#o} (socket {path})")


class SocketSource:
    """Receives the records that training processes send with ``torch_comms.start(agent=PATH)``.

    A connection that sends anything but frames is closed. So are, above a bound of bytes that all connections hold
    together, those with the most of a frame that is not whole: a rank's frames are small, and soon whole.

    `path`: of the socket; it is made, mode 0600, and a stale one is replaced. Nothing else is: neither another file,
    nor a socket on which a process listens. `ranks`: the source is exhausted when this number of ranks have ended;
    `None`: never. `mode`: other permissions of the socket: a process that may write to it may send for any job.
    Raises InputError if the socket can't be made there, or its owner could not use it with `mode`.
    """

    def __init__(
        self,
        path: Path,
        ranks: int | None = None,
        *,
        mode: int = 0o600,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        require_permissions(mode, path)
        self._path, self._ranks, self._clock_s = path, ranks, clock_s
        self._connections: deque[_Connection] = deque()  # the one that is read next comes first
        self._held_bytes = 0  # of all connections
        self.closed_connections = 0  # because of the bytes that they sent
        self._queue: deque[tuple[Record, int]] = deque()  # with its size in bytes
        self._queued_bytes = 0
        self._ended = 0
        self._rows = 0
        self._unmarked: set[RankKey] = set()
        # Ranks without a connection that have not ended, with the time at which they lost it; the first comes first
        self._lost: dict[RankKey, float] = {}
        self._is_short = False  # of file descriptors
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_stale(path)
            self._socket.bind(os.fspath(path))
            path.chmod(mode)
            self._socket.listen(128)
        except (OSError, InputError) as error:
            self._socket.close()
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise InputError(f"agent's socket must be a path where we can make one; got {reason} ({path})") from None
        self._inode = path.stat().st_ino
        self._socket.setblocking(False)

    def poll(self, max_records: int) -> Sequence[Record]:
        """Return records that have come, at most `max_records` announcements and rows; a heartbeat ends a rank."""
        if not self._is_full:
            try:
                while True:
                    accepted, _ = self._socket.accept()
                    accepted.setblocking(False)
                    self._connections.append(_Connection(accepted))
            except BlockingIOError:  # no process waits
                self._is_short = False
            except OSError as error:  # no file descriptor is left, for example: those that wait are accepted later
                if not self._is_short:
                    _LOG.error(
                        "event=torch_connection_waits connections=%d error=%r", len(self._connections), str(error)
                    )
                self._is_short = True
            self._read()
        self._release_lost()
        polled: list[Record] = []
        while self._queue and max_records > 0:
            record, size_bytes = self._queue.popleft()
            if isinstance(record, Batch) and len(record) > max_records:
                # Its bytes count until the last part of the batch is polled.
                self._queue.appendleft((take_rows(record, max_records, len(record)), size_bytes))
                record, size_bytes = take_rows(record, 0, max_records), 0
            self._queued_bytes -= size_bytes
            count = row_count(record)
            max_records -= count
            self._rows += count
            polled.append(record)
        return polled

    def position(self) -> str:
        """Return the number of records polled; none can be polled again."""
        return f"records={self._rows}"

    @property
    def is_exhausted(self) -> bool:
        """Whether all expected ranks have ended, and all their records were polled."""
        return self._ranks is not None and self._ended >= self._ranks and not self._queue

    def is_unmarked(self, announcement: Announcement) -> bool:
        """Whether the operators of a rank carry no iteration, by the frame that its process sent first."""
        return key_of(announcement) in self._unmarked

    @property
    def processes(self) -> Mapping[RankKey, Process]:
        """Processes of the ranks that are connected. Any thread may ask.

        A fork may keep the connection of a process that has ended, and its number be another's by then.
        """
        return {
            key_of(one.announced): Process(one.process[0], one.socket)
            for one in list(self._connections)
            if one.announced is not None and one.process[0] and _began(one.process[0]) == one.process[1]
        }

    def close(self) -> None:
        """Close the sockets and remove the path."""
        for connection in self._connections:
            connection.socket.close()
        self._connections.clear()
        if self._socket.fileno() >= 0:
            self._socket.close()
            with contextlib.suppress(OSError):
                if self._path.lstat().st_ino == self._inode:  # else another agent has replaced it
                    self._path.unlink()

    @property
    def _is_full(self) -> bool:
        return len(self._queue) >= _MOST_QUEUED or self._queued_bytes >= _MOST_HELD_BYTES

    def _read(self) -> None:
        for _ in range(len(self._connections)):
            if self._is_full or not self._connections:
                return
            connection = self._connections[0]
            # The next call begins with the connection behind it, so that a busy rank does not starve the others.
            self._connections.rotate(-1)
            self._held_bytes -= connection.reader.size_bytes
            try:
                self._read_one(connection)
            except (EOFError, ConnectionResetError):  # the latter: it closed before it read our request
                self._drop(connection)
            except (OSError, RecordError) as error:
                self._refuse(connection, str(error))
            # A connection that was dropped has an empty reader by now, and adds nothing.
            self._held_bytes += connection.reader.size_bytes
            while self._held_bytes > _MOST_HELD_BYTES:
                largest = max(self._connections, key=lambda one: one.reader.size_bytes)
                self._held_bytes -= largest.reader.size_bytes
                rule = f"frames that are not whole must be at most {_MOST_HELD_BYTES} bytes of all connections"
                self._refuse(largest, f"{rule}; this one has {largest.reader.size_bytes}")

    def _read_one(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        if not data:  # the other end is closed
            raise EOFError
        left_bytes = connection.reader.size_bytes + len(data)
        for frame in connection.reader.feed(data):
            self._take(frame, connection, left_bytes - connection.reader.size_bytes)
            left_bytes = connection.reader.size_bytes

    def _take(self, frame: Frame, connection: _Connection, size_bytes: int) -> None:
        if isinstance(frame, Waiting):  # of part files
            return
        if isinstance(frame, Unmarked):
            connection.is_unmarked = True
        elif isinstance(frame, Lost):
            self._queue_heartbeat(connection, frame.lost_rows, "running")
        elif isinstance(frame, End):
            self._ended += 1
            connection.has_ended = True
            self._queue_heartbeat(connection, frame.lost_rows, "ended")
        else:
            if isinstance(frame, Announcement):
                self._admit(frame, connection)
            else:
                header, own = frame.header, connection.announced
                if own is None or key_of(header) != key_of(own):
                    announced = "none" if own is None else f"rank {own.rank}"
                    rule = "batch must be of the rank announced before it"
                    raise RecordError(f"{rule}; got rank {header.rank}, announced {announced}")
            self._queue.append((frame, size_bytes))
            self._queued_bytes += size_bytes

    def _queue_heartbeat(self, connection: _Connection, lost_rows: int, state: str) -> None:
        own = connection.announced
        if own is not None:
            # A rank that was never announced has sent no rows either, so nothing is reported of it.
            lost = {"commops": SourceProgress(0, None, lost_rows)}
            reason = "finished" if state == "ended" else None
            who = (own.job, own.attempt, own.rank)
            beat = Heartbeat(*who, lost, state, reason, start=own.start, since_ns=own.since_ns)
            self._queue.append((beat, 0))

    def _release_lost(self) -> None:
        for key, lost_s in list(self._lost.items()):
            if self._clock_s() - lost_s < GONE_S:
                return
            del self._lost[key]
            self._release(key)

    def _release(self, key: RankKey) -> None:
        _LOG.info("event=torch_rank_gone job=%r attempt=%d rank=%d", *key[:3])
        self._queue.append((Heartbeat(*key[:3], state=GONE, start=key[3], since_ns=key[4]), 0))

    def _admit(self, announcement: Announcement, connection: _Connection) -> None:
        """Set the rank of a connection."""
        key = key_of(announcement)
        others = (other.announced for other in self._connections if other is not connection)
        taken = {key_of(other) for other in others if other is not None}
        if key in taken:
            effect = "rows of two processes mix"
            _LOG.warning("event=torch_rank_twice job=%r attempt=%d rank=%d effect=%r", *key[:3], effect)
        before = connection.announced
        if before is not None and key_of(before) not in {key, *taken}:
            # The process goes on as another rank, or in another group: else its NIC would stay that of the old place.
            self._release(key_of(before))
        connection.announced = announcement
        # As this process counts them, whatever the container of the other calls itself.
        peer = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid = _PEER.unpack(peer)[0]  # 0: it is in a namespace that can't be seen from here
        connection.process = pid, _began(pid)
        self._lost.pop(key, None)
        if connection.is_unmarked:
            self._unmarked.add(key)
        else:
            # The rank may have been started again with other settings.
            self._unmarked.discard(key)

    def _refuse(self, connection: _Connection, reason: str) -> None:
        _LOG.warning("event=torch_connection_closed error=%r", reason)
        self.closed_connections += 1
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        connection.socket.close()
        connection.reader = FrameReader()  # frees the bytes that the old one holds
        self._connections.remove(connection)
        own = connection.announced
        connected = {key_of(one.announced) for one in self._connections if one.announced is not None}
        if own is not None and not connection.has_ended and key_of(own) not in connected:
            self._lost[key_of(own)] = self._clock_s()


def _began(pid: int) -> str:
    """Return when a process began, in ticks since the host did; empty: it is not there, or hidden from us."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _remove_stale(path: Path) -> None:
    """Remove a socket that an agent left behind; raises `InputError` where something else is there."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise InputError("a file that is no socket, and is not ours to replace")
    # The path outlives the process that made it: only an attempt to connect shows whether one still listens.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # a process listens, and its queue of connections is full
    raise InputError("a socket on which another process listens")
