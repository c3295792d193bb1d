"""Sequences of a tool that counts operators of each kind apart, as NCCL does: number and kind together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from irregulars.messages.records import SEND

Array = np.ndarray

OPERATOR_BITS: Final = 4
_OPERATORS: Final = 1 << OPERATOR_BITS
_FEWEST: Final = 16


def joined(number: int, operator: int) -> int:
    """Make a sequence of a collective's number among its kind, and that kind: all ranks agree on it."""
    return number << OPERATOR_BITS | operator


def are_counted_apart(operator: Array, sequence: Array) -> bool:
    """Whether the sequences of collectives are `joined` ones; dense ones hold numbers that are no collective's."""
    is_collective = operator < SEND
    number = sequence[is_collective]
    return len(number) >= _FEWEST and bool((number % _OPERATORS == operator[is_collective]).all())


def split(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Let each kind of collective have a communicator of its own, on which its numbers are dense again."""
    operator = columns["operator"].astype(np.int64)
    is_collective = operator < SEND
    communicator = columns["communicator"].astype(np.int64) * _OPERATORS
    sequence = columns["sequence"]
    return {
        **columns,
        "communicator": communicator + np.where(is_collective, operator, _OPERATORS - 1),
        "sequence": np.where(is_collective, sequence >> OPERATOR_BITS, sequence),
    }


def split_kinds(kinds: Sequence[str]) -> list[str]:
    """Kinds of the communicators that `split` makes, by code."""
    return [kind for kind in kinds for _ in range(_OPERATORS)]


def whole(communicator: int) -> int:
    """Return the code of the communicator from which `split` made this one."""
    return communicator >> OPERATOR_BITS
