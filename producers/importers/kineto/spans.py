"""Spans of a trace: what each thread did when, and the innermost span around a moment."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class TimedSpan(NamedTuple):
    """Something that a thread did: ns since the epoch."""

    start_ns: int
    end_ns: int
    thread: object
    name: str = ""
    size_bytes: float = math.nan
    peer: int = -1


class SpansByThread:
    """Spans of each thread, to find the innermost one around a moment."""

    def __init__(self, spans: Iterable[TimedSpan]) -> None:
        self._spans: dict[object, list[TimedSpan]] = {}
        for span in sorted(spans, key=lambda one: one.start_ns):
            self._spans.setdefault(span.thread, []).append(span)
        self._starts = {thread: [one.start_ns for one in own] for thread, own in self._spans.items()}

    def around(self, moment_ns: int, thread: object) -> TimedSpan | None:
        """The span of a thread that began last before a moment, if it lasted until then."""
        at = bisect_right(self._starts.get(thread, []), moment_ns) - 1
        if at < 0:
            return None
        span = self._spans[thread][at]
        return span if moment_ns <= span.end_ns else None


def step_at(steps: list[TimedSpan], moments_ns: np.ndarray) -> np.ndarray:
    """Return for each moment the index of the step around it, or -1."""
    starts = np.array([step.start_ns for step in steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    if not len(starts):
        return np.full(len(moments_ns), -1)
    order = np.argsort(starts, kind="stable")
    place = np.searchsorted(starts[order], moments_ns, side="right") - 1
    at = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (moments_ns <= ends[at]), at, -1)
