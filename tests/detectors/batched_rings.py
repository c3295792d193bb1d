"""Ranks in a ring, each of which sends to the next and takes from the one before in one batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.detectors.operator_graphs import row

RING = 4
WORK, QUICK, SLOW = 20, 10, 50
"""What comes before a round, and how long the two batches of a link last that is as usual, and that is slow."""


def ring_rows(*rounds: Collection[int], iteration: int = 0, size: int = RING) -> list[dict[str, Any]]:
    """Rows of one iteration; for each round which links are slow, called by their senders."""
    rows, begin = [], 1000 * iteration
    for at, slow_links in enumerate(rounds):
        starts = begin + WORK
        ends = [starts + (SLOW if {rank, (rank - 1) % size} & set(slow_links) else QUICK) for rank in range(size)]
        number: dict[str, Any] = {"sequence": iteration * len(rounds) + at, "iteration": iteration}
        for rank, end in enumerate(ends):
            rows.append(row(rank, starts, end, "send", peer=(rank + 1) % size, **number))
            rows.append(row(rank, starts, end, "recv", peer=(rank - 1) % size, **number))
        begin = max(ends)
    return rows
