"""``job.json`` of a trace directory: the job, its communicators, and where its ranks live."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from irregulars.errors import InputError
from irregulars.streams.messages.announcements import Communicator
from irregulars.streams.messages.records import KINDS, UNKNOWN

CLOCKS: Final = ("shared", "per_host")
MOST_RANKS: Final = 1 << 22
"""Of a job: tables with an entry for each rank must fit into memory."""

MOST_COMMUNICATORS: Final = 1 << 16
"""Of one rank: batches number them with 16 bits."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank lives, and how many rows its exporter is known to have dropped."""

    host: str | None = None
    gpu: int | None = None
    nic: str | None = None
    switch: str | None = None
    lost_rows: int | None = None


@dataclass(frozen=True)
class JobFile:
    """A checked ``job.json``.

    Parameters
    ----------
    communicators
        Ordered by id, so that the order of the file's keys changes nothing.
    logged_ranks
        As the file gives them; `None` where it does not.
    """

    job: str
    attempt: int
    world_size: int
    clock: str
    communicators: tuple[Communicator, ...]
    places: Mapping[int, Place] = field(default_factory=dict)
    logged_ranks: tuple[int, ...] | None = None
    recorded_until_ns: int | None = None

    @cached_property
    def membership(self) -> Membership:
        """Who is in which communicator, as arrays."""
        return Membership.of(self.communicators, self.world_size)


@dataclass(frozen=True, slots=True)
class Membership:
    """Pairs of communicator and rank, ordered by rank, then communicator.

    Parameters
    ----------
    keys
        ``communicator * world_size + rank`` of each pair, the communicator as its ordinal.
    ordinals
        The communicator of each pair.
    first_of_rank
        Where the pairs of a rank begin; one more than ranks, so that a slice's end is the next one's begin.
    """

    keys: np.ndarray
    ordinals: np.ndarray
    first_of_rank: np.ndarray

    @classmethod
    def of(cls, communicators: tuple[Communicator, ...], world_size: int) -> Membership:
        """Order the pairs of `communicators`."""
        sizes = [len(c.ranks) for c in communicators]
        ordinals = np.repeat(np.arange(len(communicators), dtype=np.int64), sizes)
        ranks = np.fromiter((r for c in communicators for r in c.ranks), dtype=np.int64, count=sum(sizes))
        order = np.lexsort((ordinals, ranks))
        ordinals, ranks = ordinals[order], ranks[order]
        return cls(ordinals * world_size + ranks, ordinals, np.searchsorted(ranks, np.arange(world_size + 1)))

    def of_rank(self, rank: int) -> list[int]:
        """Ordinals of the communicators that `rank` is in."""
        ordinals: list[int] = self.ordinals[self.first_of_rank[rank] : self.first_of_rank[rank + 1]].tolist()
        return ordinals


def read_job(directory: Path) -> JobFile:
    """Read and check ``job.json``.

    Raises
    ------
    InputError
        If it is missing, is no JSON object, lacks a key, or a key's value breaks its rule; one line that names all of
        it.
    """
    keys = _Keys(directory / "job.json", _load(directory / "job.json"))
    world_size = keys.integer("world_size", least=1)
    if world_size > MOST_RANKS:
        raise keys.error("world_size", f"an integer of at most {MOST_RANKS}", world_size)
    job = JobFile(
        job=keys.text("job"),
        attempt=keys.integer("attempt", least=0, default=0),
        world_size=world_size,
        clock=keys.choice("clock", CLOCKS),
        communicators=_communicators(keys, world_size),
        places=_places(keys, world_size),
        logged_ranks=_logged_ranks(keys, world_size),
        recorded_until_ns=keys.optional_integer("recorded_until_ns"),
    )
    _require_countable(keys, job)
    return job


def _load(path: Path) -> dict[str, Any]:
    refuse_pipe(path)
    try:
        values = json.loads(path.read_bytes(), object_pairs_hook=_once_each)
    except FileNotFoundError:
        raise InputError(f"{path}: must exist, every trace directory has one; got no such file") from None
    except OSError as error:
        raise InputError(f"{path}: must be readable; got {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: must be JSON; got {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: must be a JSON object; got {shortened(values)}")
    return values


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if any(key == other for other, _ in pairs[:i]))
        raise ValueError(f"the key {twice!r} twice in one object")
    return values


class _Keys:
    """The keys of one JSON object, with errors that name file and key."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self._path, self._values, self._prefix = path, values, prefix

    def error(self, key: str, rule: str, value: object) -> InputError:
        return InputError(f"{self._path}: {self._prefix}{key} must be {rule}; got {shortened(value)}")

    def text(self, key: str) -> str:
        value = self._required(key, "a text that is not empty")
        if not isinstance(value, str) or not value:
            raise self.error(key, "a text that is not empty", value)
        return value

    def optional_text(self, key: str) -> str | None:
        return None if self._values.get(key) is None else self.text(key)

    def integer(self, key: str, least: int, default: int | None = None) -> int:
        if default is not None and key not in self._values:
            return default
        rule = f"an integer of at least {least}"
        value = self._required(key, rule)
        if not is_integer(value) or value < least or value >= -UNKNOWN:
            raise self.error(key, rule, value)
        return int(value)

    def optional_integer(self, key: str) -> int | None:
        return None if self._values.get(key) is None else self.integer(key, least=0)

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        rule = f"one of {', '.join(choices)}"
        value = self._required(key, rule)
        if value not in choices:
            raise self.error(key, rule, value)
        return str(value)

    def ranks(self, key: str, world_size: int, least_count: int) -> tuple[int, ...]:
        rule = f"a list of {'distinct ' if not least_count else 'at least one, distinct '}ranks below {world_size}"
        value = self._required(key, rule)
        if not isinstance(value, list) or len(value) < least_count:
            raise self.error(key, rule, value)
        for rank in value:
            if not is_integer(rank) or not 0 <= rank < world_size:
                raise self.error(key, rule, rank)
        if len(set(value)) < len(value):
            raise self.error(key, rule, value)
        return tuple(value)

    def objects(self, key: str) -> Iterable[tuple[str, _Keys]]:
        """Go through an object of objects; each comes as keys of its own."""
        values = self._required(key, "an object")
        if not isinstance(values, dict):
            raise self.error(key, "an object", values)
        for name, value in values.items():
            where = f"{key}[{name!r}]"
            if not isinstance(value, dict):
                raise self.error(where, "an object", value)
            yield name, _Keys(self._path, value, f"{self._prefix}{where}.")

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def _required(self, key: str, rule: str) -> Any:
        if key not in self._values:
            raise InputError(f"{self._path}: {self._prefix}{key} must be {rule}; got no such key")
        return self._values[key]


def _communicators(keys: _Keys, world_size: int) -> tuple[Communicator, ...]:
    found = (
        Communicator(id, own.choice("kind", KINDS), own.ranks("ranks", world_size, least_count=1))
        for id, own in keys.objects("communicators")
    )
    return tuple(sorted(found, key=lambda communicator: communicator.id))


def _places(keys: _Keys, world_size: int) -> dict[int, Place]:
    if not keys.has("ranks"):
        return {}
    return {_rank_of_key(keys, name, world_size): _place(own) for name, own in keys.objects("ranks")}


def _rank_of_key(keys: _Keys, name: str, world_size: int) -> int:
    # A rank has one spelling: "01" beside "1" would be the same rank twice.
    if not (name.isascii() and name.isdigit() and str(int(name)) == name and int(name) < world_size):
        raise keys.error("ranks", f"keyed by ranks below {world_size}, as text", name)
    return int(name)


def _place(own: _Keys) -> Place:
    return Place(
        host=own.optional_text("host"),
        gpu=own.optional_integer("gpu"),
        nic=own.optional_text("nic"),
        switch=own.optional_text("switch"),
        lost_rows=own.optional_integer("lost_rows"),
    )


def _logged_ranks(keys: _Keys, world_size: int) -> tuple[int, ...] | None:
    if not keys.has("logged_ranks"):
        return None
    return tuple(sorted(keys.ranks("logged_ranks", world_size, least_count=0)))


def _require_countable(keys: _Keys, job: JobFile) -> None:
    counts = np.diff(job.membership.first_of_rank)
    if counts.size and counts.max() > MOST_COMMUNICATORS:
        rule = f"at most {MOST_COMMUNICATORS} for any one rank"
        raise keys.error("communicators", rule, f"{counts.max()} of rank {counts.argmax()}")


def refuse_pipe(path: Path) -> None:
    """Raise `InputError` for what can be opened and may never say anything."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # who reads it says why
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{path}: must be a file; got a pipe, socket or device")


def is_integer(value: object) -> bool:
    """Tell an integer from JSON's other values; Python's ``True`` is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def shortened(value: object) -> str:
    """Print a value for an error text, in one line of bounded length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]} ..."
