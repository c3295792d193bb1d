"""The learned rhythm of a running job: where its next iterations will end, and whether its operators still agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.messages.records import UNKNOWN
from irregulars.producers.iteration_inference.anchors import Anchor
from irregulars.producers.iteration_inference.operators import REDUCTIONS, Operators

Array = np.ndarray

_REGULAR: Final = 3


@dataclass(frozen=True, slots=True)
class Cadence:
    """A regular stretch on an anchor's communicator.

    Parameters
    ----------
    communicator
        Its code.
    border, number
        Sequence of the operator that ended some iteration, and that iteration's number.
    length
        Collectives of one iteration on the communicator.
    operators, sizes
        What each of them is, from the first after a border on; -1 where it is none of training, or varies.
    """

    communicator: int
    border: int
    number: int
    length: int
    operators: Array
    sizes: Array

    def agrees(self, rows: Operators) -> bool:
        """Whether the operators that a rank ran on the communicator are those that the cadence expects."""
        own = (rows.communicator == self.communicator) & rows.is_collective
        place = (rows.sequence[own] - self.border - 1) % self.length
        operator = np.where(np.isin(rows.operator[own], REDUCTIONS), rows.operator[own], -1)
        size = np.where(operator < 0, -1, _whole(rows.size_bytes[own]))
        wanted = self.sizes[place]
        return bool(((operator == self.operators[place]) & ((size == wanted) | (size < 0) | (wanted < 0))).all())

    def numbers(self, rows: Operators, reached: int) -> tuple[Array, int]:
        """Iteration of each operator of one rank, in order of start.

        Parameters
        ----------
        reached
            Newest sequence on the communicator that the rank had started before; -1 if none.

        Returns
        -------
        The iterations, and the newest sequence reached now.
        """
        is_own = (rows.communicator == self.communicator) & rows.is_collective
        sequence = np.where(is_own & (rows.start_ns != UNKNOWN), rows.sequence, -1)
        passed = np.maximum.accumulate(np.append(reached, sequence))
        after = (passed[1:] - self.border) // self.length + 1
        within = -((self.border - rows.sequence) // self.length)
        number = np.where(is_own, within, after) + self.number
        return np.where(is_own | (passed[1:] >= 0), number, UNKNOWN), int(passed[-1])


def learn_cadence(operators: Operators, iteration: Array, anchor: Anchor) -> Cadence | None:
    """Learn the cadence with which an anchor's last iterations came; None if they were not regular.

    Parameters
    ----------
    iteration
        Of each operator. The last whole one is not learned from: what trails it may be still to come.
    """
    own = (operators.communicator == anchor.communicator) & operators.is_collective & (iteration != UNKNOWN)
    rows, number = operators.only(own), iteration[own]
    is_whole = number < int(number[rows.sequence == anchor.last_sequence[-1]].max(initial=0))
    rows, number = rows.only(is_whole), number[is_whole]
    last = int(number.max(initial=-1))
    borders = np.array([rows.sequence[number == k].max(initial=-1) for k in range(last - _REGULAR, last + 1)])
    lengths = np.diff(borders)
    if (borders < 0).any() or (lengths != lengths[0]).any():
        return None
    length = int(lengths[0])
    recent = rows.only(rows.sequence > borders[0])
    place = (recent.sequence - borders[0] - 1) % length
    is_reduction = np.isin(recent.operator, REDUCTIONS)
    sizes, size = np.full(length, -1), _whole(recent.size_bytes)
    sizes[place[is_reduction]] = size[is_reduction]
    sizes[place[is_reduction & (sizes[place] != size) & (size >= 0)]] = -1  # varies
    expected = np.full(length, -1)
    expected[place[is_reduction]] = recent.operator[is_reduction]
    return Cadence(anchor.communicator, int(borders[-1]), last, length, expected, sizes)


def _whole(sizes: Array) -> Array:
    return np.where(np.isnan(sizes), -1, sizes).astype(np.int64)
