"""Announcements and batches as frames of bytes: the content of a part file, and of the local socket.

A frame is the kind (one letter), the length of the value (4 bytes, little-endian), the value. Values are those of the
bus: `encode_announcement`, `encode_batch`; the last frame marks the end of the rank.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from irregulars.errors import RecordError
from irregulars.messages.announcements import Announcement, decode_announcement, encode_announcement
from irregulars.messages.records import Batch, decode_batch, encode_batch
from irregulars.validation import Count, checked, json_object

_HEAD: Final = struct.Struct("<cI")
_BATCHES: Final = {b"O": "commops", b"I": "iterations", b"B": "bandwidth"}
_LETTERS: Final = {schema: letter for letter, schema in _BATCHES.items()}
_MOST_BYTES: Final = 64 << 20  # of a value in a file; a larger one is no frame of ours


@dataclass(frozen=True, slots=True)
class End:
    """The last frame: the rank sends no more. It holds the number of rows that the rank dropped."""

    lost_rows: int = 0


@dataclass(frozen=True, slots=True)
class Unmarked:
    """Sent before the announcement: operators will carry no iteration, so the reader must infer it."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The number of rows that the rank has dropped so far."""

    lost_rows: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Operators that had not ended when this was written: the newest counts, where no later row has their end."""

    batch: Batch


Frame = Announcement | Batch | Unmarked | Lost | Waiting | End


def encode_frame(frame: Frame) -> bytes:
    """Encode one frame."""
    if isinstance(frame, Announcement):
        letter, value = b"A", encode_announcement(frame)
    elif isinstance(frame, Batch):
        letter, value = _LETTERS[frame.header.schema], encode_batch(frame)
    elif isinstance(frame, Unmarked):
        letter, value = b"U", b""
    elif isinstance(frame, Waiting):
        letter, value = b"W", encode_batch(frame.batch)
    else:
        letter = b"L" if isinstance(frame, Lost) else b"E"
        value = json.dumps({"lost_rows": frame.lost_rows}).encode()
    return _HEAD.pack(letter, len(value)) + value


class FrameReader:
    """Puts frames together from bytes as they come.

    `most_bytes`: of a frame's value; above it the bytes are no frame of ours.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._bytes = bytearray()
        self._most_bytes = most_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the frame that is not whole yet."""
        return len(self._bytes)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes; yield the frames that are whole now.

        Raises RecordError if the bytes are no frames; nothing can be read after them.
        """
        self._bytes += data
        while len(self._bytes) >= _HEAD.size:
            letter, length = _HEAD.unpack_from(self._bytes)
            # Before the value is there: by a damaged length we would wait for bytes that never come.
            if length > self._most_bytes or letter not in (b"A", b"E", b"L", b"U", b"W", *_BATCHES):
                raise RecordError(f"frame must be one of ours; got kind {letter!r}, {length} bytes")
            if len(self._bytes) < _HEAD.size + length:
                return
            value = bytes(self._bytes[_HEAD.size : _HEAD.size + length])
            del self._bytes[: _HEAD.size + length]
            yield _decode(letter, value)


def _decode(letter: bytes, value: bytes) -> Frame:
    if letter == b"A":
        return decode_announcement(value)
    if letter in _BATCHES:
        return decode_batch(value, _BATCHES[letter])
    if letter == b"W":
        return Waiting(decode_batch(value, "commops"))
    if letter == b"U":
        return Unmarked()
    given = json_object(value, "last frame").get("lost_rows")
    lost_rows = checked(given, Count, "lost_rows", "last frame", RecordError)
    return Lost(lost_rows) if letter == b"L" else End(lost_rows)


END_BYTES: Final = 64  # bytes at the end of a file that show whether its last frame is `End`


def is_ended(tail: bytes) -> bool:
    """Whether a file ends with `End`, by its last `END_BYTES`, or all if there are fewer.

    >>> end = encode_frame(End(3))
    >>> is_ended(end), is_ended(encode_frame(Unmarked()) + end), is_ended(end[:-1]), is_ended(b"")
    (True, True, False, False)
    """
    at = tail.rfind(b"E")  # behind it the last frame has small lengths, and a text without capitals
    if at < 0 or len(tail) < at + _HEAD.size:
        return False
    value = tail[at + _HEAD.size :]
    if _HEAD.unpack_from(tail, at)[1] != len(value):
        return False
    try:
        return isinstance(_decode(b"E", value), End)
    except RecordError:
        return False
