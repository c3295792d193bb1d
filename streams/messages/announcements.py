"""What a rank says of itself: an announcement in each attempt, and a heartbeat each second. JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from irregulars.errors import RecordError
from irregulars.streams.messages.json_fields import (
    MAX_RANK,
    boolean,
    first_line,
    integer,
    optional_integer,
    optional_text,
    text,
    texts,
)
from irregulars.streams.messages.records import decode_json, encode_json

MAX_MEMBERS: Final = 1 << 22
"""Ranks of all communicators of a rank: a few bytes could name so many that a worker's memory does not hold them."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """A group of ranks that communicate; ``id`` is unique in the job. ``ranks`` are global, in communicator order."""

    id: str
    kind: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Announcement:
    """One rank's message on the compacted topic ``jobs``: what it is, where it lives, what it will send.

    Parameters
    ----------
    logged_ranks
        How many ranks of the job log: the job is announced when that many did.
    is_logged
        False for a rank whose place is known although it will send nothing.
    sources
        Schemas of the batches that this rank will send.
    lost_rows
        Rows that this rank's exporter is known to have dropped; `None` if it does not count them.
    communicators
        Those that this rank is in.
    """

    job: str
    attempt: int
    rank: int
    world_size: int
    logged_ranks: int
    communicators: tuple[Communicator, ...]
    sources: tuple[str, ...] = ("commops",)
    is_logged: bool = True
    clock: str = "per_host"
    host: str | None = None
    gpu: int | None = None
    nic: str | None = None
    switch: str | None = None
    lost_rows: int | None = None
    recorded_until_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far one source of a rank has come: rows published, and event time up to which they are complete."""

    rows: int
    watermark_ns: int | None
    lost_rows: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One rank's message of each second. With ``state="ended"`` it is the last one, and ``reason`` says why."""

    job: str
    attempt: int
    rank: int
    sources: Mapping[str, SourceProgress] = field(default_factory=dict)
    state: str = "running"
    reason: str | None = None


def encode_announcement(announcement: Announcement) -> bytes:
    """Encode for the topic ``jobs``; ranks of communicators as runs ``[first, past the last, step]``."""
    values = {name: getattr(announcement, name) for name in Announcement.__slots__}
    values["communicators"] = [
        {"id": c.id, "kind": c.kind, "ranks": ranks_to_runs(c.ranks)} for c in announcement.communicators
    ]
    return encode_json("jobs", values)


def decode_announcement(value: bytes | None) -> Announcement:
    """Decode a message of the topic ``jobs``; raises `RecordError` as `decode_batch` does."""
    values = decode_json(value, "jobs")
    try:
        return Announcement(
            job=text(values, "job"),
            attempt=integer(values, "attempt"),
            rank=integer(values, "rank", 0, MAX_RANK),
            world_size=integer(values, "world_size", 1, MAX_RANK),
            logged_ranks=integer(values, "logged_ranks", 0, MAX_RANK),
            communicators=_communicators(values["communicators"]),
            sources=texts(values, "sources"),
            is_logged=boolean({"is_logged": True, **values}, "is_logged"),
            clock=text({"clock": "per_host", **values}, "clock"),
            host=optional_text(values, "host"),
            gpu=optional_integer(values, "gpu"),
            nic=optional_text(values, "nic"),
            switch=optional_text(values, "switch"),
            lost_rows=optional_integer(values, "lost_rows", 0),
            recorded_until_ns=optional_integer(values, "recorded_until_ns"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"jobs message must follow its schema; got {first_line(error)}") from error


def _communicators(listed: Sequence[Mapping[str, Any]]) -> tuple[Communicator, ...]:
    """Read communicators; raises `RecordError` if they have too many ranks together, before any of them is made."""
    runs = [_runs(one) for one in listed]
    if sum(len(range(*run)) for own in runs for run in own) > MAX_MEMBERS:
        raise RecordError(f"communicators of a rank must have at most {MAX_MEMBERS} ranks; got more")
    pairs = zip(listed, runs, strict=True)
    return tuple(Communicator(text(one, "id"), text(one, "kind"), runs_to_ranks(own)) for one, own in pairs)


def _runs(values: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    runs = [tuple(run) for run in values["ranks"]]
    for first, past, step in runs:
        bounds = {"first": first, "past": past, "step": step}
        integer(bounds, "first", 0, MAX_RANK)
        integer(bounds, "past", 0, MAX_RANK + integer(bounds, "step", 1, MAX_RANK))
    return runs


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Encode for the topic ``heartbeats``."""
    values = {name: getattr(heartbeat, name) for name in Heartbeat.__slots__}
    values["sources"] = {
        name: {"rows": s.rows, "watermark_ns": s.watermark_ns, "lost_rows": s.lost_rows}
        for name, s in heartbeat.sources.items()
    }
    return encode_json("heartbeats", values)


def decode_heartbeat(value: bytes | None) -> Heartbeat:
    """Decode a message of the topic ``heartbeats``; raises `RecordError` as `decode_batch` does."""
    values = decode_json(value, "heartbeats")
    try:
        return Heartbeat(
            job=text(values, "job"),
            attempt=integer(values, "attempt"),
            rank=integer(values, "rank", 0, MAX_RANK),
            sources={name: _progress(one) for name, one in values["sources"].items()},
            state=text(values, "state"),
            reason=optional_text(values, "reason"),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"heartbeat must follow its schema; got {first_line(error)}") from error


def _progress(values: Mapping[str, Any]) -> SourceProgress:
    lost_rows = integer({"lost_rows": 0, **values}, "lost_rows", 0)
    return SourceProgress(integer(values, "rows", 0), optional_integer(values, "watermark_ns"), lost_rows)


def ranks_to_runs(ranks: Sequence[int]) -> list[list[int]]:
    """Write ranks as runs ``[first, past the last, step]``, order kept: 8,192 ranks take 13 bytes.

    >>> ranks_to_runs([0, 8, 16, 3])
    [[0, 24, 8], [3, 4, 1]]
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1]:
            runs[-1][1] += runs[-1][2]
        elif runs and runs[-1][1] == runs[-1][0] + runs[-1][2] and rank > runs[-1][0]:
            runs[-1][2] = rank - runs[-1][0]  # a run of one takes the step to its second member
            runs[-1][1] = rank + runs[-1][2]
        else:
            runs.append([rank, rank + 1, 1])
    return runs


def runs_to_ranks(runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Read runs back.

    >>> runs_to_ranks([[0, 24, 8], [3, 4, 1]])
    (0, 8, 16, 3)
    """
    return tuple(rank for first, past, step in runs for rank in range(first, past, step))
