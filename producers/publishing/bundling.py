"""Gathers the batches of a group's ranks into bundles, so that a host's ranks cost one message and not eight.

A batch waits for those of the other ranks, a quarter of a second at most: ranks of a synchronous job send theirs
within milliseconds of each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.bundles import MAX_GROUP_RANKS, bundle_of, encode_bundle
from irregulars.messages.records import Batch, Header
from irregulars.producers.publishing.batches import encode_in_parts

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
    """Holds batches until the others of their group have come, or `wait_s` are over."""

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
        if known is not None and (header.rank in known.batches or known.rows + len(batch) > MAX_ROWS):
            yield self._take(key)
            known = None
        if known is None:
            known = self._open[key] = _Open(now_s)
        known.batches[header.rank] = batch
        known.rows += len(batch)
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
