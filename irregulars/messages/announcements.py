"""Messages of a rank about itself, as JSON: an announcement in each attempt, and a heartbeat each second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from operator import eq
from typing import Final, overload
from weakref import WeakValueDictionary

from irregulars.errors import RecordError
from irregulars.messages.records import BATCH_SCHEMAS, decode_json, encode_json, without_unknown_start
from irregulars.validation import (
    LARGEST,
    MAX_RANK,
    Count,
    Integer,
    JobName,
    Label,
    Name,
    Rank,
    RowCount,
    Size,
    checked,
)

MAX_MEMBERS: Final = 1 << 22
"""Ranks of all communicators of one rank together. They are kept as the runs that were sent, a few bytes each; but
judgement lists them, and a short message could name more ranks than a worker's memory holds."""

MAX_ANNOUNCEMENT_BYTES: Final = 900_000
"""Of an announcement as we encode it: the first hop sends it on inside a message of ``evidence``, below 1 MB as well,
and JSON takes up to three times the bytes for letters beyond ASCII."""

_MOST_SHOWN: Final = 1000
_LEAFS_SHARED: Final = 4096  # leafs whose fabric is kept once


class Ranks(Sequence[int]):
    """Ranks as runs ``[first, past the last, step]``: a few bytes, however many they are.

    >>> ranks = Ranks([[0, 24, 8], [3, 4, 1]])
    >>> len(ranks), list(ranks), ranks[1], ranks == (0, 8, 16, 3)
    (4, [0, 8, 16, 3], 8, True)
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: Iterable[Sequence[int]]) -> None:
        self._runs = tuple(range(first, past, step) for first, past, step in runs)

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._runs)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        return tuple(self)[place]

    def __contains__(self, rank: object) -> bool:
        return any(rank in run for run in self._runs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranks | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        # It equals a tuple of the same ranks, so it must have that tuple's hash.
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self)) if len(self) <= _MOST_SHOWN else f"Ranks({self.runs()})"

    def runs(self) -> list[list[int]]:
        """Return the runs."""
        return [[run.start, run.stop, run.step] for run in self._runs]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Communicator:
    """A group of ranks that communicate; ``id`` is unique in the job. ``ranks`` are global, in communicator order."""

    id: Label
    kind: Name
    ranks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Announcement:
    """One rank's message on the compacted topic ``jobs``: its place in the job, its devices, and its sources."""

    job: JobName
    attempt: Count
    rank: Rank
    world_size: Size
    # How many ranks of the job log. The job counts as announced once this many ranks have announced themselves.
    logged_ranks: Rank
    communicators: tuple[Communicator, ...]  # those that this rank is in
    sources: tuple[Label, ...] = ("commops",)  # schemas of the batches that this rank will send
    is_logged: bool = True  # false for a rank whose place is known although it will send nothing
    clock: Name = "per_host"
    host: Label | None = None
    gpu: Count | None = None
    nic: Label | None = None
    switch: Label | None = None
    # Rows that this rank's exporter is known to have dropped; `None` if it does not count them
    lost_rows: RowCount | None = None
    recorded_until_ns: Count | None = None
    # The group with whose bundles the rank's rows come (`messages.bundles`); None: they come by themselves
    group: Name | None = None
    # An id of this start of the job, the same on all its ranks and on no other start's: it tells starts apart that
    # have one attempt number. None: the producer knows none.
    start: Name | None = None
    # When the rank got this place in a start that ran already (a spare took it over, or the group was resized), ns
    # since the epoch, its host's clock. It holds for younger rows. None: it has had it from the start.
    since_ns: Count | None = None
    # Ranks that hold the same parameters as this one after each step, bit by bit, itself among them; None: not known
    replicas: Sequence[Rank] | None = None
    # The switches above each switch, of this rank's switch and those above it; None: not known
    fabric: Mapping[Label, tuple[Label, ...]] | None = None
    # Whether each operator of an iteration names it, so that one which names none is of none; false: not known
    names_iterations: bool = False


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """How far one source of a rank has come: rows published, and event time up to which they are complete."""

    rows: RowCount
    watermark_ns: Integer | None = None
    lost_rows: RowCount = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """How far one rank has come, each second if there is news.

    With ``state="ended"`` it is the last one, and ``reason`` says why.
    """

    job: JobName
    attempt: Count
    rank: Rank
    sources: Mapping[str, SourceProgress] = field(default_factory=dict)
    state: Name = "running"
    reason: Label | None = None
    group: Name | None = None
    start: Name | None = None
    since_ns: Count | None = None


def above(switch: str | None, fabric: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]] | None:
    """Return the part of a fabric that lies above a switch; None where that is not known.

    >>> above("a", {"a": ("s",), "b": ("s",), "s": ("core",)})
    {'a': ('s',), 's': ('core',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    waiting = [switch] if switch is not None and switch in fabric else []
    for one in waiting:  # grows as it goes
        found[one] = fabric[one]
        waiting += [upper for upper in dict.fromkeys(fabric[one]) if upper in fabric and upper not in waiting]
    return found or None


def code_of_start(attempt: int, start: str | None) -> int:
    """Return the number that stands for a start in columns: the attempt's own, where the start has no id.

    >>> code_of_start(3, None), code_of_start(3, "a") == code_of_start(3, "b"), code_of_start(3, "a") < -(1 << 61)
    (3, False, True)
    """
    if start is None:
        return attempt
    digest = blake2b(f"{attempt} {start}".encode(errors="replace"), digest_size=8).digest()
    # 60 bits above `-LARGEST`: all of them below `FIRST_ATTEMPT`, where no attempt number is.
    return (int.from_bytes(digest, "big") >> 4) - LARGEST


FIRST_ATTEMPT: Final = (1 << 60) - LARGEST
"""The least attempt number: below it are the numbers that stand for starts with an id."""


def contradiction_of(one: Announcement, other: Announcement) -> str | None:
    """Return in which respect two announcements of a rank, start and time can't both be true; None: they can.

    A fact that only one of them knows is no contradiction, nor are groups that were made between them.
    """
    for name in ("world_size", "host", "gpu", "nic"):
        values = getattr(one, name), getattr(other, name)
        if None not in values and values[0] != values[1]:
            return name
    first, second = ({c.id: c for c in each.communicators} for each in (one, other))
    is_part = first.keys() <= second.keys() or second.keys() <= first.keys()
    shared = ((first[name], second[name]) for name in first.keys() & second.keys())
    is_same = is_part and all(
        a is b or (a.kind == b.kind and ranks_to_runs(a.ranks) == ranks_to_runs(b.ranks)) for a, b in shared
    )
    return None if is_same else "communicators"


def encode_announcement(announcement: Announcement) -> bytes:
    """Encode for the topic ``jobs``; ranks of communicators as runs ``[first, past the last, step]``."""
    values = {name: getattr(announcement, name) for name in Announcement.__slots__}
    values["communicators"] = [
        {"id": c.id, "kind": c.kind, "ranks": ranks_to_runs(c.ranks)} for c in announcement.communicators
    ]
    values["replicas"] = None if announcement.replicas is None else ranks_to_runs(announcement.replicas)
    for name in ("fabric", "replicas", "names_iterations"):
        if values[name] in (None, False):
            del values[name]
    return encode_json("jobs", without_unknown_start(values))


def decode_announcement(value: bytes | None) -> Announcement:
    """Decode a message of the topic ``jobs``; raises `RecordError` as `decode_batch` does."""
    values = decode_json(value, "jobs")
    found = checked(values.get("communicators"), tuple[_Runs, ...], "communicators", "jobs message", RecordError)
    replicas = checked(values.get("replicas"), tuple[_Run, ...] | None, "replicas", "jobs message", RecordError)
    # Read like one more communicator: its ranks count for `MAX_MEMBERS`, and equal sets are kept once.
    same = [_Runs("replicas", "unknown", replicas)] if replicas is not None else []
    communicators = _communicators((*found, *same))
    announcement: Announcement = checked(
        # `sources` has a default in the class and none on the wire: a message without it is refused.
        {"sources": None, **values, "communicators": communicators[: len(found)], "replicas": None},
        Announcement,
        "",
        "jobs message",
        RecordError,
    )
    announcement = replace(announcement, replicas=communicators[-1].ranks) if same else announcement
    if announcement.fabric is not None:
        announcement = replace(announcement, fabric=_shared_fabric(tuple(announcement.fabric.items())))
    if len(value or b"") > MAX_ANNOUNCEMENT_BYTES // 3:  # a letter grows at most from two bytes to six
        size_bytes = len(encode_announcement(announcement))
        if size_bytes > MAX_ANNOUNCEMENT_BYTES:
            raise RecordError(f"announcement must be at most {MAX_ANNOUNCEMENT_BYTES} bytes; got {size_bytes}")
    return announcement


_Run = tuple[Rank, Count, Size]  # ``[first, past the last, step]``


@dataclass(frozen=True, slots=True)
class _Runs:
    """A communicator as it is sent: its ranks as runs ``[first, past the last, step]``."""

    id: Label
    kind: Name
    ranks: tuple[_Run, ...]


def _communicators(listed: Sequence[_Runs]) -> tuple[Communicator, ...]:
    """Read communicators; raises `RecordError` if they have too many ranks together, before any of them is made."""
    runs = [run for one in listed for run in one.ranks]
    # `past` lies one whole step behind the last rank: see `ranks_to_runs`.
    beyond = next((past for _, past, step in runs if past > MAX_RANK + step), None)
    if beyond is not None:
        raise RecordError(f"ranks of a communicator must be at most {MAX_RANK}; got those before {beyond}")
    if sum(len(range(*run)) for run in runs) > MAX_MEMBERS:
        raise RecordError(f"communicators of a rank must have at most {MAX_MEMBERS} ranks; got more")
    return tuple(map(_shared, listed))


_SHARED: Final[WeakValueDictionary[_Runs, Communicator]] = WeakValueDictionary()
"""Communicators that some announcement holds. All members announce the same ones: 1,024 ranks have 4,096 of them, of
which some hundreds differ."""


@lru_cache(_LEAFS_SHARED)
def _shared_fabric(items: tuple[tuple[str, tuple[str, ...]], ...]) -> Mapping[str, tuple[str, ...]]:
    """Return one mapping for all ranks below a switch: each of them announces the same."""
    return dict(items)


def _shared(one: _Runs) -> Communicator:
    found = _SHARED.get(one)
    if found is None:
        found = _SHARED[one] = Communicator(one.id, one.kind, Ranks(one.ranks))
    return found


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Encode for the topic ``heartbeats``."""
    values = {name: getattr(heartbeat, name) for name in Heartbeat.__slots__}
    values["sources"] = {
        name: {"rows": s.rows, "watermark_ns": s.watermark_ns, "lost_rows": s.lost_rows}
        for name, s in heartbeat.sources.items()
    }
    return encode_json("heartbeats", without_unknown_start(values))


def decode_heartbeat(value: bytes | None) -> Heartbeat:
    """Decode a message of the topic ``heartbeats``; raises `RecordError` as `decode_batch` does."""
    values = {"sources": None, "state": None} | decode_json(value, "heartbeats")
    heartbeat: Heartbeat = checked(values, Heartbeat, "", "heartbeat", RecordError)
    # Of sources that we don't know no row will ever arrive; a heartbeat that waited for them would take no effect.
    known = {name: progress for name, progress in heartbeat.sources.items() if name in BATCH_SCHEMAS}
    return replace(heartbeat, sources=known) if len(known) < len(heartbeat.sources) else heartbeat


def ranks_to_runs(ranks: Sequence[int]) -> list[list[int]]:
    """Write ranks as runs ``[first, past the last, step]``, order kept: 8,192 ranks take 13 bytes.

    >>> ranks_to_runs([0, 8, 16, 3])
    [[0, 24, 8], [3, 4, 1]]
    """
    if isinstance(ranks, Ranks):
        return ranks.runs()
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
