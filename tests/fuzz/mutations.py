"""Changes that turn sound messages into ones that are nearly so; deterministic for a seed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any, Final

import pyarrow as pa

_INTERESTING: Final = (
    b"\0" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 7 + b"\x40", b"\0" * 7 + b"\x80", b"\xff\xff\xff\x7f",
    b"\0\0\0\x80", b"\0\0\0\x01", b"\x7f", b"\x80", b"null", b"[]", b"{}", b"true", b"1e999", b"-1", b'"\\ud800"',
    b"9" * 30, b"4611686018427387904", b"\x1b[31m", b"\xc2\x9b",
)  # fmt: skip


def mutate(value: bytes, random: Random) -> bytes:
    """Change a few places of `value`."""
    changed = bytearray(value)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        at = random.randrange(len(changed) + 1)
        how = random.randrange(6)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
        elif how == 1 and at < len(changed):
            changed[at] = random.randrange(256)
        elif how == 2:
            odd = random.choice(_INTERESTING)
            changed[at : at + len(odd)] = odd
        elif how == 3:
            del changed[at : at + random.choice((1, 2, 4, 8, 64))]
        elif how == 4:
            changed[at:at] = random.choice(_INTERESTING)
        else:
            source = random.randrange(len(changed) + 1)
            changed[at:at] = changed[source : source + random.choice((1, 4, 8, 64))]
    return bytes(changed)


_INTEGERS: Final = (
    -1, 0, 1, -(1 << 31), (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 48, (1 << 53) - 1, 1 << 53, 1 << 61,
    (1 << 61) + 1, 1 << 62, (1 << 62) + 1, -(1 << 62), (1 << 63) - 1, -(1 << 63), 7, 255, 65_535, 1 << 28,
)  # fmt: skip
_FLOATS: Final = (math.nan, math.inf, -math.inf, -1.0, 0.0, -0.0, 5e-324, 1e-9, 0.5, 1e15, 1e19, 1e308, -1e308)
_TEXTS: Final = ("", "a", "x" * 1024, "x" * 5000, "\0", "\n", "é", "🙂", "world", "train", "-1", "gpu_health")
_VALUES: Final = (*_INTEGERS, *_FLOATS, *_TEXTS, None, True, [], {}, [[]], [0], [-1, 1], {"": None}, 10**400)


def mutate_message(value: bytes, random: Random) -> bytes:
    """Change bytes of a message, or values in it so that it can still be read: those changes get furthest."""
    if random.random() < 0.3:
        return mutate(value, random)
    return mutate_json(value, random) if value[:1] == b"{" else mutate_arrow(value, random)


def mutate_json(value: bytes, random: Random) -> bytes:
    """Change a few values of a JSON object, at any depth."""
    record = json.loads(value)
    for _ in range(random.choice((1, 1, 2, 4))):
        _change_value(record, random)
    return json.dumps(record).encode()  # with NaN and Infinity, which Python reads


def _change_value(record: Any, random: Random) -> None:
    while True:
        if not record:
            return
        place = random.choice([*record] if isinstance(record, dict) else range(len(record)))
        inner = record[place]
        if not isinstance(inner, dict | list) or not inner or random.random() < 0.2:
            break
        record = inner
    if random.random() < 0.1:
        del record[place]
    elif isinstance(inner, int) and random.random() < 0.3:
        record[place] = inner + random.choice((-1, 1, 100, 1 << 20, 10**9, 10**12, 10**17, -(10**12)))
    else:
        record[place] = deepcopy(random.choice(_VALUES))  # later changes go into it


def mutate_arrow(value: bytes, random: Random) -> bytes:
    """Change some values of an Arrow stream of one batch, or the order, the number or the header of its rows."""
    with pa.ipc.open_stream(value) as reader:
        batch = reader.read_next_batch()
    header = batch.schema.metadata[b"irregulars"]
    how = random.random()
    if how < 0.15:
        header = mutate_json(header, random)
    elif how < 0.3:
        rows = [random.randrange(batch.num_rows) for _ in range(batch.num_rows)] if batch.num_rows else []
        batch = batch.take(pa.array(sorted(rows) if random.random() < 0.5 else rows, pa.int64()))
    elif batch.num_rows:
        for _ in range(random.choice((1, 1, 2, 3))):
            place = random.randrange(batch.num_columns)
            batch = with_column(batch, place, _changed(batch.column(place), random))
    return written(batch, header)


def with_column(batch: Any, place: int, values: Sequence[Any]) -> Any:
    """Return a batch with other values in one column."""
    kind = batch.schema.field(place).type
    arrays = [*batch.columns[:place], pa.array(values, kind), *batch.columns[place + 1 :]]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def written(batch: Any, header: bytes) -> bytes:
    """Write a batch as our producers do."""
    batch = batch.replace_schema_metadata({"irregulars": header})
    return b"".join((batch.schema.serialize(), batch.serialize(), b"\xff\xff\xff\xff\0\0\0\0"))


def _changed(column: Any, random: Random) -> list[Any]:
    values = column.to_pylist()
    rows = random.choices(range(len(values)), k=random.choice((1, 1, 1, 2, 8, len(values))))
    same = _odd(column.type, random)
    for row in rows:
        values[row] = same if random.random() < 0.8 else _odd(column.type, random)
        if isinstance(values[row], list) and random.random() < 0.5:
            values[row] = [*(column[row].as_py() or []), *values[row]]
    return values


def _odd(kind: Any, random: Random) -> Any:
    """Return some value that a column of this type can hold."""
    if random.random() < 0.1:
        return None
    if pa.types.is_list(kind):
        return [_odd(kind.value_type, random) for _ in range(random.randrange(3))]
    if pa.types.is_struct(kind):
        return {field.name: _odd(field.type, random) for field in kind}
    if pa.types.is_floating(kind):
        return random.choice(_FLOATS if kind == pa.float64() else (math.nan, math.inf, -1.0, 3e38))
    bits, is_signed = kind.bit_width, pa.types.is_signed_integer(kind)
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    return random.choice([one for one in _INTEGERS if least <= one <= most])
