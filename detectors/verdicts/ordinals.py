"""Numbers that tell verdicts apart which begin with the same iteration."""

from __future__ import annotations

from typing import Final, TypeVar

K = TypeVar("K")

MOST_KEPT: Final = 1000
"""Beginnings whose verdicts are counted, the newest: each opens within some tens of iterations of its beginning."""


def next_ordinal(ordinals: dict[K, int], beginning: K) -> int:
    """Return how many verdicts with this beginning there were, and count one more.

    >>> ordinals = {}
    >>> next_ordinal(ordinals, 7), next_ordinal(ordinals, 7), next_ordinal(ordinals, 8)
    (0, 1, 0)
    """
    ordinal = ordinals.pop(beginning, 0)
    ordinals[beginning] = ordinal + 1  # the newest stands last
    if len(ordinals) > MOST_KEPT:
        del ordinals[next(iter(ordinals))]
    return ordinal
