"""The switches above the leafs: which of them joins which ranks, and so which lanes it carries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from irregulars.grouping import grouped
from irregulars.messages.announcements import above


@dataclass(frozen=True, slots=True)
class Spine:
    """Switches that join the same leafs: nothing that a job sees tells them apart."""

    names: tuple[str, ...]
    ranks: tuple[int, ...]  # all that are plugged in below them
    branch_of: Mapping[int, int]  # by rank, a number for the part below them that joins it without them
    is_top: bool  # whether no switch is known above them

    def carries(self, ranks: Collection[int]) -> bool:
        """Whether traffic between these ranks passes one of the switches, between branches or on its way up."""
        branches = {self.branch_of[rank] for rank in ranks if rank in self.branch_of}
        if len(branches) > 1 or not branches or self.is_top:
            return len(branches) > 1
        # All that are below are in one branch: then it is passed only on the way to ranks elsewhere.
        return any(rank not in self.branch_of for rank in ranks)


def spines_of(leaf_of: Mapping[int, str], fabric: Mapping[str, tuple[str, ...]]) -> tuple[Spine, ...]:
    """Return the switches that join two leafs or more.

    `leaf_of`: the switch that each rank's NIC is plugged into. `fabric`: the switches above each switch.

    >>> one, = spines_of({0: "a", 1: "a", 2: "b"}, {"a": ("s", "t"), "b": ("s", "t")})
    >>> one.names, one.carries((0, 2)), one.carries((0, 1))
    (('s', 't'), True, False)
    """
    below: dict[str, set[str]] = {leaf: {leaf} for leaf in leaf_of.values()}
    for leaf in sorted(below):
        for switch in {one for ones in (above(leaf, fabric) or {}).values() for one in ones}:
            below.setdefault(switch, set()).add(leaf)
    same = grouped((frozenset(lower), switch) for switch, lower in below.items() if len(lower) > 1)
    found = []
    for leafs, names in sorted(same.items(), key=lambda one: (len(one[0]), sorted(one[1]))):
        parts = [below[one] for one, uppers in fabric.items() if one in below and not set(names).isdisjoint(uppers)]
        branch_of_leaf = _joined(leafs, [part for part in parts if part != leafs])
        branch_of = {rank: branch_of_leaf[leaf] for rank, leaf in sorted(leaf_of.items()) if leaf in leafs}
        is_top = not any(set(fabric.get(name, ())) - set(names) for name in names)
        found.append(Spine(tuple(sorted(names)), tuple(branch_of), branch_of, is_top))
    return tuple(found)


def _joined(leafs: Iterable[str], parts: Iterable[set[str]]) -> dict[str, int]:
    """Return a number for each leaf: equal for those that some part joins.

    >>> _joined("abc", [{"a"}, {"b", "c"}])
    {'a': 0, 'b': 1, 'c': 1}
    """
    found: Final = {leaf: number for number, leaf in enumerate(sorted(leafs))}
    for part in parts:
        numbers = {found[leaf] for leaf in part}
        found.update((leaf, min(numbers)) for leaf, number in list(found.items()) if number in numbers)
    return found
