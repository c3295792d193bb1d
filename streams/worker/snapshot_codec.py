"""Bytes of a monitor's state: JSON for its shape, raw buffers for its numpy arrays.

No pickle: whoever may write to the snapshot topic must not be able to run code in a worker. Layout::

    "IRS" version:u8  length of the JSON header:u32 little-endian  header  buffers, one after the other

The header is ``{"tree": ..., "arrays": [[dtype, shape], ...]}``. In the tree an array is ``{"$array": index}``; a
dictionary with a key that begins with ``$`` or is no text is written as ``{"$items": [[key, value], ...]}``.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from irregulars.errors import RecordError

_MAGIC: Final = b"IRS"
_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<3sBI")
_KINDS: Final = "biufSU"  # bool, integers, floats, fixed-width bytes and text


def pack(tree: Any) -> bytes:
    """Return `tree` as bytes.

    Parameters
    ----------
    tree
        JSON scalars (also integers of any size, NaN and infinities), lists, tuples (read back as lists), dictionaries
        with scalar keys, and numpy arrays of booleans, numbers and fixed-width text.

    Raises
    ------
    TypeError
        If something else is inside: a programming error, hence no `RecordError`.

    >>> unpack(pack({"count": 3, 7: [None, 0.5]}))
    {'count': 3, 7: [None, 0.5]}
    """
    arrays: list[np.ndarray] = []
    encoded = _encode(tree, arrays)
    formats = [[array.dtype.str, list(array.shape)] for array in arrays]
    header = json.dumps({"tree": encoded, "arrays": formats}, separators=(",", ":")).encode()
    return b"".join([_PREFIX.pack(_MAGIC, _VERSION, len(header)), header, *(array.tobytes() for array in arrays)])


def unpack(value: bytes | None) -> Any:
    """Read back what `pack` wrote; the arrays are writable copies.

    Raises
    ------
    RecordError
        If the bytes are no snapshot, are cut, or are of a newer version.
    """
    header, body = _split(value or b"")
    try:
        arrays = _read_arrays(header["arrays"], body)
        return _decode(header["tree"], arrays)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RecordError(f"snapshot must follow its format; got {type(error).__name__}: {error}") from error


def _encode(tree: Any, arrays: list[np.ndarray]) -> Any:
    if tree is None or (isinstance(tree, bool | int | float | str) and not isinstance(tree, np.generic)):
        return tree
    if isinstance(tree, np.ndarray):
        return _add_array(tree, arrays)
    if isinstance(tree, np.generic) and tree.dtype.kind in "biuf":
        return tree.item()
    if isinstance(tree, list | tuple):
        return [_encode(item, arrays) for item in tree]
    if isinstance(tree, Mapping):
        return _encode_mapping(tree, arrays)
    raise TypeError(f"state must be JSON scalars, lists, dictionaries and numpy arrays; got {type(tree).__name__}")


def _add_array(array: np.ndarray, arrays: list[np.ndarray]) -> dict[str, int]:
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"array must hold booleans, numbers or fixed-width text; got {array.dtype}")
    arrays.append(array)
    return {"$array": len(arrays) - 1}


def _encode_mapping(tree: Mapping[Any, Any], arrays: list[np.ndarray]) -> dict[str, Any]:
    if all(isinstance(key, str) and not key.startswith("$") for key in tree):
        return {key: _encode(value, arrays) for key, value in tree.items()}
    if any(isinstance(key, list | tuple | Mapping | np.ndarray) for key in tree):
        raise TypeError(f"keys of state must be scalars; got {sorted({type(key).__name__ for key in tree})}")
    return {"$items": [[_encode(key, arrays), _encode(value, arrays)] for key, value in tree.items()]}


def _decode(tree: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(tree, list):
        return [_decode(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$array" in tree:
        return arrays[tree["$array"]]
    if "$items" in tree:
        return {_decode(key, arrays): _decode(value, arrays) for key, value in tree["$items"]}
    return {key: _decode(value, arrays) for key, value in tree.items()}


def _split(value: bytes) -> tuple[dict[str, Any], memoryview]:
    if len(value) < _PREFIX.size or not value.startswith(_MAGIC):
        raise RecordError(f"snapshot must begin with {_MAGIC!r}, version and length; got {value[:8]!r}")
    _, version, length = _PREFIX.unpack_from(value)
    if version > _VERSION:
        raise RecordError(f"version must be at most {_VERSION}; got {version} (a newer worker? upgrade this one)")
    end = _PREFIX.size + length
    try:
        header = json.loads(value[_PREFIX.size : end])
    except ValueError as error:
        raise RecordError(f"snapshot must have a JSON header of {length} bytes; got {error}") from error
    if not isinstance(header, dict):
        raise RecordError(f"snapshot header must be a JSON object; got {type(header).__name__}")
    return header, memoryview(value)[end:]


def _read_arrays(formats: list[Any], body: memoryview) -> list[np.ndarray]:
    arrays, begin = [], 0
    for name, shape in formats:
        dtype = np.dtype(name)
        if dtype.kind not in _KINDS:
            raise RecordError(f"array must hold booleans, numbers or fixed-width text; got {dtype}")
        end = begin + math.prod(shape) * dtype.itemsize
        arrays.append(np.frombuffer(body[begin:end], dtype=dtype).reshape(shape).copy())
        begin = end
    if begin != len(body):
        raise RecordError(f"snapshot must have {begin} bytes of arrays; got {len(body)}")
    return arrays
