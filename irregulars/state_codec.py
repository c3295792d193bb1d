"""Bytes of a state, from which another process goes on where one stopped.

A state is a dataclass or a named tuple of plain values, of other such classes, and of numpy arrays. Its annotations
are the format: `encode_state` writes with msgspec, and `decode_state` checks each value against them as it reads.

No pickle: a right to write to the snapshot topic must not be one to run code in a worker. Layout::

    "IRS"  version:u8  CRC-32 of the rest:u32 little-endian  MessagePack
    "IRZ"  version:u8  CRC-32 of the rest:u32 little-endian  length:u64 little-endian  MessagePack, by Zstandard

An array is written as ``[dtype, shape, bytes, packing]``, a deque as a list. A `Part` is written as its value, or,
where `encode_root` leaves it out, as its number.

Large states are compressed, and large arrays before that by themselves: the first bytes of all values, then the
second bytes of all values, and so on. Values of neighbours (ranks of a job) differ in their last bytes alone, so that
a job's state takes an eighth.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar, get_args, get_origin

import msgspec
import numpy as np

from irregulars.errors import RecordError
from irregulars.validation import first_use

T = TypeVar("T")

_MAGIC: Final = b"IRS"
_MAGIC_PACKED: Final = b"IRZ"
_PREFIX: Final = struct.Struct("<3sBI")
_LENGTH: Final = struct.Struct("<Q")
_DTYPE: Final = re.compile(r"[<>|=]([biufSU])[1-9]\d{0,5}")  # bool, integers, floats, fixed-width bytes and text


_PACKED: Final = "zstd bytes by place"
_LEAST_PACKED: Final = 2_048  # bytes from which a state is worth compressing
_LEAST_PACKED_ARRAY: Final = 1_024
"""The same of an array by itself: a column of 128 ranks. Of shorter ones it costs time and saves nothing."""

_MOST_PACKED: Final = 256 << 20
"""Most bytes before compression: a few bytes of a message must not unfold to more than a worker holds."""


class _Array(NamedTuple):
    """A numpy array on its way; ``packing`` is `_PACKED`, or empty where the bytes are as in memory."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    packing: str = ""


class Part(Generic[T]):
    """A part of a state that is never changed once it is made: it can be stored once, apart from what changes.

    Parameters
    ----------
    value
        Of the kind that the annotation ``Part[kind]`` names.
    size_bytes
        About how long it is, encoded.
    """

    __slots__ = ("size_bytes", "value")

    def __init__(self, value: T, size_bytes: int = 0) -> None:
        self.value = value
        self.size_bytes = size_bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]  # as of all that compares by value and may hold arrays


def encode_root(state: Any, version: int, least_bytes: int) -> tuple[bytes, list[Any]]:
    """Return `state` as bytes without its larger parts, and the values of these; one that occurs twice comes once.

    `least_bytes`: a `Part` is left out if it is at least so long.
    """
    numbers: dict[int, int] = {}
    values: list[Any] = []

    def hook(value: Any) -> Any:
        if not isinstance(value, Part) or value.size_bytes < least_bytes:
            return _to_plain(value)
        # By identity, which no other value can get meanwhile: `state` keeps all of its parts alive.
        number = numbers.setdefault(id(value.value), len(values))
        if number == len(values):
            values.append(value.value)
        return number

    return _framed(msgspec.msgpack.Encoder(enc_hook=hook).encode(state), version), values


def encode_state(state: Any, version: int) -> bytes:
    """Return `state` as bytes.

    `version`: of the state's classes, 1 to 255: raise it with a change that older bytes don't fit, such as a new
    field without a default.

    Raises `TypeError` if something else is inside: a programming error, hence no `RecordError`.

    Examples
    --------
    >>> decode_state(encode_state({"a": (1, 2.5)}, 1), dict[str, tuple[int, float]], 1)
    {'a': (1, 2.5)}
    """
    return _framed(_ENCODER.encode(state), version)


def decode_state(value: bytes | None, kind: type[T], version: int, parts: Sequence[bytes] = ()) -> T:
    """Decode bytes of `encode_state` as a `kind`; arrays are writable copies.

    `parts`: values that `encode_root` left out, in its order, each as `encode_state` wrote it. A value that occurs
    twice is one object afterwards, as it was before.

    Raises `RecordError` if the bytes are no state, are damaged, are of another version, or hold something that is not
    of this kind.
    """
    body = _body(value or b"", kind.__name__, version)
    wanted: Any = kind
    try:
        decoder = _root_decoder(wanted, parts, version) if parts else _decoder(wanted)
        state: T = decoder.decode(body)
    # All but the first: lengths, nesting and texts of damaged bytes may ask for anything.
    except (msgspec.MsgspecError, MemoryError, OverflowError, RecursionError, UnicodeDecodeError) as error:
        raise RecordError(f"state must be a {kind.__name__}; got another one: {error or 'too much of it'}") from error
    return state


def _framed(body: bytes, version: int) -> bytes:
    magic, content = _MAGIC, body
    # A larger body goes out as it is: `_decompressed` would refuse it.
    if _LEAST_PACKED <= len(body) <= _MOST_PACKED:
        packed = _LENGTH.pack(len(body)) + _zstd().compress(body, asbytes=True)
        magic, content = (_MAGIC_PACKED, packed) if len(packed) < len(body) else (magic, body)
    return b"".join((_PREFIX.pack(magic, version, zlib.crc32(content)), content))


def _body(value: bytes, name: str, version: int) -> memoryview:
    if len(value) < _PREFIX.size or not value.startswith((_MAGIC, _MAGIC_PACKED)):
        raise RecordError(f"state must begin with {_MAGIC!r}, version and checksum; got {value[:8]!r} ({name})")
    magic, found, checksum = _PREFIX.unpack_from(value)
    if found != version:
        advice = "a newer process wrote it: upgrade this one" if found > version else "an older process wrote it"
        raise RecordError(f"version of a state must be {version}; got {found} ({name}; {advice})")
    content = memoryview(value)[_PREFIX.size :]
    if zlib.crc32(content) != checksum:
        raise RecordError(
            f"state must have the checksum {checksum}; got {zlib.crc32(content)} ({name}; it is damaged)"
        )
    if magic == _MAGIC:
        return content
    # A length of 0, where none is there, is refused by `_decompressed`.
    (size_bytes,) = _LENGTH.unpack_from(content) if len(content) >= _LENGTH.size else (0,)
    try:
        return memoryview(_decompressed(content[_LENGTH.size :], size_bytes))
    except ValueError as error:
        raise RecordError(f"state must be a {name}; got another one: {error}") from error


def _decompressed(packed: memoryview, size_bytes: int) -> Any:
    """Return `size_bytes` bytes; raises ValueError if they are more than can be, or other ones."""
    if not 0 < size_bytes <= _MOST_PACKED:
        raise ValueError(f"length of what is packed must be 1 to {_MOST_PACKED} bytes; got {size_bytes}")
    try:
        return _zstd().decompress(packed, decompressed_size=size_bytes)
    except OSError as error:
        raise ValueError(f"bytes must be packed as they say; got {error}") from error


# --- types that msgspec does not know by itself ---------------------------------------------------------------------


def _to_plain(value: Any) -> Any:
    """Turn a value that msgspec can't encode into one that it can."""
    if isinstance(value, np.ndarray):
        if not _DTYPE.fullmatch(value.dtype.str):
            raise TypeError(f"array must hold booleans, numbers or fixed-width text; got {value.dtype}")
        # Flat first: an array without dimensions has no view as single bytes.
        data, packing = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data, ""
        if _LEAST_PACKED_ARRAY <= len(data) <= _MOST_PACKED:
            by_place = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(-1, value.itemsize).T)
            packed: bytes = _zstd().compress(by_place, asbytes=True)
            data, packing = (memoryview(packed), _PACKED) if len(packed) < len(data) else (data, "")
        return _Array(value.dtype.str, value.shape, data, packing)
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, Part):
        return value.value
    raise TypeError(f"state must be plain values, dataclasses, named tuples and arrays; got {type(value).__name__}")


@lru_cache
def _zstd() -> Any:
    import pyarrow as pa  # takes longer to load than all else here

    return pa.Codec("zstd", compression_level=1)


def _from_plain(kind: Any, value: Any) -> Any:
    """Turn a plain value into an array or a deque; msgspec makes a ValidationError of errors, and says where."""
    origin = get_origin(kind) or kind
    if origin is np.ndarray:
        return _read_array(_convert(value, _Array), _wanted_scalar(kind))
    if origin is deque:
        return deque(_convert(value, list[get_args(kind)]))  # type: ignore[misc]
    if origin is Part:
        return Part(_convert(value, _kind_of(kind)))
    raise TypeError(f"state must be plain values, dataclasses, named tuples and arrays; got {kind}")


def _convert(value: Any, kind: Any) -> Any:
    with first_use(kind):
        return msgspec.convert(value, kind, dec_hook=_from_plain)


def _read_array(found: _Array, wanted: type[np.generic] | None) -> np.ndarray:
    if not _DTYPE.fullmatch(found.dtype):
        raise ValueError(f"array must hold booleans, numbers or fixed-width text; got {found.dtype!r}")
    dtype = np.dtype(found.dtype)
    if wanted is not None and dtype.type is not wanted:
        raise ValueError(f"array must hold {wanted.__name__}; got {dtype}")
    size_bytes = math.prod(found.shape) * dtype.itemsize
    if min(found.shape, default=0) < 0 or not (found.packing or size_bytes == len(found.data)):
        raise ValueError(f"array of {dtype} and shape {found.shape} must have as many bytes; got {len(found.data)}")
    if not found.packing:
        # Over a bytearray: an array over bytes can't be written to, and monitors change theirs in place.
        return np.ndarray(found.shape, dtype, bytearray(found.data))
    if found.packing != _PACKED:
        raise ValueError(f"packing of an array must be {_PACKED!r}; got {found.packing!r}")
    by_place = np.frombuffer(_decompressed(found.data, size_bytes), np.uint8).reshape(dtype.itemsize, -1)
    return np.ndarray(found.shape, dtype, bytearray(by_place.T.tobytes()))


@lru_cache
def _wanted_scalar(kind: Any) -> type[np.generic] | None:
    """The scalar of an annotation such as ``NDArray[np.int64]``; None where any will do."""
    if get_origin(kind) is None:
        return None
    (scalar,) = get_args(get_args(kind)[1]) or (Any,)
    return scalar if isinstance(scalar, type) and issubclass(scalar, np.generic) else None


def _root_decoder(kind: Any, parts: Sequence[bytes], version: int) -> msgspec.msgpack.Decoder[Any]:
    """Make a decoder that puts the parts back which `encode_root` left out."""
    known: dict[int, Part[Any]] = {}

    def hook(wanted: Any, value: Any) -> Any:
        if get_origin(wanted) is not Part or not isinstance(value, int):
            return _from_plain(wanted, value)
        if value not in known:
            if not 0 <= value < len(parts):
                raise ValueError(f"number of a part must be below {len(parts)}; got {value}")
            known[value] = Part(decode_state(parts[value], _kind_of(wanted), version))
        return known[value]

    with first_use(kind):
        return msgspec.msgpack.Decoder(kind, dec_hook=hook)


def _kind_of(kind: Any) -> Any:
    (inner,) = get_args(kind)
    return inner


@lru_cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with first_use(kind):
        return msgspec.msgpack.Decoder(kind, dec_hook=_from_plain)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_to_plain)
