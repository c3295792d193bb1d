"""When iterations close: their ends, and how far the sources must have come past them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

CLOSING_SHARE: Final = 0.5
MAX_CLOSING_NS: Final = 1_000_000_000
"""An iteration closes when the watermark has passed its end by `CLOSING_SHARE` of its length, at most
`MAX_CLOSING_NS`: operators on a second stream may end after the iteration that they belong to."""


class IterationTimes(NamedTuple):
    """What a row of ``iterations`` says of an iteration."""

    start_ns: int
    elapsed_ns: int
    phase: int
    tokens: float

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.elapsed_ns


ClosingTime = tuple[int, int]
"""An iteration, and the watermark of ``commops`` with which it closes, ns."""


def closing_times_by_rows(iterations: Mapping[int, IterationTimes]) -> Iterator[ClosingTime]:
    """Yield when each iteration closes, where rows of ``iterations`` tell when it ended."""
    return ((number, row.end_ns + _margin_ns(row.elapsed_ns)) for number, row in iterations.items())


def closing_times_by_operators(starts_ns: Mapping[int, int]) -> Iterator[ClosingTime]:
    """Yield the same by the first operator of each iteration, where an iteration ends when the next one begins."""
    starts = sorted(starts_ns.items())
    return ((number, after + _margin_ns(after - start)) for (number, start), (_, after) in pairwise(starts))


def newest_closed(times: Iterable[ClosingTime], watermark_ns: int) -> int | None:
    """Return the newest iteration that closes with a watermark, None if none does."""
    return max((number for number, close_ns in times if close_ns <= watermark_ns), default=None)


def _margin_ns(elapsed_ns: int) -> int:
    return min(int(CLOSING_SHARE * elapsed_ns), MAX_CLOSING_NS)
