"""Names of operators and of data types, as NCCL, gloo and PyTorch write them."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from irregulars.messages.records import OPERATOR_CODES

_LETTERS: Final = re.compile(r"[^a-z0-9]+")
_MOST_TENSORS: Final = 10_000
_MOST_DIMENSIONS: Final = 64

# In this order: the first that a name contains. A barrier may be an all_reduce inside, a SendRecv is neither.
_SPELLINGS: Final = (
    ("barrier", "barrier"), ("sendrecv", None), ("reducescatter", "reduce_scatter"), ("allgather", "all_gather"),
    ("alltoall", "all_to_all"), ("all2all", "all_to_all"), ("allreduce", "all_reduce"), ("broadcast", "broadcast"),
    ("bcast", "broadcast"), ("scatter", "scatter"), ("gather", "gather"), ("reduce", "reduce"), ("send", "send"),
    ("recv", "recv"),
)  # fmt: skip

_BYTES: Final = {
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "unsignedchar": 1, "signedchar": 1, "short": 2,
    "int16": 2, "half": 2, "float16": 2, "bfloat16": 2, "c10bfloat16": 2, "c10half": 2, "int": 4,
    "int32": 4, "float": 4, "float32": 4, "long": 8, "longint": 8, "int64": 8, "double": 8, "float64": 8,
    "complexhalf": 4, "complexfloat": 8, "c10complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


def operator_of(name: str) -> int | None:
    """Read an operator's code off a name; None where the name does not tell.

    >>> from irregulars.messages.records import OPERATORS
    >>> names = ("nccl:_reduce_scatter_base", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "gloo:recv", "AllGather")
    >>> [OPERATORS[operator_of(name)] for name in names]
    ['reduce_scatter', 'all_reduce', 'recv', 'all_gather']
    """
    plain = _LETTERS.sub("", name[:200].lower())
    for spelling, operator in _SPELLINGS:
        if spelling in plain:
            return None if operator is None else OPERATOR_CODES[operator]
    return None


def bytes_of_type(name: object) -> float:
    """Size of one element; NaN where the type is not known."""
    if not isinstance(name, str):
        return math.nan
    plain = _LETTERS.sub("", name.lower())
    return 1 if plain.startswith("float8") else _BYTES.get(plain, math.nan)


def bytes_of_tensors(shapes: Any, types: Any) -> float:
    """Size of some tensors; NaN where a shape or a type is not known.

    Parameters
    ----------
    shapes
        A list of lists of lengths.
    types
        A list of names, one for each shape.
    """
    if not isinstance(shapes, (list, tuple)) or not isinstance(types, (list, tuple)):
        return math.nan
    if not 0 < len(shapes) <= min(_MOST_TENSORS, len(types)):
        return math.nan
    return sum(_elements(shape) * bytes_of_type(one) for shape, one in zip(shapes, types, strict=False))


def _elements(shape: Any) -> float:
    if not isinstance(shape, (list, tuple)) or len(shape) > _MOST_DIMENSIONS:
        return math.nan
    product = 1.0
    for length in shape:
        if type(length) is not int or length < 0:
            return math.nan
        product *= float(min(length, 1 << 60))
    return product
