"""Names of the arrays that the modules hand to one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Flags = NDArray[np.bool_]

Item = TypeVar("Item")


def choose(rng: np.random.Generator, items: Sequence[Item]) -> Item:
    """Any of the items, all alike in probability."""
    return items[int(rng.integers(len(items)))]


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A number between low and high whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def autoregressive(rng: np.random.Generator, n: int, rho: float, sigma: float) -> Floats:
    """Slowly changing noise around 0."""
    x = np.empty(n)
    x[0] = rng.normal(0, sigma)
    for i in range(1, n):
        x[i] = rho * x[i - 1] + rng.normal(0, sigma * np.sqrt(1 - rho * rho))
    return x
