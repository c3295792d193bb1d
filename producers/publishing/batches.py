"""Cutting batches by rows, by event time and by bytes; counts and watermarks of headers stay true in every part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.bundles import MAX_GROUP_RANKS, bundle_of, encode_bundle
from irregulars.messages.records import CODED, UNKNOWN, Batch, Header, encode_batch

BATCH_ROWS: Final = 1_500  # about 64 KiB of operators: where Kafka and Faust carry most rows per second
BATCH_SPAN_S: Final = 1.0  # event time of one batch at most, for which a verdict may wait
# Longer spans are cut to this, seconds: in ns it fits into int64 behind any time, which infinity does not.
_LONGEST_S: Final = 1e9
_LATEST: Final = np.iinfo(np.int64).max


def event_times_ns(batch: Batch) -> np.ndarray:
    """Return the event time of each row, ns since the epoch: end of an operator or iteration, time of a sample.

    Returns int64, `UNKNOWN` where a row has no such time: an operator that never ended, or that has no start.
    """
    columns = batch.columns
    return columns["time_ns"] if "time_ns" in columns else ends_ns(columns["start_ns"], columns["elapsed_ns"])


def ends_ns(start_ns: np.ndarray, elapsed_ns: np.ndarray) -> np.ndarray:
    """Return when rows ended; `elapsed_ns` is float64, exact to the nanosecond up to `bounds.MOST_EXACT`."""
    is_known = (start_ns != UNKNOWN) & ~np.isnan(elapsed_ns)
    return np.where(is_known, start_ns + np.where(is_known, elapsed_ns, 0).astype(np.int64), UNKNOWN)


def take_rows(batch: Batch, first: int, past: int) -> Batch:
    """Take rows ``[first, past)`` as a batch that goes out after rows ``[0, first)`` and before the rest.

    Its watermark is the batch's own, or just before the earliest row of the rest if that is less.
    """
    columns = {name: column[first:past] for name, column in batch.columns.items()}
    header = replace(batch.header, rows_before=batch.header.rows_before + first)
    if header.watermark_ns is not None and past < len(batch):
        rest = event_times_ns(batch)[past:]
        # Rows without event time hold back no watermark.
        earliest_ns = int(np.where(rest == UNKNOWN, _LATEST, rest).min())
        header = replace(header, watermark_ns=min(header.watermark_ns, earliest_ns - 1))
    return Batch(header, columns)


def cut_in_order(batch: Batch, max_rows: int, max_span_s: float) -> Iterator[Batch]:
    """Cut rows that are in order of event time into batches of at most `max_rows` and `max_span_s` of event time.

    Rows without event time, which come last, are taken with the last that have one.
    """
    event_ns = event_times_ns(batch)
    known = int(np.count_nonzero(event_ns != UNKNOWN))
    if len(batch) <= max_rows and max_span_s == math.inf:
        yield batch  # its watermark is its newest event
        return
    span_ns = round(min(max_span_s, _LONGEST_S) * 1e9)
    first = 0
    while first < len(batch):
        past = min(first + max_rows, len(batch))
        if first < known:
            late = int(np.searchsorted(event_ns[:known], event_ns[first] + span_ns, side="right"))
            past = min(past, late) if late < known else past
        # As `take_rows`, in constant time: the largest so far is the last one, the earliest of the rest the next.
        header = replace(batch.header, rows_before=batch.header.rows_before + first, watermark_ns=None)
        last = min(past, known) - 1
        if last >= 0:
            newest = int(event_ns[last])
            is_shared = last + 1 < known and int(event_ns[last + 1]) == newest
            header = replace(header, watermark_ns=newest - 1 if is_shared else newest)
        yield Batch(header, {name: column[first:past] for name, column in batch.columns.items()})
        first = past


def encode_in_parts(
    batch: Batch, limit_bytes: int, encode: Callable[[Batch], bytes] = encode_batch
) -> Iterator[tuple[Batch, bytes]]:
    """Encode a batch, cut into as many parts as it takes for each to stay below `limit_bytes`.

    Raises InputError if a single row is larger than that.
    """
    batch = _with_used_names(batch)
    value = encode(batch)
    if len(value) < limit_bytes:
        yield batch, value
        return
    if len(batch) < 2:
        rule = f"below {limit_bytes} bytes"
        raise InputError(
            f"one row of {batch.header.schema} must be {rule}; got {len(value)} (rank {batch.header.rank})"
        )
    half = len(batch) // 2
    for first, past in ((0, half), (half, len(batch))):
        yield from encode_in_parts(take_rows(batch, first, past), limit_bytes, encode)


def _with_used_names(batch: Batch) -> Batch:
    """Leave out names that no row uses, where there are more names than rows.

    A process may name any number. They may be most of the bytes, so that halving the rows would not end; and the
    names of all ranks of a bundle must be below 65,536, the number of codes of two bytes.
    """
    if len(batch.header.names) <= len(batch):
        return batch
    coded = {name: column for name, column in batch.columns.items() if name in CODED}  # iterations: none
    used = np.unique(list(coded.values()))
    names = tuple(batch.header.names[int(code)] for code in used)
    columns = {name: np.searchsorted(used, column).astype(np.uint16) for name, column in coded.items()}
    return Batch(replace(batch.header, names=names), {**batch.columns, **columns})


MAX_ROWS: Final = 12_000  # rows of a bundle: half a MiB of operators, half of what a message may have
_GroupKey = tuple[str, int, str | None, str]  # job, attempt, start, group
_Key = tuple[str, _GroupKey]  # with the schema before it


@dataclass(slots=True)
class _Open:
    """A bundle that others may still join."""

    since_s: float
    rows: int = 0
    batches: dict[int, Batch] = field(default_factory=dict)  # by rank


class Bundler:
    """Holds batches until those of the group's other ranks have come, or `wait_s` are over.

    So a host's ranks cost one message and not eight: ranks of a synchronous job send within milliseconds.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._ranks: dict[_GroupKey, set[int]] = {}
        self._open: dict[_Key, _Open] = {}

    def announce(self, announcement: Announcement) -> None:
        """Add a rank: bundles of its group wait for it."""
        if announcement.group is not None and announcement.is_logged:
            self._ranks.setdefault(_group_of(announcement, announcement.group), set()).add(announcement.rank)

    def forget(self, last: Heartbeat, group: str) -> None:
        """Remove a rank, by its last heartbeat."""
        key = _group_of(last, group)
        ranks = self._ranks.get(key, set())
        ranks.discard(last.rank)
        if not ranks:
            self._ranks.pop(key, None)

    def add(self, batch: Batch, now_s: float) -> Iterator[Sequence[Batch]]:
        """Add a batch that names its group; yield the batches that go out together now, in their order."""
        header = batch.header
        group = _group_of(header, header.group or "")
        key = (header.schema, group)
        known = self._open.get(key)
        # A bundle has one batch of a rank: the second one closes it, as does one that makes it too large.
        if known is not None and (header.rank in known.batches or known.rows + len(batch) > MAX_ROWS):
            yield self._take(key)
            known = None
        if known is None:
            known = self._open[key] = _Open(now_s)
        known.batches[header.rank] = batch
        known.rows += len(batch)
        # A group of which no rank was announced has 0 to wait for: its batches go out at once.
        if known.rows >= MAX_ROWS or len(known.batches) >= min(len(self._ranks.get(group, ())), MAX_GROUP_RANKS):
            yield self._take(key)

    def take_due(self, now_s: float) -> Iterator[Sequence[Batch]]:
        """Yield the bundles that have waited for `wait_s`."""
        for key in [key for key, known in self._open.items() if now_s - known.since_s >= self._wait_s]:
            yield self._take(key)

    def take_all(self) -> Iterator[Sequence[Batch]]:
        """Yield all bundles."""
        for key in list(self._open):
            yield self._take(key)

    def _take(self, key: _Key) -> Sequence[Batch]:
        return list(self._open.pop(key).batches.values())


def _group_of(own: Announcement | Heartbeat | Header, group: str) -> _GroupKey:
    return own.job, own.attempt, own.start, group


def encode_together(batches: Sequence[Batch], limit_bytes: int) -> Iterator[tuple[Sequence[Batch], bytes]]:
    """Encode batches of one group, halved until each message is below `limit_bytes`.

    Raises InputError if a single row is larger than that.
    """
    batches = [_with_used_names(one) for one in batches]
    value = encode_bundle(bundle_of(batches))
    if len(value) < limit_bytes:
        yield batches, value
    elif len(batches) > 1:
        half = len(batches) // 2
        yield from encode_together(batches[:half], limit_bytes)
        yield from encode_together(batches[half:], limit_bytes)
    else:
        for part, value in encode_in_parts(batches[0], limit_bytes, lambda own: encode_bundle(bundle_of([own]))):
            yield [part], value
