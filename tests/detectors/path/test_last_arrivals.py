"""Who arrived last, from durations alone."""

from __future__ import annotations

import numpy as np

from irregulars.detectors.path.last_arrivals import Arrivals, find_arrivals
from irregulars.messages.records import OPERATOR_CODES, SEND, UNKNOWN

ALL_REDUCE, BROADCAST = OPERATOR_CODES["all_reduce"], OPERATOR_CODES["broadcast"]


def arrivals(*rows: tuple[int, int, int, float], operator: int = ALL_REDUCE, is_timed: bool = True) -> Arrivals:
    """Find arrivals in rows of rank, communicator, sequence and elapsed; all end at 1,000 + their sequence."""
    rank, communicator, sequence = (np.array([row[at] for row in rows], np.int64) for at in range(3))
    elapsed_ns = np.array([row[3] for row in rows])
    known = np.nan_to_num(elapsed_ns).astype(np.int64)
    start_ns = 1_000 + sequence - known if is_timed else np.full(len(rows), UNKNOWN)
    return find_arrivals(
        {
            "rank": rank,
            "communicator": communicator,
            "sequence": sequence,
            "operator": np.full(len(rows), operator),
            "elapsed_ns": elapsed_ns,
            "start_ns": start_ns,
            "iteration": np.full(len(rows), UNKNOWN),
        }
    )


def test_last_arrivals() -> None:
    # The shortest share is the last arriver
    found = arrivals((0, 0, 5, 90.0), (1, 0, 5, 20.0), (2, 0, 5, 70.0), (0, 1, 5, 3.0), (2, 1, 5, 4.0))
    assert found.last_rank.tolist() == [1, 0]
    assert found.waited_ns.tolist() == [70.0, 1.0]
    assert found.shares.tolist() == [3, 2]
    assert found.ends_apart_ns.tolist() == [0.0, 0.0]
    # Without starts only the ends are not known
    found = arrivals((0, 0, 5, 90.0), (1, 0, 5, 20.0), is_timed=False)
    assert found.last_rank.tolist() == [1]
    assert np.isnan(found.ends_apart_ns).tolist() == [True]
    # A single share and what never ended tell nothing
    assert len(arrivals((0, 0, 5, 90.0), (0, 0, 6, 9.0), (1, 0, 6, np.nan)).shares) == 0
    assert len(arrivals().shares) == 0
    # Where not everybody waits nobody is last
    for operator in (BROADCAST, SEND):
        assert len(arrivals((0, 0, 5, 90.0), (1, 0, 5, 20.0), operator=operator).shares) == 0
