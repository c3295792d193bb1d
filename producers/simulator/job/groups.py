"""The communicators of a simulated job.

===========  =====================================================  ==========================================
group        its ranks differ in                                    exists where
===========  =====================================================  ==========================================
``world``    everything                                             always
``tp``       tp                                                     tp > 1
``cp``       cp                                                     cp > 1
``ep``       ep                                                     ep > 1
``dp``       dp, shards, ep, cp: dense gradients                    shards = 1
``shard``    shards, ep, cp: dense gradients and parameters         shards > 1
``replica``  dp: shards of gradients between the optimizer's copies  shards > 1 and dp > 1
``edp``      dp, shards, cp: gradients of experts                   ep > 1
``pp``       pp                                                     pp > 1
``emb``      pp, first and last stage only                          tied embeddings and pp > 2
===========  =====================================================  ==========================================

Kinds are those of the contract: the four groups that carry gradients are ``dp``, ``emb`` is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from irregulars.messages.announcements import Communicator
from irregulars.producers.simulator.job.settings import SimulatorSettings

Ints = NDArray[np.int64]

AXES: Final = ("pp", "dp", "shards", "ep", "cp", "tp")
"""Order of the axes of the grid of ranks."""

VARYING: Final[Mapping[str, tuple[str, ...]]] = {
    "world": AXES, "tp": ("tp",), "cp": ("cp",), "ep": ("ep",), "dp": ("dp", "shards", "ep", "cp"),
    "shard": ("shards", "ep", "cp"), "replica": ("dp",), "edp": ("dp", "shards", "cp"), "pp": ("pp",), "emb": ("pp",),
}  # fmt: skip
"""Axes along which the ranks of a group differ, in the order in which a rank lists its communicators."""

_KINDS: Final = {"shard": "dp", "replica": "dp", "edp": "dp", "emb": "unknown"}
_LETTERS: Final = {"pp": "p", "dp": "d", "shards": "s", "ep": "e", "cp": "c", "tp": "t"}
_ALWAYS_NAMED: Final = frozenset({"pp", "dp", "tp"})


def sizes_of(settings: SimulatorSettings) -> tuple[int, ...]:
    """Shape of the grid of ranks."""
    return tuple(getattr(settings, axis) for axis in AXES)


def has_group(settings: SimulatorSettings, group: str) -> bool:
    """Say whether ranks of this job form such groups, of two ranks or more."""
    size = int(np.prod([getattr(settings, axis) for axis in VARYING[group]]))
    match group:
        case "dp":
            return size > 1 and settings.shards == 1
        case "shard" | "replica":
            return size > 1 and settings.shards > 1
        case "edp":
            return size > 1 and settings.ep > 1
        case "emb":
            return settings.has_tied_embeddings and settings.pp > 1
        case _:
            return size > 1


def along(grid: Ints, group: str) -> Ints:
    """Give the members of each group of one sort, a row for each, of an array in the shape of the grid.

    >>> along(np.arange(8).reshape(2, 1, 1, 1, 1, 4), "pp").tolist()
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    """
    moved = [axis for axis, name in enumerate(AXES) if name in VARYING[group]]
    fixed = [axis for axis in range(len(AXES)) if axis not in moved]
    width = int(np.prod([grid.shape[axis] for axis in moved]))
    rows = grid.transpose(*fixed, *moved).reshape(-1, width)
    return rows[:, [0, -1]] if group == "emb" else rows


class Groups:
    """Communicators by index, in the order of `VARYING`.

    Attributes
    ----------
    communicators
        All of them; the index in this tuple is the communicator's number in the simulator.
    numbers
        By group, per rank: the number of its communicator, -1 where it has none.
    """

    def __init__(self, settings: SimulatorSettings, grid: Ints) -> None:
        self._found: list[Communicator] = []
        self.numbers: dict[str, Ints] = {}
        for group in VARYING:
            self.numbers[group] = self._add(settings, grid, group)
        self.communicators = tuple(self._found)

    def of_rank(self, rank: int) -> list[int]:
        """Numbers of the communicators that a rank is in; the order is that of its batches' `names`."""
        return [int(numbers[rank]) for numbers in self.numbers.values() if numbers[rank] >= 0]

    def local_codes(self) -> dict[str, Ints]:
        """By group, per rank: the place of its communicator in what `of_rank` returns."""
        exists = np.stack(list(self.numbers.values())) >= 0
        return dict(zip(self.numbers, np.cumsum(exists, axis=0) - 1, strict=True))

    def _add(self, settings: SimulatorSettings, grid: Ints, group: str) -> Ints:
        numbers = np.full(grid.size, -1)
        if not has_group(settings, group):
            return numbers
        members = np.sort(along(grid, group), axis=1)
        first = len(self._found)
        numbers[members] = first + np.arange(len(members))[:, None]
        self._found += [
            Communicator(name, _KINDS.get(group, group), tuple(ranks))
            for name, ranks in zip(_names(settings, group), members.tolist(), strict=True)
        ]
        return numbers


def _names(settings: SimulatorSettings, group: str) -> list[str]:
    """Name each group by the coordinates that its ranks share; those of dimensions that are not used are left out."""
    fixed = [axis for axis in AXES if axis not in VARYING[group]]
    places = product(*(range(getattr(settings, axis)) for axis in fixed))
    shown = [axis in _ALWAYS_NAMED or getattr(settings, axis) > 1 for axis in fixed]
    return [
        "_".join([group, *(f"{_LETTERS[axis]}{x}" for axis, x, is_shown in zip(fixed, place, shown, strict=True)
                           if is_shown)])
        for place in places
    ]  # fmt: skip
