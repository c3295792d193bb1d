"""States of detectors as bytes: plain values and numpy arrays, and never a pickle.

Write access to the snapshot topic must not be a way to run code in a worker. So a detector hands out values, and
takes values: ``None``, booleans, integers, floats, text, bytes, arrays of numbers or booleans, and lists and mappings
(with text as keys) of those.

>>> import numpy as np
>>> decode_detector(encode_detector({"taught": 3, "means": np.array([1.0, 2.0])}))
{'taught': 3, 'means': array([1., 2.])}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from irregulars.detectors.plugins.protocol import Detector, MakeDetector, has_state, name_of
from irregulars.errors import PluginError, RecordError

_ARRAY: Final = 1  # MessagePack's extension code of arrays
_DTYPE: Final = re.compile(r"[<>|=][biuf]\d{1,2}")


@dataclass(frozen=True, slots=True)
class StoredDetector:
    """One detector's state in a snapshot."""

    name: str  # the detector's
    state: bytes  # of `encode_detector`; empty: it was too large, or there was none to be had


def encode_detector(state: Mapping[str, Any]) -> bytes:
    """Encode the result of a detector's ``state()``.

    Raises `PluginError` if it holds anything but the values that this file lists.
    """
    try:
        return _ENCODER.encode(dict(state))
    except (TypeError, ValueError, OverflowError) as error:
        raise PluginError(
            f"state of a detector must be a mapping of plain values and arrays of numbers; got {error}"
        ) from error


def decode_detector(value: bytes) -> dict[str, Any]:
    """Decode the result of `encode_detector`.

    Raises `RecordError` if it is no such state.
    """
    try:
        return _DECODER.decode(value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RecordError(f"state of a detector must be a mapping; got another one: {error}") from error


def stored_detectors(detectors: Iterable[tuple[str, Detector]], most_bytes: int) -> tuple[StoredDetector, ...]:
    """Return the states of those detectors that have one, each with its name.

    That of one that raises, or hands out other than plain values, is empty: it begins cold after a restart, and its
    job has a snapshot all the same.
    """
    pairs = ((name, _state_of(one)) for name, one in detectors if has_state(one))
    return tuple(StoredDetector(name, state if len(state) <= most_bytes else b"") for name, state in pairs)


def _state_of(detector: Detector) -> bytes:
    try:
        return encode_detector(detector.state())  # type: ignore[attr-defined]
    except Exception:  # a stranger's code
        return b""


def restore_detectors(
    makers: Iterable[MakeDetector], states: Iterable[StoredDetector]
) -> tuple[list[tuple[str, Detector]], tuple[str, ...]]:
    """Make detectors that go on from their states, by name.

    One that raises for its state begins cold: the options of its constructor, or its own code, may be others now, and
    nothing but its scores depends on it. A detector that the settings did not name before is new, and not cold.
    Returns all of them with their names, and the names of those that begin cold though they can keep a state.
    """
    by_name = {one.name: one.state for one in states}
    made, cold = [], []
    for make in makers:
        detector = make()
        name = name_of(detector)
        made.append((name, detector))
        if name in by_name and not _took(detector, by_name[name]):
            made[-1] = name, make()  # it may have taken half of it
            cold.append(name)
    return made, tuple(cold)


def _took(detector: Detector, state: bytes) -> bool:
    """Give a detector its state; return whether it took it."""
    try:
        values = decode_detector(state) if state else None
        if values is not None:
            detector.restore(values)  # type: ignore[attr-defined]
    except Exception:  # a stranger's code
        return False
    return values is not None


def _to_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and _DTYPE.fullmatch(value.dtype.str):
        content = np.ascontiguousarray(value).tobytes()
        return msgspec.msgpack.Ext(_ARRAY, _ENCODER.encode([value.dtype.str, list(value.shape), content]))
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    raise TypeError(f"{type(value).__name__}" + (f" of {value.dtype}" if isinstance(value, np.ndarray) else ""))


def _array(code: int, data: memoryview) -> Any:
    if code != _ARRAY:
        raise ValueError(f"extension of a detector's state must be {_ARRAY}; got {code}")
    dtype, shape, content = msgspec.msgpack.decode(data, type=tuple[str, list[int], bytes])
    # -1 would let `reshape` choose a length.
    if not _DTYPE.fullmatch(dtype) or min(shape, default=0) < 0:
        raise ValueError(f"array of a detector's state must hold numbers; got {dtype} of shape {shape}")
    if math.prod(shape) * np.dtype(dtype).itemsize != len(content):
        raise ValueError(f"array of {dtype} and shape {shape} must have as many bytes; got {len(content)}")
    # A copy, since arrays of `frombuffer` are read-only, and detectors learn in place.
    return np.frombuffer(content, dtype).reshape(shape).copy()


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_DECODER: Final[msgspec.msgpack.Decoder[dict[str, Any]]] = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_array)
