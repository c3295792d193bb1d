"""Process groups as PyTorch names them, as communicators of a job: an id that is unique, a kind, the ranks."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from zlib import crc32

from irregulars.messages.announcements import Communicator, ranks_to_runs
from irregulars.producers.publishing.group_kinds import kind_of_description

MAX_RANKS: Final = 1 << 20

_WORDS: Final = re.compile(r"[a-z]+")


class Group(NamedTuple):
    """A process group: its name in the process, what its maker called it, its global ranks in group order."""

    name: str
    description: str
    ranks: tuple[int, ...]


def kind_of(group: Group, world_size: int) -> str:
    """Tell what a group is for, from what its maker called it; one that serves several dimensions is ``unknown``.

    >>> [kind_of(Group("7", text, (0, 1)), 4) for text in ("TENSOR_MODEL_PARALLEL_GROUP", "pp0", "default_pg", "x")]
    ['tp', 'pp', 'world', 'unknown']
    """
    if "default" in _WORDS.findall(group.description.lower()):
        return "world"
    kind = kind_of_description(group.description)
    return "world" if kind == "unknown" and len(group.ranks) == world_size else kind


def communicators_of(groups: Iterable[Group], world_size: int, *, is_whole: bool = True) -> dict[Group, Communicator]:
    """Give each group an id that no other group of the job has.

    Parameters
    ----------
    is_whole
        Whether `groups` are all of the job: then a description is enough where it is not shared. Else the id is made
        of description, name and ranks, so that whoever sees another part of the job makes the same one.
    """
    distinct = sorted(set(groups))
    if not is_whole:
        return {g: Communicator(_long_id(g), kind_of(g, world_size), g.ranks) for g in distinct}
    by_text = Counter(group.description or group.name for group in distinct)
    by_both = Counter((group.description, group.name) for group in distinct)
    made: dict[Group, Communicator] = {}
    for group in distinct:
        text = group.description or group.name or "group"
        if by_text[text] > 1:
            text = f"{text}#{group.name}"
        if by_both[group.description, group.name] > 1:
            text = f"{text}[{_shown(group.ranks)}]"
        made[group] = Communicator(text, kind_of(group, world_size), group.ranks)
    return made


def _long_id(group: Group) -> str:
    ranks = crc32(",".join(map(str, group.ranks)).encode())
    return f"{group.description or 'group'}#{group.name}-{ranks:08x}"


def _shown(ranks: tuple[int, ...]) -> str:
    return " ".join(f"{first}:{past}:{step}" for first, past, step in ranks_to_runs(ranks))


def ranks_of(value: Any) -> tuple[int, ...] | None:
    """Read the ranks of a group, a list or a text such as ``"[0, 1]"``; None if they are none, or not all there."""
    if isinstance(value, str):
        if len(value) > 16 * MAX_RANKS:
            return None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= MAX_RANKS:
        return None
    is_good = all(type(rank) is int and 0 <= rank < MAX_RANKS for rank in value) and len(set(value)) == len(value)
    return tuple(value) if is_good else None
