"""When iterations began and ended on each rank, by the operators in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from irregulars.messages.records import UNKNOWN
from irregulars.producers.iteration_inference.operators import Operators

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class IterationSpans:
    """Times of iterations on ranks.

    Parameters
    ----------
    ranks
        Ascending.
    start_ns, past_ns
        ``(ranks, iterations)``, int64; from the first operator's start to the last one's end, as where nothing else
        is known of an iteration; `UNKNOWN` where a rank has no timed operator of one.
    gaps_ns
        Time without an operator before the first one, float64; NaN where unknown.
    """

    ranks: Array
    start_ns: Array
    past_ns: Array
    gaps_ns: Array

    @property
    def job_elapsed_ns(self) -> Array:
        """Of each iteration the largest of its ranks', float64; 0 where no rank tells."""
        elapsed_ns = np.where(self.start_ns == UNKNOWN, 0, self.past_ns - self.start_ns)
        return elapsed_ns.max(axis=0, initial=0).astype(np.float64)

    def of_rank(self, rank: int) -> tuple[Array, Array, Array]:
        """Numbers, starts and lengths (float64, ns) of the iterations of one rank."""
        at = int(np.searchsorted(self.ranks, rank))
        if at == len(self.ranks) or self.ranks[at] != rank:
            empty = np.empty(0, dtype=np.int64)
            return empty, empty, empty.astype(np.float64)
        number = np.flatnonzero(self.start_ns[at] != UNKNOWN)
        start_ns = self.start_ns[at][number]
        return number, start_ns, (self.past_ns[at][number] - start_ns).astype(np.float64)


def measure_iterations(operators: Operators, iteration: Array, elapsed_ns: Array) -> IterationSpans:
    """Measure the iterations of all ranks.

    Parameters
    ----------
    iteration, elapsed_ns
        Of each operator.
    """
    ranks, place = np.unique(operators.rank, return_inverse=True)
    count = int(iteration.max(initial=-1)) + 1
    is_timed = (iteration != UNKNOWN) & (operators.start_ns != UNKNOWN)
    cell = (place[is_timed], iteration[is_timed])
    start_ns = operators.start_ns[is_timed]
    took_ns = np.where(np.isnan(elapsed_ns[is_timed]), 0, elapsed_ns[is_timed]).astype(np.int64)
    first_ns = np.full((len(ranks), count), np.iinfo(np.int64).max)
    past_ns = np.full((len(ranks), count), UNKNOWN)
    np.minimum.at(first_ns, cell, start_ns)
    np.maximum.at(past_ns, cell, start_ns + took_ns)
    is_known = past_ns != UNKNOWN
    before_ns = np.full_like(past_ns, UNKNOWN)
    before_ns[:, 1:] = past_ns[:, :-1]
    has_before = is_known & (before_ns != UNKNOWN)
    gaps_ns = np.where(has_before, np.maximum(first_ns - np.where(has_before, before_ns, first_ns), 0), np.nan)
    return IterationSpans(ranks, np.where(is_known, first_ns, UNKNOWN), past_ns, gaps_ns)
