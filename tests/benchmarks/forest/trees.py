"""Holmes's random forest of abnormal operators as plain arrays, one model for all jobs: a mark to measure against.

The product judges operators by its replay, which is better (`bench_operators`) and needs no training.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from irregulars.dtypes import Column, Floats
from irregulars.errors import PluginError

MODEL: Final = Path(__file__).with_name("operators-v1.npz")
"""The forest that is measured, trained on simulated jobs by `training.py`."""

VERSION: Final = 1
_LEAF: Final = -1  # feature of a node that is a leaf


@dataclass(frozen=True, slots=True)
class Trees:
    """Binary trees; the nodes of all trees stand one after the other."""

    names: tuple[str, ...]  # features, in the order of the columns that the trees were trained on
    roots: NDArray[np.int32]  # index of each tree's first node
    feature: NDArray[np.int8]  # per node: the feature that it asks for, -1 in a leaf
    # Per node: values up to it go left. float32, and compared with float32, as scikit-learn does.
    threshold: NDArray[np.float32]
    # Per node: indices of its children; of a leaf its own
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    probability: NDArray[np.float32]  # per node: part of the abnormal among the training rows that came here
    depth: int  # most questions from a root to a leaf

    def predict(self, matrix: Floats | NDArray[np.float32]) -> Column:
        """Return the probability that each row of `matrix` is abnormal: the mean of the trees.

        All rows go down all trees together, one level per step: `depth` steps, whatever the number of rows.
        """
        values = matrix.astype(np.float32)
        at = np.repeat(self.roots[:, None], len(values), axis=1)  # trees x rows
        row = np.arange(len(values))
        for _ in range(self.depth):
            feature = self.feature[at]
            # Of a leaf (-1) any column does: its answer is not used.
            is_left = values[row, np.maximum(feature, 0)] <= self.threshold[at]
            at = np.where(feature == _LEAF, at, np.where(is_left, self.left[at], self.right[at]))
        return np.asarray(self.probability[at].mean(axis=0))


def save_trees(trees: Trees, file: Path | BinaryIO) -> None:
    """Write trees as a compressed ``.npz``."""
    arrays: dict[str, Any] = {field.name: np.asarray(getattr(trees, field.name)) for field in fields(trees)}
    np.savez_compressed(file, version=np.asarray(VERSION), **arrays)


@lru_cache(maxsize=8)
def load_trees(path: Path, names: tuple[str, ...]) -> Trees:
    """Read trees; those of one file are read once.

    Raises
    ------
    PluginError
        If the file can't be read, is of another version, or was trained on other features.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise PluginError(f"forest must be a readable .npz file; got {error} ({path})") from error
    if int(arrays.get("version", -1)) != VERSION:
        found = arrays.get("version")
        raise PluginError(f"forest must be of version {VERSION}; got {found!r} ({path}): train it anew")
    trained_on = tuple(str(name) for name in arrays["names"])
    if trained_on != names:
        other = sorted(set(trained_on) ^ set(names)) or "another order"
        raise PluginError(f"forest must be trained on today's features; got {other} ({path}): train it anew")
    nodes = {name: arrays[name] for name in ("roots", "feature", "threshold", "left", "right", "probability")}
    return Trees(names=trained_on, depth=int(arrays["depth"]), **nodes)
