"""The state of an inference in a file, so that numbers go on after a restart of whoever infers.

The first line says the version and the checksum of the second, which is the state: what a broken disk or a hand has
changed must not be taken for numbers of iterations.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from irregulars.errors import InputError

_VERSION: Final = 2


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write JSON values and numpy arrays; whole or not at all.

    Raises
    ------
    OSError
        If it can't be written there.
    """
    body = json.dumps(state, default=_plain, separators=(",", ":"))
    head = json.dumps({"version": _VERSION, "crc32": zlib.crc32(body.encode())})
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(f"{head}\n{body}", encoding="utf-8")
    fresh.replace(path)


def read_state(path: Path) -> dict[str, Any] | None:
    """Read what `write_state` wrote; None where there is no file.

    Raises
    ------
    InputError
        If the file is none of ours, or of another version.
    """
    try:
        head, _, body = path.read_text(encoding="utf-8").partition("\n")
        _require_whole(json.loads(head), body)
        state = json.loads(body, object_hook=_array)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError, binascii.Error) as error:
        raise InputError(f"{path}: must be a stored inference; got {type(error).__name__}: {error}") from error
    if not isinstance(state, dict):
        raise InputError(f"{path}: must be a stored inference; got {type(state).__name__}")
    return state


def _require_whole(head: Any, body: str) -> None:
    if not isinstance(head, dict) or head.get("version") != _VERSION:
        raise ValueError(f"a file that is not of version {_VERSION}")
    if head.get("crc32") != zlib.crc32(body.encode()):
        raise ValueError("a file with another checksum than it says")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.str, "base64": base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"state must hold JSON values and arrays; got {type(value).__name__}")


def _array(values: dict[str, Any]) -> Any:
    if values.keys() != {"dtype", "base64"}:
        return values
    dtype = np.dtype(values["dtype"])
    if dtype.hasobject:
        raise ValueError("array must hold numbers; got objects")
    return np.frombuffer(base64.b64decode(values["base64"]), dtype=dtype)
