"""Where the operators of an iteration come from when they are needed: the log, read back by offset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.streams.messages.records import Batch


@dataclass(frozen=True, slots=True)
class Span:
    """Where one rank's operators of some iterations are: offsets in one partition of ``commops``."""

    rank: int
    partition: int
    offsets: tuple[int, ...]


ReadBack = Callable[[Sequence[Span]], Sequence[Batch]]
"""Return the batches of some spans; what is no longer there is left out."""


def spans_of(iterations: Iterable[IterationRows]) -> list[Span]:
    """Spans of all ranks of some iterations, each batch once."""
    found: dict[tuple[int, int], set[int]] = {}
    for rows in iterations:
        for rank, partition, offsets in rows.rank_offsets():
            found.setdefault((rank, partition), set()).update(offsets)
    return [Span(rank, partition, tuple(sorted(offsets))) for (rank, partition), offsets in sorted(found.items())]
