"""Who is in which communicator: global ranks from what each log says of itself and of the splits that it made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from irregulars.errors import InputError
from irregulars.producers.foreign_files.groups import Group
from irregulars.producers.importers.clog.lines import LogParser, Membership, Split

UNTOLD: Final = "calls on communicators whose members nothing tells"
SHARED_NAME: Final = "calls on communicators that share a name with others of the same rank"


class Ranks(NamedTuple):
    """Global rank of each log, by its name; `root` is the communicator that told them, None if file names did."""

    of: Mapping[str, int]
    world_size: int
    root: str | None


def ranks_of_logs(logs: Mapping[str, LogParser], named: Mapping[str, int | None]) -> Ranks:
    """Tell the global ranks: those in the largest communicator that all logs say they are in.

    Parameters
    ----------
    logs
        By a name for people.
    named
        The rank that each file's name tells.

    Raises
    ------
    InputError
        If two logs are of one rank, or neither a communicator nor the names of the files tell all ranks.
    """
    for (text, size), found in sorted(_joined(logs).items(), key=lambda one: -one[0][1]):
        if len(found) == len(logs):
            return Ranks(_distinct(found, f"of {text}"), size, text)
    if None in named.values() or len(named) < len(logs):
        raise InputError("logs must all have a new_comm line of one communicator, or names that end with their rank; "
                         "got neither: register the hook with the world's communicator")  # fmt: skip
    ranks = _distinct({name: rank for name, rank in named.items() if rank is not None}, "by the files' names")
    return Ranks(ranks, 1 + max(ranks.values()), None)


def _joined(logs: Mapping[str, LogParser]) -> dict[tuple[str, int], dict[str, int]]:
    """Ranks inside of each communicator of a name and a size, by log."""
    found: dict[tuple[str, int], dict[str, int]] = {}
    for name, log in logs.items():
        for member in log.members:
            found.setdefault((member.communicator, member.size), {})[name] = member.comm_rank
    return found


def _distinct(ranks: dict[str, int], where: str) -> dict[str, int]:
    seen: dict[int, str] = {}
    for name, rank in ranks.items():
        if rank in seen:
            raise InputError(
                f"logs must be of different ranks; got two of rank {rank} {where}: {seen[rank]} and {name}"
            )
        seen[rank] = name
    return ranks


def whole_communicators(logs: Mapping[str, LogParser], ranks: Ranks) -> dict[tuple[str, int], tuple[int, ...]]:
    """Global ranks of communicators that were made apart, by name and size; only those of which all logs are here."""
    whole = {}
    for (text, size), found in _joined(logs).items():
        in_order = sorted((comm_rank, ranks.of[name]) for name, comm_rank in found.items())
        if [comm_rank for comm_rank, _ in in_order] == list(range(size)):
            whole[text, size] = tuple(rank for _, rank in in_order)
    return whole


def groups_of_log(
    members: Sequence[Membership],
    splits: Iterable[Split],
    rank: int,
    world_size: int,
    whole: Mapping[tuple[str, int], tuple[int, ...]],
) -> dict[str, Group | None]:
    """Communicators of one rank by the names that its log gives them; None where one name means several.

    The calls of a part are logged under its name, on gloo and NCCL with the part's smallest rank behind it; the ranks
    of a split line are those inside of the parent.

    Examples
    --------
    >>> world = Membership("world", 2, 4)
    >>> groups_of_log([world], [Split("world", "tp", (2, 3))], 2, 4, {})["tp_2"]
    Group(name='2', description='tp', ranks=(2, 3))
    """
    groups: dict[str, Group | None] = {}
    for member in members:
        own = tuple(range(world_size)) if member.size == world_size and member.comm_rank == rank else None
        inside = own or whole.get((member.communicator, member.size))
        if inside is not None:
            _name(groups, member.communicator, Group(str(inside[0]), member.communicator, inside))
    for split in splits:
        parent = groups.get(split.parent)
        if parent is None or max(split.ranks) >= len(parent.ranks) or len(set(split.ranks)) < len(split.ranks):
            continue
        inside = tuple(parent.ranks[at] for at in split.ranks)
        if rank in inside:
            group = Group(str(inside[0]), split.child, inside)
            for name in (split.child, f"{split.child}_{min(split.ranks)}"):
                _name(groups, name, group)
    return groups


def _name(groups: dict[str, Group | None], name: str, group: Group) -> None:
    known = groups.get(name, group)
    groups[name] = group if known is not None and known.ranks == group.ranks else None
