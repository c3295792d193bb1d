"""Where ranks live, and the orders that this gives the heat map's rows: what several ranks share becomes a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.dtypes import Ints

ORDERS: Final = {
    "rank": "rank",
    "host": "host",
    "switch": "switch",
    "stage": "pipeline stage",
    "tp": "tensor parallel group",
    "dp": "data parallel group",
    "strange": "strangeness",
}
"""In which order rows may stand."""

UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Names:
    """A text for each rank, most of which repeat: ``names[codes]``; code `UNKNOWN`: not announced."""

    names: Sequence[str]
    codes: Ints


@dataclass(frozen=True, slots=True)
class Places:
    """The ranks of one start of a job that log, ascending, with their announced places."""

    ranks: Ints  # global ranks, ascending
    gpu: Ints  # GPU index on its host; `UNKNOWN`: not announced
    # host, nic, switch: As announced
    host: Names
    nic: Names
    switch: Names
    groups: dict[str, Names]  # by kind (``pp``, ``tp``, ``dp``): the communicator of each rank

    def rows_of(self, ranks: Sequence[int]) -> Ints:
        """Return where `ranks` stand in `ranks`; those that don't log are left out."""
        wanted = np.unique(np.asarray(ranks, dtype=np.int64))
        return np.flatnonzero(np.isin(self.ranks, wanted))


@dataclass(frozen=True, slots=True)
class Order:
    """The heat map's rows."""

    rows: Ints  # which row of `Places` stands at each place from the top
    borders: Sequence[int] = ()  # place of each group's first row, ascending; empty: there are no groups
    labels: Sequence[str] = ()  # name of each group


def stages_of(places: Places) -> Ints:
    """Return each rank's pipeline stage: its place in its pp communicator; `UNKNOWN` where it has none.

    >>> pp = Names(["a", "b"], np.array([0, 1, 0, 1]))
    >>> none = Names([], np.full(4, UNKNOWN))
    >>> stages_of(Places(np.arange(4), np.zeros(4, int), none, none, none, {"pp": pp})).tolist()
    [0, 0, 1, 1]
    """
    group = places.groups["pp"].codes if "pp" in places.groups else np.full(len(places.ranks), UNKNOWN)
    stages = np.full(len(group), UNKNOWN, dtype=np.int64)
    by_group = np.argsort(group, kind="stable")
    ordered = group[by_group]
    starts = np.searchsorted(ordered, ordered)  # where each one's group begins
    stages[by_group] = np.arange(len(group)) - starts
    return np.where(group == UNKNOWN, UNKNOWN, stages)


def peers_of(places: Places) -> Ints:
    """Return a number for each rank: ranks of equal numbers do the same work. Pipeline stages, else all ranks."""
    stages = stages_of(places)
    return stages + 1 if (stages != UNKNOWN).any() else np.zeros(len(stages), dtype=np.int64)


def orders_of(places: Places) -> list[str]:
    """Return the names of the orders that this job knows enough for."""
    known = {
        "host": places.host.codes, "switch": places.switch.codes, "stage": stages_of(places),
        **{kind: names.codes for kind, names in places.groups.items()},
    }  # fmt: skip
    return [name for name in ORDERS if name in ("rank", "strange") or (known.get(name, _NONE) != UNKNOWN).any()]


_NONE: Final = np.array([UNKNOWN])


def order_of(places: Places, name: str, strangeness: Ints | None = None) -> Order:
    """Return the rows in one of `ORDERS`.

    Parameters
    ----------
    strangeness
        A number for each rank, the highest first; needed for ``strange``.
    """
    if name == "strange" and strangeness is not None:
        return Order(np.argsort(-strangeness, kind="stable"))
    if name == "stage":
        stages = stages_of(places)
        return _grouped(stages, [f"stage {stage}" for stage in range(int(stages.max(initial=UNKNOWN)) + 1)])
    if name in ("host", "switch"):
        names = places.host if name == "host" else places.switch
        return _grouped(*_by_name(names))
    if name in places.groups:
        return _grouped(places.groups[name].codes, places.groups[name].names)
    return Order(np.arange(len(places.ranks)))


def _by_name(names: Names) -> tuple[Ints, Sequence[str]]:
    """Number names as people sort them: node-2 before node-10."""
    order = sorted(range(len(names.names)), key=lambda at: natural_key(names.names[at]))
    number = np.empty(len(order) + 1, dtype=np.int64)
    number[order] = np.arange(len(order))
    number[UNKNOWN] = UNKNOWN
    return number[names.codes], [names.names[at] for at in order]


def natural_key(text: str) -> tuple[tuple[int, str], ...]:
    """Return a key by which numbers in texts sort as numbers.

    >>> sorted(["node-10", "node-2"], key=natural_key)
    ['node-2', 'node-10']
    """
    parts: list[str] = []
    for sign in text:
        is_digit = sign in "0123456789"
        if parts and (parts[-1][-1] in "0123456789") == is_digit:
            parts[-1] += sign
        else:
            parts.append(sign)
    return tuple((int(part), "") if part[0] in "0123456789" else (-1, part) for part in parts)


def _grouped(codes: Ints, names: Sequence[str]) -> Order:
    """Sort by group, those without one last, in a group by rank."""
    last = len(names)
    keys = np.where(codes == UNKNOWN, last, codes)
    rows = np.argsort(keys, kind="stable")
    ordered = keys[rows]
    borders = np.flatnonzero(np.diff(ordered, prepend=-1))
    labels = [names[key] if key < last else "not announced" for key in ordered[borders].tolist()]
    return Order(rows, borders.tolist(), labels)
