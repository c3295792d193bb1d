"""The process groups of this process, and their communicators: ids that all ranks agree on, members, kinds."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import GROUP_KINDS
from irregulars.producers.publishing.group_kinds import kind_of_description
from irregulars.producers.torch_hook.loaded_modules import put_back

_MOST_GROUPS: Final = 1 << 16  # a row numbers its group with 16 bits
# Threads of a gloo group whose options do not give their number: torch's default.
_GLOO_THREADS: Final = 2
# Backends whose operators run in threads of the host, also those of a device's tensors.
_IN_THREADS: Final = ("gloo", "mpi", "fake")


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A process group that this rank is a member of."""

    process_group: Any
    name: str  # torch's name: unique among the groups that exist, but used again after they were destroyed
    ranks: tuple[int, ...]  # global, in the order of the group
    description: str
    # Type of the device on whose streams operators run, as NCCL's do; ``cpu`` where threads run them, as gloo's
    device: str
    lanes: int  # number of collectives of CPU tensors that its backend runs at once


class ProcessGroups:
    """Passes every group of this process to a callback, once."""

    def __init__(self, on_group: Callable[[NewGroup], None], on_error: Callable[[Exception], None]) -> None:
        self._on_group, self._on_error = on_group, on_error
        self._originals: list[tuple[Any, str, Any]] = []
        self._made: dict[Any, Any] = {}  # functions of ours, by the one that each calls

    def follow(self) -> None:
        """Pass on the groups that exist, and from now on those that are made."""
        import torch.distributed
        from torch.distributed import distributed_c10d as c10d

        functions = ((c10d, "_new_process_group_helper"), (c10d, "split_group"), (torch.distributed, "split_group"))
        # All are read before any is replaced: both modules hold the same function.
        self._originals += [(owner, name, getattr(owner, name)) for owner, name in functions if hasattr(owner, name)]
        for owner, name, original in self._originals:
            setattr(owner, name, self._made.setdefault(original, self._following(original)))
        for process_group in list(c10d._world.pg_map):
            self._pass_on(process_group, None)

    def leave(self) -> None:
        """Put torch's functions back."""
        originals, self._originals = self._originals, []
        for owner, name, original in originals:
            put_back(owner, name, self._made.get(original), original)

    def _following(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if not self._originals:  # another tool holds this function, and the recording has ended
                return made
            # The third argument of `_new_process_group_helper`; `split_group` has a timeout there.
            ranks = kwargs.get("global_ranks_in_group", args[2] if len(args) > 2 else None)
            self._pass_on(made[0] if isinstance(made, tuple) else made, ranks if isinstance(ranks, list) else None)
            return made

        return make

    def _pass_on(self, process_group: Any, ranks: Sequence[int] | None) -> None:
        try:
            from torch.distributed import ProcessGroup

            # A rank that is no member gets a placeholder in place of the group.
            if isinstance(process_group, ProcessGroup) and (new := _describe(process_group, ranks)) is not None:
                self._on_group(new)
        except Exception as error:
            self._on_error(error)


def _describe(process_group: Any, ranks: Sequence[int] | None) -> NewGroup | None:
    """Describe a group; None: its members are of several programs, as trainers that send weights to servers are.

    These call torch's helper without ranks, as only the first group of a program is made else.
    """
    import torch
    from torch.distributed import distributed_c10d as c10d

    def backend(device: str) -> Any:
        return process_group._get_backend(torch.device(device))

    # torch enters a group's ranks only after it made it: until then the call's own argument counts.
    if process_group in c10d._world.pg_group_ranks:
        ranks = c10d.get_process_group_ranks(process_group)
    if c10d.is_initialized() and (not ranks or max(ranks) >= c10d.get_world_size()):
        return None
    devices = [device.type for device in getattr(process_group, "_device_types", ())]
    on_streams = (one for one in devices if one != "cpu" and backend(one).name() not in _IN_THREADS)
    lanes = 1
    if "cpu" in devices:
        lanes = max(1, int(getattr(getattr(backend("cpu"), "options", None), "_threads", _GLOO_THREADS)))
    return NewGroup(
        process_group, str(process_group.group_name), tuple(ranks or range(process_group.size())),
        str(getattr(process_group, "group_desc", "")), next(on_streams, "cpu"), lanes,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """One process group."""

    number: int  # in this process, in the order of creation; rows carry it
    communicator: Communicator  # its id, kind and global ranks
    lanes: int = 2  # number of collectives of CPU tensors that run at once: gloo's threads


class Groups:
    """All groups that were ever attached in this process, destroyed ones too: their rows may still be on the way."""

    def __init__(self) -> None:
        self._groups: list[Group] = []
        self._by_name: dict[str, int] = {}
        self._ordinals: Counter[tuple[int, ...]] = Counter()
        self._first = 0  # number of the first group since the last `start_over`
        self.since_ns: int | None = None  # when that group was made; None: it was not yet
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
        """Set the kind of a group.

        Raises InputError if the kind is none of `messages.records.GROUP_KINDS`, or there is no such group.
        """
        if kind not in GROUP_KINDS:
            raise InputError(f"kind must be one of {', '.join(GROUP_KINDS)}; got {kind!r}")
        with self._lock:
            if name not in self._by_name:
                raise InputError(f"group must be one that is logged; got {name!r}")
            number = self._by_name[name]
            group = self._groups[number]
            self._groups[number] = replace(group, communicator=replace(group.communicator, kind=kind))

    def start_over(self) -> None:
        """Count the groups that follow as those of a process that comes up now."""
        with self._lock:
            self._first, self.since_ns = len(self._groups), None
            self._ordinals.clear()

    @property
    def present(self) -> tuple[Group, ...]:
        """The groups that were made since the last `start_over`, by number."""
        with self._lock:
            return tuple(self._groups[self._first :])

    @property
    def all(self) -> tuple[Group, ...]:
        """All groups, by number."""
        with self._lock:
            return tuple(self._groups)


def communicator_id(ranks: tuple[int, ...], world_size: int, ordinal: int) -> str:
    """Return the id of a group: its ordered ranks, and its number among groups of the same; equal on all members.

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
