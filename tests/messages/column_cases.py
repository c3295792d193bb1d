"""For each column its least and largest value, those just beyond, and odd ones that its type on the wire can hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from irregulars.messages.bounds import BOUNDS
from irregulars.messages.evidence import CLASS_COLUMNS, COLUMNS, PATTERN_COLUMNS
from irregulars.messages.records import BATCH_SCHEMAS


class Case(NamedTuple):
    """A value of a column; `is_within`: whether the table of bounds has it, None for null."""

    schema: str
    column: str
    value: float | None
    is_within: bool | None

    def __str__(self) -> str:
        return f"{self.schema}.{self.column}={self.value}"


def column_cases(schema: str) -> Iterator[Case]:
    """All cases of a schema, each column's together."""
    for name, kind in _kinds(schema):
        bound = BOUNDS[schema].get(name)
        for value in sorted(set(_values(kind, bound)), key=str):
            is_within = bound is None or math.isnan(value) or bound.holds(value)
            yield Case(schema, name, value, is_within)
        yield Case(schema, name, None, None)


def _kinds(schema: str) -> list[tuple[str, pa.DataType]]:
    if schema in BATCH_SCHEMAS:
        return [(field.name, field.type) for field in BATCH_SCHEMAS[schema] if field.name != "phase"]
    classes = [(f"class_{name}", kind) for name, kind in CLASS_COLUMNS.items()]
    patterns = [(f"{name} of a pattern", kind) for name, kind in PATTERN_COLUMNS.items()]
    flat = [(name, kind) for name, kind in COLUMNS.items() if name != "phase"]
    return [*flat, ("offsets", pa.int64()), *classes, *patterns]


def _values(kind: pa.DataType, bound: Any) -> list[float]:
    if pa.types.is_floating(kind):
        near = (
            [] if bound is None else [bound.least, np.nextafter(bound.least, -np.inf), bound.most, bound.most * 1.01]
        )
        most = 1e308 if kind == pa.float64() else 3.4e38
        return [float(one) for one in (*near, -1.0, 0.0, most, -most, math.inf, -math.inf, math.nan)]
    info = np.iinfo(kind.to_pandas_dtype())
    near = [] if bound is None else [bound.least, bound.least - 1, bound.most, bound.most + 1]
    return [int(one) for one in (*near, info.min, info.max, -1, 0) if info.min <= one <= info.max]
