"""Iterations of ranks that work and reduce in turn, and may work on while the reduction before runs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.detectors.operator_graphs import row

RANKS, BUCKETS = 6, 8
WORK_NS, TRANSFER_NS, LATER_NS = 100_000, 30_000, 4_000


def rows_of(
    iterations: int,
    late: Mapping[int, int],
    *,
    is_overlapped: bool,
    hung_ns: Mapping[int, int] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Rows of each rank, all a little unlike each other.

    ``late``: by iteration, the rank that works `LATER_NS` longer before each reduction. ``hung_ns``: by sequence, how
    much longer a transfer takes.
    """
    rows, free = [], 0
    for iteration in range(iterations):
        done = [free] * RANKS  # the rank's own work
        for bucket in range(BUCKETS):
            for rank in range(RANKS):
                uneven = 37 * ((7 * rank + 5 * bucket + 3 * iteration) % 11)
                done[rank] += WORK_NS + uneven + LATER_NS * (late.get(iteration) == rank)
            starts = [max(one, free) for one in done]
            number = iteration * BUCKETS + bucket
            free = max(starts) + TRANSFER_NS + hung_ns.get(number, 0)
            rows += [
                row(rank, start, free, sequence=number, iteration=iteration) for rank, start in enumerate(starts)
            ]
            if not is_overlapped:
                done = [free] * RANKS
    return rows
