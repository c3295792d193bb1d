"""What a change makes of a recording, and how names of the changed job are told in those of the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S
from tests.benchmarks.metamorphic.recording import Recording


@dataclass(frozen=True, slots=True)
class Given:
    """What a change may know beside the recording."""

    random: np.random.Generator  # all chance comes from it
    # Ranks that the verdicts on the unchanged recording accuse as gpu, host, nic, link or switch, that stand in a
    # communicator which they accuse, or that a hang names
    accused: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Naming:
    """From the names in a changed recording to those in the first one; what is not listed has kept its name."""

    # ranks, communicators: New name to old name
    ranks: Mapping[int, int] = field(default_factory=dict)
    communicators: Mapping[str, str] = field(default_factory=dict)
    added: frozenset[int] = frozenset()  # ranks that the first job did not have
    iterations_later: int = 0  # how much larger the numbers of iterations are
    # Half-open range of iterations, in the new numbering, that the first job did not have
    inserted: tuple[int, int] = (0, 0)

    def old_ranks(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Ranks by their old names; added ones are left out where the device has old ones too."""
        kept = [rank for rank in ranks if rank not in self.added]
        return tuple(self.ranks.get(rank, rank) for rank in kept or ranks)

    def old_window(self, iterations: tuple[int, int]) -> tuple[int, int]:
        """Translate a half-open range of iterations; where it ends among inserted ones it ends before them.

        >>> Naming(inserted=(40, 45)).old_window((30, 61)), Naming(inserted=(40, 45)).old_window((42, 61))
        ((30, 56), (40, 56))
        """
        first, past = self.inserted
        begin, last = (number - self.iterations_later for number in (iterations[0], iterations[1] - 1))
        begin = first if first <= begin < past else begin if begin < first else begin - (past - first)
        last = first - 1 if first <= last < past else last if last < first else last - (past - first)
        return begin, last + 1


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a recording is handed to the monitors."""

    # max_rows, max_span_s: Rows and seconds of event time of a batch at most
    max_rows: int = BATCH_ROWS
    max_span_s: float = BATCH_SPAN_S


@dataclass(frozen=True, slots=True)
class Changed:
    """A changed recording."""

    recording: Recording
    naming: Naming = Naming()
    delivery: Delivery | None = None  # `None`: the way of delivery is no part of the change
