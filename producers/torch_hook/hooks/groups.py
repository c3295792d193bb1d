"""The process groups of this process as communicators: ids that all ranks agree on, members, kinds."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import KINDS
from irregulars.producers.publishing.group_kinds import kind_of_description

_MOST_GROUPS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Group:
    """One process group.

    Parameters
    ----------
    number
        In this process, in the order of creation; rows carry it.
    communicator
        Its id, kind and global ranks.
    lanes
        How many collectives of CPU tensors run at once: gloo's threads.
    """

    number: int
    communicator: Communicator
    lanes: int = 2


class Groups:
    """All groups that were ever attached in this process, destroyed ones too: their rows may still be on the way."""

    def __init__(self) -> None:
        self._groups: list[Group] = []
        self._by_name: dict[str, int] = {}
        self._ordinals: Counter[tuple[int, ...]] = Counter()
        self._first = 0  # of the groups since the rank has its place
        self.since_ns: int | None = None  # when that group was made; None: none was
        self._lock = threading.Lock()

    def add(self, name: str, ranks: Sequence[int], world_size: int, description: str, lanes: int) -> Group:
        """Enter a group that was just made; a name may come again once its group was destroyed."""
        members = tuple(ranks)
        with self._lock:
            if len(self._groups) >= _MOST_GROUPS:
                raise InputError(f"process groups must be at most {_MOST_GROUPS}; got one more")
            self.since_ns = self.since_ns or time.time_ns()
            self._ordinals[members] += 1
            id = communicator_id(members, world_size, self._ordinals[members])
            kind = "world" if len(members) == world_size else kind_of_description(description)
            group = Group(len(self._groups), Communicator(id, kind, members), lanes)
            self._groups.append(group)
            self._by_name[name] = group.number
        return group

    def set_kind(self, name: str, kind: str) -> None:
        """Say what a group is for.

        Raises
        ------
        InputError
            If the kind is none of `messages.records.KINDS`, or there is no such group.
        """
        if kind not in KINDS:
            raise InputError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
        with self._lock:
            if name not in self._by_name:
                raise InputError(f"group must be one that is logged; got {name!r}")
            number = self._by_name[name]
            group = self._groups[number]
            self._groups[number] = replace(group, communicator=replace(group.communicator, kind=kind))

    def start_over(self) -> None:
        """Name the groups to come as those of a process that comes up now."""
        with self._lock:
            self._first, self.since_ns = len(self._groups), None
            self._ordinals.clear()

    @property
    def present(self) -> tuple[Group, ...]:
        """The groups that were made since the rank has its place, by number."""
        with self._lock:
            return tuple(self._groups[self._first :])

    @property
    def all(self) -> tuple[Group, ...]:
        """All groups, by number."""
        with self._lock:
            return tuple(self._groups)


def communicator_id(ranks: tuple[int, ...], world_size: int, ordinal: int) -> str:
    """Name a group by its ordered ranks and how many of the same ranks came before it: every member says the same.

    >>> communicator_id((0, 1, 2, 3), 4, 1), communicator_id((0, 2), 4, 1), communicator_id((0, 2), 4, 2)
    ('world', 'ranks-0-2-by-2', 'ranks-0-2-by-2.2')
    >>> communicator_id((4, 5, 6), 8, 1), communicator_id((1,), 8, 1), communicator_id((3, 1, 2), 8, 1)
    ('ranks-4-6', 'ranks-1', 'ranks-3x3-edb794d6')
    """
    steps = set(np.diff(ranks).tolist())
    if ranks == tuple(range(world_size)):
        text = "world"
    elif len(ranks) == 1:
        text = f"ranks-{ranks[0]}"
    elif len(steps) == 1 and (step := steps.pop()) > 0:
        text = f"ranks-{ranks[0]}-{ranks[-1]}" + (f"-by-{step}" if step > 1 else "")
    else:
        digest = hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:8]
        text = f"ranks-{ranks[0]}x{len(ranks)}-{digest}"
    return text if ordinal == 1 else f"{text}.{ordinal}"
