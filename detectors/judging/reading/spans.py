"""Where the operators of an iteration lie in the log, from which they are read back when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.messages.records import Batch


@dataclass(frozen=True, slots=True)
class Span:
    """Where the operators of one rank in some iterations lie: offsets in one partition of ``commops``."""

    rank: int
    partition: int
    offsets: tuple[int, ...]


ReadBack = Callable[[Sequence[Span]], Sequence[Batch]]
"""Returns the batches of some spans; those that the log no longer holds are left out."""


def spans_of(iterations: Iterable[IterationRows]) -> list[Span]:
    """Return the spans of all ranks in these iterations; a batch that holds several of them is named once."""
    found: dict[tuple[int, int], set[int]] = {}
    for rows in iterations:
        for rank, partition, offsets in rows.rank_offsets():
            found.setdefault((rank, partition), set()).update(offsets)
    return [Span(rank, partition, tuple(sorted(offsets))) for (rank, partition), offsets in sorted(found.items())]
