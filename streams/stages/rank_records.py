"""What the first hop's topics carry, decoded and checked against the key that it came with."""

from __future__ import annotations

from irregulars.errors import RecordError
from irregulars.kafka.topics import group_key, rank_key
from irregulars.messages.announcements import Announcement, Heartbeat, decode_announcement, decode_heartbeat
from irregulars.messages.bundles import Bundle, BundleHeader, bundle_of, decode_rows, encode_bundle
from irregulars.messages.records import Batch, encode_batch

Record = Announcement | Batch | Bundle | Heartbeat


def decode(topic: str, key: bytes | None, value: bytes | None) -> Record:
    """Decode a message of an input topic of the first hop.

    Raises
    ------
    RecordError
        If it can't be decoded, or its key is not that of the rank or the group inside.
    """
    record: Record
    if topic == "jobs":
        record = decode_announcement(value)
        wanted = rank_key(record.job, record.rank)  # compacted: each rank's own, though its partition is its group's
    else:
        record = decode_heartbeat(value) if topic == "heartbeats" else decode_rows(value, topic)
        wanted = monitor_key(record)
    if key != wanted:
        raise RecordError(f"key must be {wanted!r}, the {_owner(record)} inside; got {key!r}")
    return record


def monitor_key(record: Record) -> bytes:
    """Return the key of the monitor that a record goes to: that of its group, or of its rank where it has none."""
    own = record.header if isinstance(record, Batch | Bundle) else record
    if own.group is not None:
        return group_key(own.job, own.group)
    assert not isinstance(own, BundleHeader)
    return rank_key(own.job, own.rank)


def require_job(record: Record, job: str) -> None:
    """Raise `RecordError` for records of another job: rank 3 of ``a/@b`` has the key of group ``b/3`` of ``a``."""
    own = record.header if isinstance(record, Batch | Bundle) else record
    if own.job != job:
        raise RecordError(f"job must be {job!r}, whose key this was first; got {own.job!r}")


def _owner(record: Record) -> str:
    is_bundle = isinstance(record, Bundle) or (isinstance(record, Heartbeat) and record.group is not None)
    return "group" if is_bundle else "rank"


def encode_rows(batch: Batch) -> bytes:
    """Encode a batch as it came: by itself, or as a bundle."""
    return encode_batch(batch) if batch.header.group is None else encode_bundle(bundle_of([batch]))
