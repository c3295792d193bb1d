"""Tables in which each row owns any number of entries, as evidence of an iteration has of classes of operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from irregulars.dtypes import Column, Ints


@dataclass(frozen=True, slots=True)
class Ragged:
    """Entries of many rows as columns: those of the first row, then those of the second, and so on.

    Raises `ValueError` if a column is longer or shorter than that.

    Examples
    --------
    Three rows own the offsets 10 and 11, none, and 30:

    >>> rows = Ragged(np.array([2, 0, 1]), {"offset": np.array([10, 11, 30])})
    >>> list(rows.lists("offset"))
    [[10, 11], [], [30]]
    >>> list(rows.take(np.array([2, 0])).lists("offset"))
    [[30], [10, 11]]
    >>> rows.of_entries(np.array([7, 8, 9]))
    array([7, 7, 9])
    """

    counts: Ints  # how many entries each row owns, int64
    columns: Mapping[str, Column]  # the entries' columns, all as long as `counts` in sum

    def __post_init__(self) -> None:
        entries = int(self.counts.sum())
        for name, column in self.columns.items():
            if len(column) != entries:
                raise ValueError(f"column {name!r} must have {entries} entries, as the counts say; got {len(column)}")

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    @property
    def has_entries(self) -> bool:
        """Whether any row owns an entry."""
        return bool(self.counts.any())

    @property
    def splits(self) -> Ints:
        """Where the entries of each row begin, and at the end where those of the last row end."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    def of_entries(self, values: Column) -> Column:
        """Repeat the value of each row for each of its entries."""
        return np.repeat(values, self.counts)

    def lists(self, name: str) -> Iterator[list[int]]:
        """Yield the entries of each row in one column."""
        entries, splits = self.columns[name].tolist(), self.splits.tolist()
        for begin, end in pairwise(splits):
            yield entries[begin:end]

    def take(self, rows: Ints) -> Ragged:
        """Return some rows with their entries, in the order in which they are asked for."""
        counts = self.counts[rows]
        # Entries of the n-th row asked for begin at `moved[n]` in the result, and here at `splits[rows[n]]`.
        moved = np.cumsum(counts) - counts
        at = np.arange(int(counts.sum())) + np.repeat(self.splits[rows] - moved, counts)
        return Ragged(counts, {name: column[at] for name, column in self.columns.items()})

    def replaced(self, name: str, column: Column) -> Ragged:
        """Return the same with another column in place of one."""
        return Ragged(self.counts, {**self.columns, name: column})


def concatenate_ragged(parts: Sequence[Ragged]) -> Ragged:
    """Join the rows of some tables with the same columns, in order.

    >>> first, second = (Ragged(np.array([n]), {"peer": np.arange(n)}) for n in (1, 2))
    >>> list(concatenate_ragged([first, second]).lists("peer"))
    [[0], [0, 1]]
    """
    return Ragged(
        np.concatenate([part.counts for part in parts]),
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0].columns},
    )
