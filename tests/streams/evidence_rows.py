"""Evidence written down by hand, as RankMonitors drain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from irregulars.detectors.judging.iteration_rows import Span
from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.evidence import CLASS_COLUMNS, COLUMNS, PATTERN_COLUMNS, Evidence, Membership
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import PHASE_UNKNOWN, PHASES, UNKNOWN, Batch

T0 = 1_800_000_000_000_000_000
MS = 1_000_000

_UNKNOWN = dict.fromkeys(("tokens", "score", "nic_tx_peak", "nic_rx_peak"), np.nan)
_FLOATS = frozenset({"work_ns", "communication_ns", *_UNKNOWN})


def evidence_of(
    rank: int, elapsed_ms: Mapping[int, float], *, attempt: int = 1, phase: str | None = None, **changes: Any
) -> Evidence:
    """One row per iteration, which begin 100 ms apart and have no operators."""
    values: dict[str, Any] = dict.fromkeys(COLUMNS, 0)
    values |= {"attempt": attempt, "rank": rank, "entry_ns": UNKNOWN, **_UNKNOWN}
    values |= {"phase": PHASE_UNKNOWN if phase is None else PHASES.index(phase), **changes}
    rows = [
        {**values, "iteration": number, "start_ns": T0 + 100 * MS * (number % 10**6), "elapsed_ns": int(elapsed * MS)}
        for number, elapsed in elapsed_ms.items()
    ]
    return Evidence(
        job="j",
        names=(),
        columns={name: np.array([row[name] for row in rows], dtype=_dtype(name)) for name in COLUMNS},
        offsets=no_entries(len(rows), "offset"),
        classes=no_entries(len(rows), *CLASS_COLUMNS),
        patterns=no_entries(len(rows), *PATTERN_COLUMNS),
    )


def no_entries(rows: int, *names: str) -> Ragged:
    """Rows that own nothing."""
    return Ragged(np.zeros(rows, dtype=np.int64), {name: np.empty(0, dtype=np.int64) for name in names})


def _dtype(name: str) -> Any:
    return np.float64 if name in _FLOATS else np.uint8 if name == "phase" else np.int64


def came(rank: int, world_size: int = 2, *, attempt: int = 1, **changes: Any) -> Membership:
    world = Communicator("world", "world", tuple(range(world_size)))
    values = {"world_size": world_size, "logged_ranks": world_size, "communicators": (world,), "clock": "shared"}
    announcement = Announcement(**{"job": "j", "attempt": attempt, "rank": rank, **values, **changes})
    return Membership("j", attempt, rank, announcement)


def went(rank: int, reason: str = "finished", *, attempt: int = 1) -> Membership:
    return Membership("j", attempt, rank, reason=reason)


def no_operators(spans: Sequence[Span]) -> list[Batch]:
    return []
