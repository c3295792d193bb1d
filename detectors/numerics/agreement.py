"""Values that must be equal: who differs from the majority of those that should have the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from irregulars.dtypes import Column, Flags, Ints


class Agreement(NamedTuple):
    """Of each value: how it compares with those of its set. At most one of the first two is true."""

    is_odd: Flags  # it differs from the strict majority of its set
    is_split: Flags  # its set has no strict majority: who is wrong, these values alone do not show
    is_compared: Flags  # its set has more than one value


def compare(sets: Ints, values: Column) -> Agreement:
    """Compare the values within each set; all are known.

    `sets`: the set of each value. `values`: of any type; NaN equals NaN.

    >>> found = compare(np.array([0, 0, 0, 1, 1, 2]), np.array([7, 7, 8, 1, 2, 5]))
    >>> found.is_odd.tolist(), found.is_split.tolist()
    ([False, False, True, False, False, False], [False, False, False, True, True, False])
    """
    if not len(sets):
        nothing: Flags = np.zeros(0, dtype=np.bool_)
        return Agreement(nothing, nothing, nothing)
    _, of_set = np.unique(sets, return_inverse=True)
    _, of_value = np.unique(values, return_inverse=True)
    # One number for each pair of a set and a value.
    _, of_pair, counts = np.unique(
        of_set * (int(of_value.max()) + 1) + of_value, return_inverse=True, return_counts=True
    )
    size = np.bincount(of_set)[of_set]
    is_majority = 2 * counts[of_pair] > size
    has_majority = np.bincount(of_set, weights=is_majority)[of_set] > 0
    is_compared: Flags = size > 1
    return Agreement(is_compared & has_majority & ~is_majority, is_compared & ~has_majority, is_compared)


def refine(codes: Ints, values: Column) -> Ints:
    """Split sets of equals by another value, which is known of all.

    `codes`: the set of each rank so far. Returns the sets, numbered anew.

    >>> refine(np.array([0, 0, 0]), np.array([1.5, 1.5, 2.0])).tolist()
    [0, 0, 1]
    """
    _, of_value = np.unique(values, return_inverse=True)
    _, refined = np.unique(codes * (int(of_value.max(initial=0)) + 1) + of_value, return_inverse=True)
    return refined.astype(np.int64)


class Vote(NamedTuple):
    """The result of one iteration's audits."""

    suspects: Ints  # ranks of which one computes wrong, ascending; empty: all agree, or nobody can be named
    unsteady: Ints  # ranks that computed the same micro-batch twice, and not alike, ascending
    voters: int  # ranks whose results were compared
    apart: int  # micro-batches on which not all agreed
    has_majority: bool  # whether most ranks agreed on some micro-batch


def count_votes(rank: Ints, of_rank: Ints, checksum: Ints) -> Vote:
    """Name who computed other gradients than the majority for the same micro-batches.

    `rank`: who computed. `of_rank`: whose micro-batch. `checksum`: of the gradients. Ranks that differ from a
    majority are suspects. Where there is none, those are that agree with nobody, and of them those that differ most
    often: in a ring of neighbours that check each other, the one in two pairs that differ.

    >>> count_votes(np.arange(4), np.zeros(4, int), np.array([9, 9, 5, 9])).suspects.tolist()
    [2]
    >>> ring = np.array([0, 1, 1, 2, 2, 0]), np.array([0, 0, 1, 1, 2, 2]), np.array([5, 7, 8, 6, 3, 3])
    >>> count_votes(*ring).suspects.tolist()
    [1]
    >>> count_votes(np.array([3, 3]), np.array([3, 3]), np.array([7, 8])).unsteady.tolist()
    [3]
    """
    rank, of_rank, checksum = np.unique(np.stack([rank, of_rank, checksum]), axis=1)  # a row may come twice
    # Rows are sorted and differ: neighbours of one rank and one micro-batch have two checksums.
    unsteady = np.unique(rank[1:][(rank[1:] == rank[:-1]) & (of_rank[1:] == of_rank[:-1])])
    found = compare(of_rank, checksum)
    is_bad = found.is_odd | found.is_split
    voters, apart = len(np.unique(rank[found.is_compared])), len(np.unique(of_rank[is_bad]))
    if found.is_odd.any():
        accused = rank[found.is_odd]
    else:
        accused = rank[found.is_split & ~np.isin(rank, rank[found.is_compared & ~is_bad])]
    suspects, counts = np.unique(accused, return_counts=True)
    has_majority = bool((found.is_compared & ~found.is_split).any())
    return Vote(suspects[counts == counts.max(initial=0)], unsteady, voters, apart, has_majority)
