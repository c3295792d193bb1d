"""Signatures of clog: the line that says which operator a number ``C<id>`` stands for.

TorchComms writes it once for each operator, size and communicator: ``C3|sig|all_reduce|in_count=…|…|comm=…``.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from irregulars.messages.records import OPERATOR_CODES, P2P, RECV, UNKNOWN

_OPERATORS: Final = {
    "all_reduce": "all_reduce", "broadcast": "broadcast", "reduce": "reduce", "send": "send", "recv": "recv",
    "all_gather": "all_gather", "all_gather_v": "all_gather", "all_gather_single": "all_gather",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_v": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter", "all_to_all": "all_to_all", "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all", "scatter": "scatter", "gather": "gather", "gather_single": "gather",
    "barrier": "barrier",
}  # fmt: skip

BATCH: Final = "batch_op_issue"
"""Sends and recvs issued together: the log counts them, and names neither the operators nor their peers."""

_BYTES: Final = {
    "f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2, "i8": 1, "u8": 1, "bool": 1,
    "fp8e4m3": 1, "fp8e5m2": 1,
}  # fmt: skip

_WORD: Final = re.compile(r"[^\w.:#-]")
_COUNT: Final = re.compile(r"\d{1,15}", re.ASCII)
_MOST_NAME: Final = 100
_MOST_RANK: Final = 1 << 20


class Signature(NamedTuple):
    """What each call of one number is.

    Parameters
    ----------
    operator
        None where the name is none that we know.
    peer
        The other end of a send or recv, as rank inside of the communicator; `UNKNOWN` for collectives.
    is_async
        Whether the caller goes on before the operator has ended.
    """

    communicator: str
    operator: int | None
    peer: int
    size_bytes: float
    is_async: bool


def read_signature(fields: list[str]) -> Signature | None:
    """Read a signature's fields, from the operator's name on; None where it names no communicator or no peer.

    >>> read_signature("send|in_count=4|out_count=0|dtype=bf16|peer=3|async_op=t|comm=pp_0".split("|"))
    Signature(communicator='pp_0', operator=9, peer=3, size_bytes=8.0, is_async=True)
    """
    *listed, communicator = fields
    named = dict(field.partition("=")[::2] for field in listed[1:])
    if not communicator.startswith("comm=") or len(communicator) == len("comm="):
        return None
    known = _OPERATORS.get(listed[0]) if listed else None
    operator = None if known is None else OPERATOR_CODES[known]
    peer = UNKNOWN
    if operator in P2P:
        peer = _count(named.get("peer", ""))
        if not 0 <= peer < _MOST_RANK:
            return None
    is_async = named.get("async_op") == "t"
    return Signature(name_of(communicator[len("comm=") :]), operator, peer, _size(named, operator), is_async)


def name_of(text: str) -> str:
    """Return a communicator's name without what no id may hold.

    >>> name_of("tp 0")
    'tp_0'
    """
    return _WORD.sub("_", text[:_MOST_NAME])


def _size(named: dict[str, str], operator: int | None) -> float:
    """Payload of this rank in bytes: what goes in, or, of a recv and of who only receives, what comes out."""
    element = _BYTES.get(named.get("dtype", ""), math.nan)
    given = "out" if operator == RECV else "in"
    counts = named.get(f"{given}_count") or named.get(f"{given}_counts") or named.get("out_count", "")
    total = 0
    for one in counts.split(","):
        count = _count(one)
        if count < 0:
            return math.nan
        total += count
    return float(total) * element


def _count(text: str) -> int:
    return int(text) if _COUNT.fullmatch(text) else -1
