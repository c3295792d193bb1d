"""Evidence of any size as messages that fit their topic, and that its reader takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.errors import RecordError
from irregulars.messages.arrow_limits import require_bounded
from irregulars.messages.evidence import (
    CLASS_COLUMNS,
    MOST_NAMES,
    Evidence,
    Membership,
    encode_evidence,
    no_entries,
    no_patterns,
)
from irregulars.messages.ragged import Ragged

MAX_OFFSETS: Final = 1 << 14
"""Most offsets of batches that an evidence row keeps if it fits no message otherwise. Of the iteration's operators,
only those in these batches can be read back."""

Rows = Sequence[Evidence | Membership]


def encode_within_limit(rows: Rows, job: str, limit_bytes: int) -> list[bytes]:
    """Encode rows in few messages of at most `limit_bytes`, in order.

    A row that is too large by itself keeps its times and sums, and loses its classes and patterns: the second hop
    then reads more operators than it would have to.
    """
    if _have_few_names(rows):
        values = encode_evidence(rows, job)
        if all(_is_sendable(value, limit_bytes) for value in values):
            return values
    only = rows[0]
    if len(rows) > 1:
        parts: Sequence[Rows] = (rows[: len(rows) // 2], rows[len(rows) // 2 :])
    elif isinstance(only, Membership) and len(only.events) > 1:  # of a storm: they come without an announcement
        half = len(only.events) // 2
        parts = [[replace(only, events=events)] for events in (only.events[:half], only.events[half:])]
    elif isinstance(only, Membership):  # an announcement that was decoded always fits
        raise ValueError(f"announcement of rank {only.rank} must fit into a message; it does not")
    elif len(only) > 1:
        parts = [[_with_own_names(only.take(places))] for places in np.array_split(np.arange(len(only)), 2)]
    else:
        offsets = only.offsets["offset"][:MAX_OFFSETS]
        kept = Ragged(np.array([len(offsets)], dtype=np.int64), {"offset": offsets})
        few = replace(only, names=(), offsets=kept, classes=no_entries(CLASS_COLUMNS, 1), patterns=no_patterns(1))
        parts = [[replace(few, audits=None, pauses=None)]]
    return [value for part in parts for value in encode_within_limit(part, job, limit_bytes)]


def _have_few_names(rows: Rows) -> bool:
    """Whether a message can name the communicators of all rows."""
    names = [row.names for row in rows if isinstance(row, Evidence)]
    # Mostly their sum shows it: names are joined for each message anyhow, and need not be twice.
    return sum(map(len, names)) <= MOST_NAMES or len(set[str]().union(*names)) <= MOST_NAMES


def _is_sendable(value: bytes, limit_bytes: int) -> bool:
    if len(value) > limit_bytes:
        return False
    try:
        # The reader refuses rows that decompress to too much, however few bytes they are on the wire.
        if value[:1] != b"{":
            require_bounded(value)
    except RecordError:
        return False
    return True


def _with_own_names(evidence: Evidence) -> Evidence:
    """Leave out communicators that none of these rows names: a rank may have thousands."""
    entries = (evidence.classes, evidence.patterns)
    used = np.unique(np.concatenate([one["communicator"] for one in entries]).astype(np.int64))
    used = used[used >= 0]  # -1 in patterns: all operators
    classes, patterns = (
        one.replaced(
            "communicator", np.where(one["communicator"] < 0, -1, np.searchsorted(used, one["communicator"]))
        )
        for one in entries
    )
    names = tuple(evidence.names[code] for code in used.tolist())
    return replace(evidence, names=names, classes=classes, patterns=patterns)
