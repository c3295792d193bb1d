"""Rows that no honest producer sends."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.streams.messages.records import (
    FASTEST_BYTES_PER_S,
    LAST_ITERATION,
    LATEST_NS,
    LONGEST_NS,
    RECV,
    SEND,
    UNKNOWN,
)
from irregulars.streams.messages.usable_rows import MAX_PEER, usable_iterations, usable_operators, usable_samples

GOOD = {"start_ns": 5, "elapsed_ns": 7.0, "peer": UNKNOWN, "operator": 0, "iteration": 3}


def is_usable(**changes: float) -> bool:
    values = [GOOD, GOOD | changes]
    columns = {
        name: np.array([row[name] for row in values], dtype=np.float64 if name == "elapsed_ns" else np.int64)
        for name in GOOD
    }
    columns["operator"] = columns["operator"].astype(np.uint8)
    mask = usable_operators(columns)
    assert mask is None or mask[0]
    return mask is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"start_ns": UNKNOWN},
        {"elapsed_ns": np.nan},
        {"elapsed_ns": 0.0},
        {"iteration": UNKNOWN},
        {"iteration": -1},
        {"iteration": LAST_ITERATION},
        {"iteration": -LAST_ITERATION},
        {"start_ns": 0},
        {"start_ns": LATEST_NS},
        {"elapsed_ns": float(LONGEST_NS)},
        {"operator": SEND, "peer": 0},
        {"operator": RECV, "peer": MAX_PEER - 1},
        {"peer": 4},
    ],
)
def test_rows_that_can_be_used(changes: dict[str, float]) -> None:
    assert is_usable(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"start_ns": -1},
        {"start_ns": UNKNOWN + 1},
        {"start_ns": LATEST_NS + 1},
        {"elapsed_ns": -1.0},
        {"elapsed_ns": 1e19},
        {"iteration": LAST_ITERATION + 1},
        {"iteration": UNKNOWN + 1},
        {"peer": -1},
        {"peer": MAX_PEER},
        {"operator": SEND},
        {"operator": RECV, "peer": -5},
    ],
)
def test_rows_that_can_not(changes: dict[str, float]) -> None:
    assert not is_usable(**changes)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((0, 0, 0.0), True),
        ((-5, 1, 1.0), True),
        ((0, -1, 1.0), False),
        ((0, 1, -1.0), False),
        ((UNKNOWN, 1, 1.0), False),
        ((0, 1, float("nan")), False),
        ((0, 2**63 - 1, 1.0), False),
        ((2**63 - 1, 1, 1.0), False),
    ],
)
def test_rows_of_iterations(row: tuple[int, int, float], expected: bool) -> None:
    values = {"iteration": np.int64, "start_ns": np.int64, "elapsed_ns": np.float64}
    own = zip(values.items(), row, (1, 2, 3.0), strict=True)
    mask = usable_iterations({name: np.array([value, good], dtype) for (name, dtype), value, good in own})
    assert mask is None if expected else mask is not None and mask.tolist() == [False, True]


SAMPLE = {"time_ns": 5, "tx_bytes_per_s": 1e9, "rx_bytes_per_s": 0.0}


def sample_is_usable(**changes: float) -> bool:
    values = [SAMPLE, SAMPLE | changes]
    columns = {name: np.array([row[name] for row in values], dtype=np.float64) for name in SAMPLE}
    columns["time_ns"] = np.array([row["time_ns"] for row in values], dtype=np.int64)
    mask = usable_samples(columns)
    assert mask is None or mask[0]
    return mask is None


@pytest.mark.parametrize("changes", [{}, {"tx_bytes_per_s": np.nan}, {"rx_bytes_per_s": FASTEST_BYTES_PER_S}])
def test_samples_that_can_be_used(changes: dict[str, float]) -> None:
    assert sample_is_usable(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"time_ns": -1},
        {"time_ns": UNKNOWN},
        {"time_ns": LATEST_NS + 1},
        {"tx_bytes_per_s": -1.0},
        {"rx_bytes_per_s": 1e300},
        {"tx_bytes_per_s": np.inf},
    ],
)
def test_samples_that_no_honest_producer_takes(changes: dict[str, float]) -> None:
    assert not sample_is_usable(**changes)
