"""From Arrow to numpy without pandas, which pyarrow's own conversion imports on first use (0.3 s, 40 MiB)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from irregulars.dtypes import Column, Flags


def to_numpy(column: pa.Array | pa.ChunkedArray, null: float | None = None) -> Column:
    """Return numbers as an array of their own type; without copies unless there are nulls or several chunks.

    `null`: the value in place of a null, of the column's type. Without it nulls are an error.

    >>> to_numpy(pa.chunked_array([[1, None], [3]]), -1).tolist()
    [1, -1, 3]
    """
    kind = _dtype_of(column.type)
    if isinstance(column, pa.Array):
        return _of_buffers(column, kind, null) if len(column) else np.empty(0, kind)
    chunks = column.chunks
    arrays = [_of_buffers(chunk, kind, null) for chunk in chunks if len(chunk)]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, kind)


@cache
def _dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(kind.to_pandas_dtype())  # its name is all that it has of pandas


def _of_buffers(chunk: pa.Array, kind: np.dtype[Any], null: float | None) -> Column:
    # A slice shares its parent's buffers: its values begin at `offset`, and so do its bits of validity.
    first, past = chunk.offset, chunk.offset + len(chunk)
    validity, values = chunk.buffers()
    array = _bits(values, first, past) if kind == np.bool_ else np.frombuffer(values, kind, past)[first:]
    if not chunk.null_count:
        return array
    if null is None:
        raise ValueError(f"all values must be known; got {chunk.null_count} nulls")
    return np.where(_bits(validity, first, past), array, kind.type(null))


def _bits(buffer: Any, first: int, past: int) -> Flags:
    # Arrow keeps booleans and validity as bits, the least significant one first.
    return np.unpackbits(np.frombuffer(buffer, np.uint8), count=past, bitorder="little")[first:].view(np.bool_)


def to_arrow(values: Column, kind: pa.DataType, dtype: np.dtype[Any], is_null: Flags | None = None) -> pa.Array:
    """Return numbers as an Arrow array of type `kind`, which numpy calls `dtype`; the caller knows that they fit.

    >>> to_arrow(np.array([7, 8, 9]), pa.int8(), np.dtype(np.int8), np.array([False, True, False])).to_pylist()
    [7, None, 9]
    """
    narrow = np.ascontiguousarray(values, dtype=dtype)
    # In Arrow's bitmap a set bit means that the value is there.
    validity = None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(kind, len(narrow), [validity, pa.py_buffer(narrow)])


def from_numpy(values: Column) -> pa.Array:
    """Return integers or floats as an Arrow array, without copies."""
    return to_arrow(values, pa.from_numpy_dtype(values.dtype), values.dtype)
