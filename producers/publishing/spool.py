"""Messages that wait on disk while Kafka is away, in order and within a bound.

A segment is one file, written whole under another name and then renamed, so that it is either there or not. Its name
is the number of its first message; numbers grow, and the order of names is the order of messages. Nothing is synced:
the spool outlives the agent, not the host.
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, NamedTuple

from irregulars.errors import InputError
from irregulars.private_files import make_private_directory, write_private_file

_LOG: Final = logging.getLogger("irregulars.agent")
_MAGIC: Final = b"IRSPOOL1"
_CHECKSUM: Final = struct.Struct("<I")
_FRAME: Final = struct.Struct("<BHIIqH")  # lengths of topic, key and value; rows; attempt; length of partition key
_SUFFIX: Final = ".spool"
_NAME: Final = re.compile(r"[0-9]{20}\.spool")
# Between the first numbers of two agents' segments: more than one segment has messages.
_NUMBERS_APART: Final = 1 << 32


class Message(NamedTuple):
    """One message for Kafka."""

    topic: str  # without prefix
    key: bytes
    value: bytes
    # rows, attempt: Of a batch; rows that can't be delivered are counted by them
    rows: int = 0
    attempt: int = 0
    partition_key: bytes = b""  # the key whose partition it goes to; empty: its own

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes in a segment, about those that it takes in memory."""
        return _FRAME.size + len(self.topic) + len(self.key) + len(self.value) + len(self.partition_key)


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of messages: its path, the number of its first message, its size."""

    path: Path
    number: int
    size_bytes: int


class Spool:
    """A queue of segments in a directory of its own.

    `directory`: is made if it is not there, and only its owner may read it. Segments of an earlier agent come first.
    `limit_bytes`: of all segments; above it the oldest are dropped. `on_drop`: is given the messages of each dropped
    segment. Raises InputError if the directory can't be made or read.
    """

    def __init__(self, directory: Path, limit_bytes: int, on_drop: Callable[[Sequence[Message]], None]) -> None:
        self.directory, self._limit_bytes, self._on_drop = directory, limit_bytes, on_drop
        self.size_bytes = 0
        self.unreadable_segments = 0
        self._is_writable = True
        self._segments: deque[Segment] = deque()
        try:
            make_private_directory(directory, is_ours=True)
            # Drafts of an agent that was killed while it wrote.
            for path in directory.glob("*.part"):
                if path.is_file():
                    path.unlink()
            for path in sorted(directory.glob(f"*{_SUFFIX}")):
                if _NAME.fullmatch(path.name) and path.is_file():  # other files are left alone
                    self._segments.append(Segment(path, int(path.stem), path.stat().st_size))
            self.size_bytes = sum(segment.size_bytes for segment in self._segments)
        except OSError as error:
            text = f"spool directory must be one that we can write; got {error.strerror} ({directory})"
            raise InputError(text) from error

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def next_number(self) -> int:
        """A number above those of all messages in the spool."""
        return self._segments[-1].number + _NUMBERS_APART if self._segments else _NUMBERS_APART

    def append(self, number: int, messages: Sequence[Message]) -> bool:
        """Append messages, the first with `number`; return False if the disk took none.

        Messages that the disk does not take are dropped, as the oldest are above the limit.
        """
        segment = self._write(number, messages)
        if segment is None:
            self._on_drop(messages)
            return False
        self._segments.append(segment)
        # The newest segment stays, also where it is above the limit alone. One at a time: of segments behind one that
        # can't be read none must go that would have room without it.
        while self.size_bytes > self._limit_bytes and len(self._segments) > 1:
            oldest = self._segments.popleft()
            self._on_drop(self._read(oldest) or ())
            self.remove(oldest)
        return True

    def put_back(self, number: int, messages: Sequence[Message], taken: Iterable[Segment]) -> bool:
        """Put messages that were taken and not delivered back at the front; `taken` are their segments."""
        segment = self._write(number, messages)
        if segment is None:
            return False  # the files of `taken` stay, and their messages come again
        self._segments.appendleft(segment)
        for one in taken:
            # The new segment may have the name, and so the file, of the first one taken.
            if one.path != segment.path:
                self.remove(one)
        return True

    def take(self) -> tuple[Segment, list[Message]] | None:
        """Read the oldest segment, which is then no longer part of the queue; its file stays until `remove`."""
        while self._segments:
            segment = self._segments.popleft()
            messages = self._read(segment)
            if messages is not None:
                return segment, messages
            # It must not hold up those behind it.
            self.remove(segment)
        return None

    def _read(self, segment: Segment) -> list[Message] | None:
        """Read a segment that is no longer part of the queue; None: it is damaged, and counted."""
        self.size_bytes -= segment.size_bytes
        try:
            return _unframe(segment.path.read_bytes())
        except (OSError, ValueError, struct.error) as error:
            self.unreadable_segments += 1
            _LOG.error("event=spool_segment_unreadable file=%s reason=%r", segment.path, str(error))
            return None

    def remove(self, segment: Segment) -> None:
        """Delete the file of a segment that was taken, once all its messages are delivered.

        A file that can't be deleted stays, and the next agent sends it again: rows twice count once.
        """
        try:
            segment.path.unlink(missing_ok=True)
        except OSError as error:
            self._note_unwritable(error)

    def _write(self, number: int, messages: Sequence[Message]) -> Segment | None:
        body = b"".join(_frame(message) for message in messages)
        path = self.directory / f"{number:020d}{_SUFFIX}"
        draft = path.with_suffix(".part")
        try:
            write_private_file(draft, _MAGIC + _CHECKSUM.pack(zlib.crc32(body)) + body)
            draft.rename(path)
        except OSError as error:
            self._note_unwritable(error)
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)  # half of a file, on a disk that is full
            return None
        self._is_writable = True
        size_bytes = len(_MAGIC) + _CHECKSUM.size + len(body)
        self.size_bytes += size_bytes
        return Segment(path, number, size_bytes)

    def _note_unwritable(self, error: OSError) -> None:
        if self._is_writable:
            _LOG.error("event=spool_unwritable directory=%s reason=%r", self.directory, error.strerror)
        self._is_writable = False


def _frame(message: Message) -> bytes:
    topic = message.topic.encode()
    lengths = (len(topic), len(message.key), len(message.value))
    frame = _FRAME.pack(*lengths, message.rows, message.attempt, len(message.partition_key))
    return b"".join((frame, topic, message.key, message.value, message.partition_key))


def _unframe(content: bytes) -> list[Message]:
    """Read a segment back; raises `ValueError` where it is not whole."""
    start = len(_MAGIC) + _CHECKSUM.size
    if not content.startswith(_MAGIC) or len(content) < start:
        raise ValueError("segment must begin as one of ours; it does not")
    if _CHECKSUM.unpack_from(content, len(_MAGIC))[0] != zlib.crc32(content[start:]):
        raise ValueError("segment must have the checksum that it names; it has another")
    messages, at = [], start
    while at < len(content):
        *lengths, rows, attempt, where_length = _FRAME.unpack_from(content, at)
        at += _FRAME.size
        ends = list(accumulate((*lengths, where_length), initial=at))
        if ends[-1] > len(content):
            raise ValueError("last message of a segment must be whole; it is not")
        topic, key, value, where = (content[first:past] for first, past in pairwise(ends))
        messages.append(Message(topic.decode(), key, value, rows, attempt, where))
        at = ends[-1]
    return messages
