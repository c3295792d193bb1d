"""A job of two pipeline stages on four hosts, whose ranks and transfers can be made slow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import Trace
from tests.streams.lockstep_job import MS, US, LockstepJob

EIGHT: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "world": ("world", tuple(range(8))),
    **{f"tp{n}": ("tp", (2 * n, 2 * n + 1)) for n in range(4)},
    **{f"pp{n}": ("pp", (n, n + 4)) for n in range(4)},
    **{f"dp{n}": ("dp", (n, n + 2)) for n in (0, 1, 4, 5)},
}
"""Two stages of four ranks; tp inside of a host, pp and dp across hosts of two ranks each."""

HOSTS = {rank: {"host": f"node-{rank // 2}", "gpu": rank % 2, "nic": f"mlx5_{rank % 2}"} for rank in range(8)}
SHARED = {rank: {**place, "nic": "mlx5_0"} for rank, place in HOSTS.items()}


class EightRanks:
    """One iteration of the job above, with what is wrong in it."""

    def __init__(self, places: Mapping[int, Mapping[str, Any]] = HOSTS, **job: Any) -> None:
        self.job = LockstepJob(EIGHT, places, **job)
        self.late_ns: Callable[[int, int], int] = lambda number, rank: 0
        self.slow: Callable[[int, tuple[int, ...]], int] = lambda number, ranks: 1

    def body(self, job: LockstepJob, number: int) -> None:
        for rank in range(8):
            job.work(rank, 8 * MS + self.late_ns(number, rank) + (number * 11 + rank * 5) % 7 * 15 * US)
        for n in (0, 1):
            job.collective(f"tp{n}", 400 * US)
        for n in range(4):
            job.message(f"pp{n}", n, n + 4, 500 * US * self.slow(number, (n, n + 4)))
        for rank in range(4, 8):
            job.work(rank, 8 * MS + (number * 3 + rank) % 5 * 15 * US)
        for n in (2, 3):
            job.collective(f"tp{n}", 400 * US)
        for n in (0, 1, 4, 5):
            job.collective(f"dp{n}", 900 * US * self.slow(number, (n, n + 2)))
        job.collective("world", 300 * US)

    def trace(self, iterations: int = 60, phase: str | None = None) -> Trace:
        self.job.iterate(range(iterations), self.body, phase)
        return self.job.trace()


def late(*ranks: int, during: range = range(30, 45), **job: Any) -> EightRanks:
    """The job, of which some ranks work 20 ms longer in some iterations."""
    made = EightRanks(**job)
    made.late_ns = lambda number, rank: 20 * MS * (rank in ranks and number in during)
    return made


def faulty(**job: Any) -> Trace:
    """Rank 2 is late for a while, and later the link from rank 1 to rank 5 is slow."""
    made = late(2, **job)
    made.slow = lambda number, ranks: 60 if ranks == (1, 5) and 50 <= number < 60 else 1
    return made.trace(75)


def with_few_tokens(trace: Trace, few: Mapping[int, set[int]]) -> Trace:
    """Give each rank 4,096 tokens an iteration, and 100 in the iterations that are named."""
    batches = dict(trace.batches("iterations"))
    for rank, batch in batches.items():
        numbers = batch.columns["iteration"].tolist()
        tokens = np.array([100.0 if number in few.get(rank, ()) else 4096.0 for number in numbers])
        batches[rank] = Batch(batch.header, {**batch.columns, "tokens": tokens})
    return replace(trace, iterations=batches)
