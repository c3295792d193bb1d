"""How much memory an Arrow message would take, read from its metadata before any of it is taken.

A compressed buffer says in its first eight bytes how long it becomes, so that 54 kB can ask for gigabytes. Arrow
believes it; hence this look at the flatbuffers of a stream (the format is fixed: Arrow's ``Message.fbs``). It takes
some microseconds and reads no buffer beyond that. Bytes that are no Arrow stream pass: pyarrow refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Final

from irregulars.errors import RecordError

MAX_BATCH_ROWS: Final = 1 << 18
"""Rows of one message: a message of 1 MB holds at most 25,000, unless its producer compresses them to four bytes."""

MAX_BODY_BYTES: Final = 32 << 20
"""Bytes of one message once it is decompressed: `MAX_BATCH_ROWS` rows of the widest schema take 24 MB."""

_MOST_MESSAGES: Final = 64
_MOST_BUFFERS: Final = 4096
"""Of a stream and of a batch: ours have three messages and some dozen buffers. Looking at more takes time."""

_CONTINUATION: Final = b"\xff\xff\xff\xff"  # begins each message since Arrow 0.15
_DICTIONARY: Final = 2  # of the union `MessageHeader`
_RECORD_BATCH: Final = 3

# Fields of the tables, by their place in `Message.fbs`.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
_DATA: Final = 1

_U8, _U16, _I32, _U32, _I64 = (Struct(f"<{kind}") for kind in "BHiIq")
_BUFFER: Final = Struct("<qq")  # offset and length


def require_bounded(value: bytes) -> None:
    """Check that an Arrow stream declares a number of rows and bytes that a worker can hold; raises `RecordError`."""
    size = 0
    try:
        for rows, expanded in _batches(value):
            size += expanded
            if not 0 <= rows <= MAX_BATCH_ROWS:
                raise RecordError(f"message must hold at most {MAX_BATCH_ROWS} rows; got {rows}")
            if size > MAX_BODY_BYTES:
                raise RecordError(f"message must be at most {MAX_BODY_BYTES} bytes decompressed; got {size} or more")
    except (StructError, OverflowError):  # the second: outside of all that can be addressed
        raise RecordError("message must be an Arrow IPC stream; got metadata that point outside of it") from None


def _batches(value: bytes) -> Iterator[tuple[int, int]]:
    """Yield the rows of each batch of a stream, and how many bytes its compressed buffers become."""
    at = messages = 0
    while at + 8 <= len(value):
        messages += 1
        if messages > _MOST_MESSAGES:
            raise RecordError(f"message must be an Arrow IPC stream of at most {_MOST_MESSAGES} messages; got more")
        at += 4 if value[at : at + 4] == _CONTINUATION else 0
        metadata_bytes = _I32.unpack_from(value, at)[0]
        if metadata_bytes <= 0:  # the end of the stream, or no stream
            return
        at += 4
        message = at + _U32.unpack_from(value, at)[0]
        body = at + metadata_bytes
        header = _field(value, message, _HEADER)
        # A message without a type points outside, which is refused.
        kind = _U8.unpack_from(value, _field(value, message, _HEADER_TYPE) or len(value))[0]
        if header is not None and kind in (_DICTIONARY, _RECORD_BATCH):
            batch = _table(value, header)
            if kind == _DICTIONARY:
                batch = _table(value, _field(value, batch, _DATA))
            count = _field(value, batch, _LENGTH)
            # Flatbuffers leave out fields that have their default: a missing length is 0, here and below.
            rows = 0 if count is None else _I64.unpack_from(value, count)[0]
            is_plain = _field(value, batch, _COMPRESSION) is None
            yield rows, 0 if is_plain else _expanded_bytes(value, batch, body)
        length = _field(value, message, _BODY_LENGTH)
        body_bytes = 0 if length is None else _I64.unpack_from(value, length)[0]
        # It would lead back to bytes that were read; pyarrow refuses it.
        if body_bytes < 0:
            return
        at = body + body_bytes


def _expanded_bytes(value: bytes, batch: int, body: int) -> int:
    """Return the sum of the buffers' declared sizes; one that declares -1 is not compressed."""
    field = _field(value, batch, _BUFFERS)
    if field is None:
        return 0
    vector = _table(value, field)
    buffers, size = _U32.unpack_from(value, vector)[0], 0
    if buffers > _MOST_BUFFERS:
        raise RecordError(f"batch must have at most {_MOST_BUFFERS} buffers; got {buffers}")
    for number in range(buffers):
        offset, length = _BUFFER.unpack_from(value, vector + 4 + number * _BUFFER.size)
        # An empty buffer is sent as it is, without a size before it.
        if length >= _I64.size and offset >= 0:
            size += max(_I64.unpack_from(value, body + offset)[0], 0)
    return size


def _table(value: bytes, at: int | None) -> int:
    """Follow an offset; a missing one points outside."""
    return len(value) if at is None else at + int(_U32.unpack_from(value, at)[0])


def _field(value: bytes, table: int, number: int) -> int | None:
    """Return the position of a table's field; None if the table lacks it, which means its default."""
    # `unpack_from` counts negative positions from the end, where other bytes are.
    if table < 0:
        raise StructError
    vtable = table - _I32.unpack_from(value, table)[0]
    if vtable < 0:
        raise StructError
    entry = 4 + 2 * number
    if entry >= _U16.unpack_from(value, vtable)[0]:
        return None
    offset = _U16.unpack_from(value, vtable + entry)[0]
    return table + offset if offset else None
