"""Process groups as PyTorch names them, as communicators of a job: an id that is unique, a kind, the ranks.

Names of operators and of data types, as NCCL, gloo and PyTorch write them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zlib import crc32

from irregulars.messages.announcements import Communicator, ranks_to_runs
from irregulars.messages.records import OPERATOR_CODES
from irregulars.producers.publishing.group_kinds import kind_of_description

_LETTERS: Final = re.compile(r"[^a-z0-9]+")
_MOST_TENSORS: Final = 10_000
_MOST_DIMENSIONS: Final = 64
# In this order: the first that a name contains. A barrier may be an all_reduce inside, a SendRecv is neither.
_SPELLINGS: Final = (
    ("barrier", "barrier"), ("sendrecv", None), ("devicereduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"), ("allgather", "all_gather"),
    ("alltoall", "all_to_all"), ("all2all", "all_to_all"), ("allreduce", "all_reduce"), ("broadcast", "broadcast"),
    ("bcast", "broadcast"), ("scatter", "scatter"), ("gather", "gather"), ("reduce", "reduce"), ("send", "send"),
    ("recv", "recv"),
)  # fmt: skip
_BYTES: Final = {
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "unsignedchar": 1, "signedchar": 1, "short": 2,
    "int16": 2, "half": 2, "float16": 2, "bfloat16": 2, "c10bfloat16": 2, "c10half": 2, "int": 4,
    "int32": 4, "float": 4, "float32": 4, "long": 8, "longint": 8, "int64": 8, "double": 8, "float64": 8,
    "complexhalf": 4, "complexfloat": 8, "c10complexfloat": 8, "complexdouble": 16,
    "f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2, "i8": 1, "u8": 1,
}  # fmt: skip


def operator_of(name: str) -> int | None:
    """Read an operator's code off a name; None where it names none.

    >>> from irregulars.messages.records import OPERATORS
    >>> names = ("nccl:_reduce_scatter_base", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "gloo:recv", "AllGather")
    >>> [OPERATORS[operator_of(name)] for name in names]
    ['reduce_scatter', 'all_reduce', 'recv', 'all_gather']
    """
    return _operator_of(name[:200])  # bounded before it is kept: names come from files


@lru_cache(maxsize=1024)  # dumps and traces have millions of a few names
def _operator_of(name: str) -> int | None:
    plain = _LETTERS.sub("", name.lower())
    for spelling, operator in _SPELLINGS:
        if spelling in plain:
            return None if operator is None else OPERATOR_CODES[operator]
    return None


def bytes_of_type(name: object) -> float:
    """Size of one element; NaN where the type is not known."""
    return _bytes_of_type(name[:200]) if isinstance(name, str) else math.nan


@lru_cache(maxsize=1024)
def _bytes_of_type(name: str) -> float:
    plain = _LETTERS.sub("", name.lower())
    return 1 if plain.startswith(("float8", "fp8")) else _BYTES.get(plain, math.nan)


def bytes_of_tensors(shapes: Any, types: Any) -> float:
    """Size of some tensors; NaN where a shape or a type is not known."""
    if not isinstance(shapes, (list, tuple)) or not isinstance(types, (list, tuple)):
        return math.nan
    if not 0 < len(shapes) <= min(_MOST_TENSORS, len(types)):
        return math.nan
    total = 0.0
    for shape, kind in zip(shapes, types, strict=False):
        if not isinstance(shape, (list, tuple)) or len(shape) > _MOST_DIMENSIONS:
            return math.nan
        if any(type(length) is not int or length < 0 for length in shape):
            return math.nan
        # Bounded: an integer of more than 308 digits is no float, and a file may hold one.
        total += math.prod(float(min(length, 1 << 60)) for length in shape) * bytes_of_type(kind)
    return total


MAX_RANKS: Final = 1 << 20
_WORDS: Final = re.compile(r"[a-z]+")
_NO_WORD: Final = re.compile(r"[^\w.:#-]")


class ProcessGroup(NamedTuple):
    """A process group: its name in the process, its maker's description, its global ranks in group order."""

    name: str
    description: str
    ranks: tuple[int, ...]


def kind_of(group: ProcessGroup, world_size: int) -> str:
    """Return the kind of a group by its maker's description; one that serves several dimensions is ``unknown``.

    >>> texts = ("TENSOR_MODEL_PARALLEL_GROUP", "pp0", "default_pg", "x")
    >>> [kind_of(ProcessGroup("7", text, (0, 1)), 4) for text in texts]
    ['tp', 'pp', 'world', 'unknown']
    """
    if "default" in _WORDS.findall(group.description.lower()):
        return "world"
    kind = kind_of_description(group.description)
    return "world" if kind == "unknown" and len(group.ranks) == world_size else kind


def communicators_of(
    groups: Iterable[ProcessGroup], world_size: int, *, is_whole: bool = True
) -> dict[ProcessGroup, Communicator]:
    """Give each group an id that no other group of the job has.

    `is_whole`: whether `groups` are all of the job: then a description is enough where it is not shared. Else the id
    is made of description, name and ranks, so that an agent that sees another part of the job makes the same one.
    """
    distinct = sorted(set(groups))
    if not is_whole:
        ids = {
            g: f"{g.description or 'group'}#{g.name}-{crc32(','.join(map(str, g.ranks)).encode()):08x}"
            for g in distinct
        }
        return {g: Communicator(id, kind_of(g, world_size), g.ranks) for g, id in ids.items()}
    by_text = Counter(group.description or group.name for group in distinct)
    by_both = Counter((group.description, group.name) for group in distinct)
    made: dict[ProcessGroup, Communicator] = {}
    for group in distinct:
        text = group.description or group.name or "group"
        if by_text[text] > 1:
            text = f"{text}#{group.name}"
        if by_both[group.description, group.name] > 1:
            runs = ranks_to_runs(group.ranks)
            text = f"{text}[{' '.join(f'{first}:{past}:{step}' for first, past, step in runs)}]"
        made[group] = Communicator(text, kind_of(group, world_size), group.ranks)
    return made


def name_of(text: str) -> str:
    """Return a communicator's name, of at most 100 characters, without those that no id may hold.

    >>> name_of("tp 0")
    'tp_0'
    """
    return _NO_WORD.sub("_", text[:100])


def ranks_of(value: Any) -> tuple[int, ...] | None:
    """Read the ranks of a group, a list or a text such as ``"[0, 1]"``; None if they are none, or not all there."""
    if isinstance(value, str):
        # A rank takes at most nine characters, with comma and blank.
        if len(value) > 16 * MAX_RANKS:
            return None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MAX_RANKS:
        return None
    is_good = all(type(rank) is int and 0 <= rank < MAX_RANKS for rank in value) and len(set(value)) == len(value)
    return tuple(value) if is_good else None
