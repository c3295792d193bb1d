"""Gathers the batches of a group's ranks into bundles, so that a host's ranks cost one message and not eight.

A batch waits for those of the other ranks, until an agent that looks again finds it older than a quarter of a second:
ranks of a synchronous job have theirs within milliseconds of each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.bundles import MAX_GROUP_RANKS, bundle_of, encode_bundle
from irregulars.messages.records import Batch, Header
from irregulars.producers.publishing.batches import encode_in_parts

MAX_ROWS: Final = 12_000
"""Rows of a bundle: half a MiB of operators, half of what a message may have."""

_Group = tuple[str, int, str | None, str]  # job, attempt, start, group
_Key = tuple[str, _Group]  # with the schema before it


@dataclass(slots=True)
class _Open:
    """A bundle that others may still join."""

    since_s: float
    rows: int = 0
    batches: dict[int, Batch] = field(default_factory=dict)  # by rank


class Bundler:
    """Holds batches until the others of their group have come, or `wait_s` are over.

    Parameters
    ----------
    wait_s
        How long a batch may wait, seconds.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._ranks: dict[_Group, set[int]] = {}
        self._open: dict[_Key, _Open] = {}

    def announce(self, announcement: Announcement) -> None:
        """Note that a rank is here: bundles of its group wait for it."""
        if announcement.group is not None and announcement.is_logged:
            self._ranks.setdefault(_group_of(announcement, announcement.group), set()).add(announcement.rank)

    def forget(self, told: Heartbeat, group: str) -> None:
        """Note that a rank has ended."""
        key = _group_of(told, group)
        ranks = self._ranks.get(key, set())
        ranks.discard(told.rank)
        if not ranks:
            self._ranks.pop(key, None)

    def add(self, batch: Batch, now_s: float) -> Iterator[Sequence[Batch]]:
        """Take in a batch that names its group; give the batches that go out together now, in their order."""
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
        """Give what has waited long enough."""
        for key in [key for key, known in self._open.items() if now_s - known.since_s >= self._wait_s]:
            yield self._take(key)

    def take_all(self) -> Iterator[Sequence[Batch]]:
        """Give everything."""
        for key in list(self._open):
            yield self._take(key)

    def _take(self, key: _Key) -> Sequence[Batch]:
        return list(self._open.pop(key).batches.values())


def _group_of(own: Announcement | Heartbeat | Header, group: str) -> _Group:
    return own.job, own.attempt, own.start, group


def encode_together(batches: Sequence[Batch], limit_bytes: int) -> Iterator[tuple[Sequence[Batch], bytes]]:
    """Encode batches of one group in as few messages below `limit_bytes` as halving them gives.

    Raises
    ------
    InputError
        If a single row is larger than that.
    """
    value = encode_bundle(bundle_of(batches))
    if len(value) < limit_bytes:
        yield batches, value
    elif len(batches) > 1:
        half = len(batches) // 2
        yield from encode_together(batches[:half], limit_bytes)
        yield from encode_together(batches[half:], limit_bytes)
    else:
        yield from (([part], value) for part, value in encode_in_parts(batches[0], limit_bytes, _encode_alone))


def _encode_alone(batch: Batch) -> bytes:
    return encode_bundle(bundle_of([batch]))
