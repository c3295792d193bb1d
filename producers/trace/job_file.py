"""``job.json`` of a trace directory: the job, its communicators, and where its ranks live."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta

from irregulars.errors import InputError
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import GROUP_KINDS
from irregulars.producers.trace.foreign_files import how_to_import
from irregulars.validation import MAX_NAME_CHARACTERS, Count, JobName, Name, RowCount, Size, checked, one_of, shown

CLOCKS: Final = ("shared", "per_host")
MOST_COMMUNICATORS: Final = 1 << 16  # of one rank: batches number them with 16 bits


@dataclass(frozen=True, slots=True)
class RankLocation:
    """Where a rank lives, and how many rows its exporter is known to have dropped."""

    host: Name | None = None
    gpu: Count | None = None
    nic: Name | None = None
    switch: Name | None = None
    lost_rows: RowCount | None = None


@dataclass(frozen=True)
class JobFile:
    """A checked ``job.json``."""

    job: str
    attempt: int
    world_size: int
    clock: str
    communicators: tuple[Communicator, ...]  # ordered by id, so that the order of the file's keys changes nothing
    places: Mapping[int, RankLocation] = field(default_factory=dict)
    logged_ranks: tuple[int, ...] | None = None  # as the file gives them; `None` where it does not
    recorded_until_ns: int | None = None
    replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by rank, those that have its parameters
    fabric: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the switches above each switch

    @cached_property
    def membership(self) -> Membership:
        """Ranks of each communicator, as arrays."""
        sizes = [len(c.ranks) for c in self.communicators]
        ordinals = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        ranks = np.fromiter((r for c in self.communicators for r in c.ranks), dtype=np.int64, count=sum(sizes))
        # Filled by communicator, wanted by rank.
        order = np.lexsort((ordinals, ranks))
        ordinals, ranks = ordinals[order], ranks[order]
        first_of_rank = np.searchsorted(ranks, np.arange(self.world_size + 1))
        return Membership(ordinals * self.world_size + ranks, ordinals, first_of_rank)


@dataclass(frozen=True, slots=True)
class Membership:
    """Pairs of communicator and rank, ordered by rank, then communicator."""

    keys: np.ndarray  # ``communicator * world_size + rank`` of each pair, the communicator as its ordinal
    ordinals: np.ndarray  # the communicator of each pair
    # Where the pairs of a rank begin; one more than ranks, so that a slice's end is the next one's begin
    first_of_rank: np.ndarray

    def of_rank(self, rank: int) -> list[int]:
        """Return the ordinals of the communicators that `rank` is in."""
        ordinals: list[int] = self.ordinals[self.first_of_rank[rank] : self.first_of_rank[rank + 1]].tolist()
        return ordinals


def read_job(directory: Path) -> JobFile:
    """Read and check ``job.json``; InputError, in one line, if it is missing, no JSON object, or breaks a rule."""
    path = directory / "job.json"
    values = _load(path)
    try:
        keys = checked(values, _Keys, "")
        communicators = _communicators(keys)
        places = {}
        for name, place in (keys.ranks or {}).items():
            # A rank has one spelling: "01" beside "1" would be the same rank twice.
            if not (name.isascii() and name.isdigit() and str(int(name)) == name and int(name) < keys.world_size):
                raise InputError(f"ranks must be keyed by ranks below {keys.world_size}, as text; got {shown(name)}")
            places[int(name)] = place
        replicas = tuple(chain.from_iterable(keys.replicas or ()))
        for list_name, listed in (("logged_ranks", keys.logged_ranks or ()), ("replicas", replicas)):
            _require_ranks(listed, keys.world_size, list_name)
        job = JobFile(
            job=keys.job, attempt=keys.attempt, world_size=keys.world_size, clock=keys.clock,
            communicators=communicators, places=places,
            logged_ranks=None if keys.logged_ranks is None else tuple(sorted(keys.logged_ranks)),
            recorded_until_ns=keys.recorded_until_ns, fabric=keys.fabric or {},
            replicas={rank: one for one in map(tuple, map(sorted, keys.replicas or ())) for rank in one},
        )  # fmt: skip
        counts = np.diff(job.membership.first_of_rank)
        if counts.size and counts.max() > MOST_COMMUNICATORS:
            found = f"{counts.max()} of rank {counts.argmax()}"
            raise InputError(f"communicators must be at most {MOST_COMMUNICATORS} for any one rank; got {found!r}")
        return job
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _load(path: Path) -> dict[str, Any]:
    refuse_pipe(path)
    try:
        raw = path.read_bytes()
        values = json.loads(raw, object_pairs_hook=_once_each)
        if b"\\u" in raw:  # JSON can write half of a surrogate pair, which no message can hold
            json.dumps(values, ensure_ascii=False).encode()
    except FileNotFoundError:
        rule = f"{path}: must exist, every trace directory has one; got no such file"
        raise InputError(f"{rule}{how_to_import(path.parent)}") from None
    except OSError as error:
        raise InputError(f"{path}: must be readable; got {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: must be JSON; got {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: must be a JSON object; got {shown(values)}")
    return values


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # JSON's reader would keep the last one, and silently lose a rank or a communicator.
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if any(key == other for other, _ in pairs[:i]))
        raise ValueError(f"the key {twice!r} twice in one object")
    return values


@dataclass(frozen=True, slots=True)
class _Group:
    kind: Annotated[str, one_of(*GROUP_KINDS)]
    ranks: Annotated[tuple[int, ...], Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of the file, each with its rule; rules that depend on the number of ranks are checked after it."""

    job: JobName
    world_size: Size
    clock: Annotated[str, one_of(*CLOCKS)]
    communicators: dict[str, _Group]
    attempt: Count = 0
    ranks: dict[str, RankLocation] | None = None
    logged_ranks: tuple[int, ...] | None = None
    recorded_until_ns: Count | None = None
    replicas: tuple[tuple[int, ...], ...] | None = None
    fabric: dict[Name, tuple[Name, ...]] | None = None


def _communicators(keys: _Keys) -> tuple[Communicator, ...]:
    for id, group in keys.communicators.items():
        if len(id) > MAX_NAME_CHARACTERS:
            rule = f"text of at most {MAX_NAME_CHARACTERS} characters"
            raise InputError(f"names of communicators must be {rule}; got {shown(id)}")
        _require_ranks(group.ranks, keys.world_size, f"communicators[{id!r}].ranks")
    found = (Communicator(id, group.kind, group.ranks) for id, group in keys.communicators.items())
    return tuple(sorted(found, key=lambda communicator: communicator.id))


def _require_ranks(ranks: tuple[int, ...], world_size: int, key: str) -> None:
    outside = next((rank for rank in ranks if not 0 <= rank < world_size), None)
    if outside is not None or len(set(ranks)) < len(ranks):
        found: object = list(ranks) if outside is None else outside
        raise InputError(f"{key} must be a list of distinct ranks below {world_size}; got {shown(found)}")


def refuse_pipe(path: Path) -> None:
    """Raise `InputError` for a pipe, socket or device: reading it might block for ever."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # reading it raises the error, with its reason
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{path}: must be a file; got a pipe, socket or device")


def is_integer(value: object) -> bool:
    """Whether a value of JSON is an integer; Python's ``True`` is none."""
    return isinstance(value, int) and not isinstance(value, bool)
