"""Operators of many ranks, as inference needs them: each once, with the lane that it belongs to.

A lane is the series that a `sequence` counts: the collectives of a communicator, or sends of one rank to another. All
members see the same lane, whatever they lost and in whatever order their streams ran, so an iteration that is a
function of lane and sequence is the same on every rank.

Sequences of a tool that counts operators of each kind apart, as NCCL does: number and kind together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import OPERATOR_CODES, RECV, SEND, UNKNOWN

Array = np.ndarray
OPERATOR_BITS: Final = 4  # hold the code of any operator
_OPERATORS: Final = 1 << OPERATOR_BITS
_FEWEST: Final = 16  # collectives; fewer may look like joined ones by chance


def joined(number: int, operator: int) -> int:
    """Make a sequence of a collective's number among its kind, and that kind: all ranks agree on it."""
    return number << OPERATOR_BITS | operator


def are_counted_apart(operator: Array, sequence: Array) -> bool:
    """Whether the sequences of collectives are `joined` ones; dense ones hold numbers that are no collective's."""
    is_collective = operator < SEND
    number = sequence[is_collective]
    return len(number) >= _FEWEST and bool((number % _OPERATORS == operator[is_collective]).all())


def split(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Give each kind of collective a communicator of its own, on which its numbers are dense again."""
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
    """Return the kinds of the communicators that `split` makes, by code."""
    return [kind for kind in kinds for _ in range(_OPERATORS)]


def whole(communicator: int) -> int:
    """Return the code of the communicator from which `split` made this one."""
    return communicator >> OPERATOR_BITS


# Collectives of training itself. Checkpoints and set-up gather, broadcast and wait at barriers instead.
REDUCTIONS: Final = tuple(OPERATOR_CODES[n] for n in ("all_reduce", "reduce_scatter", "all_to_all", "reduce"))
TRAINING: Final = (*REDUCTIONS, SEND, RECV)
# Members of one such collective may log different sizes, which do not tell it from others.
_UNSIZED: Final = tuple(OPERATOR_CODES[name] for name in ("all_to_all", "gather", "scatter"))


@dataclass(frozen=True, slots=True)
class Operators:
    """Rows in the order of rank and start, each share once; arrays of equal length."""

    row: Array  # index of the row given
    # rank, communicator, operator, sequence: As in the record; communicators as codes of the whole job
    rank: Array
    communicator: Array
    operator: Array
    sequence: Array
    lane: Array  # code of the lane
    kind: Array  # code of (lane, operator): operators of one kind do the same to the same ranks
    start_ns: Array  # int64; `UNKNOWN` rows stand first of their rank
    size_bytes: Array  # float64; NaN where unknown, or where members of one collective may differ

    def __len__(self) -> int:
        return len(self.rank)

    def only(self, chosen: Array) -> Operators:
        """Take some rows, by index or mask, in their order."""
        return Operators(*(getattr(self, name)[chosen] for name in self.__slots__))

    @property
    def is_collective(self) -> Array:
        """Whether each row is no send or recv."""
        return (self.operator != SEND) & (self.operator != RECV)


def arrange_operators(columns: Mapping[str, Array]) -> tuple[Operators, Array]:
    """Order rows, and drop copies; neither order nor copies of the rows given change the result.

    `columns`: ``rank``, ``communicator`` (codes of the whole job), ``operator``, ``sequence``, ``peer``,
    ``start_ns``, ``size_bytes``; unknown values as in `messages.records`. Returns the operators, and for each row
    given the index of its operator among them.
    """
    rank, operator, peer = (columns[name].astype(np.int64) for name in ("rank", "operator", "peer"))
    source = np.where(operator == RECV, peer, np.where(operator == SEND, rank, UNKNOWN))
    target = np.where(operator == RECV, rank, np.where(operator == SEND, peer, UNKNOWN))
    lane = number_rows(columns["communicator"].astype(np.int64), source, target)
    # A rank that sends to itself has both ends in one lane, which are no copies of each other.
    share = number_rows(rank, lane, operator == RECV, columns["sequence"].astype(np.int64))
    start_ns = columns["start_ns"]
    # Of copies the one that started first: in the others values may be unknown.
    known_ns = np.where(start_ns == UNKNOWN, np.iinfo(np.int64).max, start_ns)
    by_share = np.lexsort((columns["size_bytes"], known_ns, share))
    first = by_share[np.flatnonzero(np.diff(share[by_share], prepend=-1))]
    order = first[np.lexsort((columns["sequence"][first], lane[first], start_ns[first], rank[first]))]
    place = np.empty(len(first), dtype=np.int64)
    place[share[order]] = np.arange(len(order))
    size_bytes = np.where(np.isin(operator, _UNSIZED), np.nan, columns["size_bytes"])
    found = Operators(
        row=order, rank=rank[order], communicator=columns["communicator"].astype(np.int64)[order],
        operator=operator[order], sequence=columns["sequence"].astype(np.int64)[order], lane=lane[order],
        kind=number_rows(lane, np.where(operator == RECV, SEND, operator))[order], start_ns=start_ns[order],
        size_bytes=size_bytes[order],
    )  # fmt: skip
    return found, place[share]


def runs_of(*columns: Array) -> tuple[Array, Array]:
    """Return where each run of rows with equal values begins, and its length."""
    is_new = np.ones(len(columns[0]), dtype=bool)
    is_new[1:] = np.any([np.diff(column) != 0 for column in columns], axis=0)
    begins = np.flatnonzero(is_new)
    return begins, np.diff(np.append(begins, len(is_new)))


def number_rows(*columns: Array) -> Array:
    """Number the groups of equal rows, 0, 1, 2 ... in ascending order of the columns."""
    order = np.lexsort(columns[::-1])
    is_first = np.zeros(len(order), dtype=bool)
    for column in columns:
        ordered = column[order]
        is_first[1:] |= ordered[1:] != ordered[:-1]
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(is_first)
    return number


def anchor_kinds(announcement: Announcement) -> dict[str, str]:
    """Return the kind of each communicator of a rank, for anchors: one of all ranks is ``world``."""
    world = announcement.world_size
    return {
        c.id: "world" if len(c.ranks) == world > 1 and c.kind == "unknown" else c.kind
        for c in announcement.communicators
    }
