"""Rows of one rank: many at once are those that come one by one."""

from __future__ import annotations

import numpy as np
import pytest

from irregulars.messages.records import UNKNOWN
from irregulars.producers.importers import imported
from irregulars.producers.importers.imported import RankRows

ROWS = [  # communicator, operator, sequence, peer, start, elapsed, size, iteration
    (1, 3, 0, UNKNOWN, 5, 7.0, 8.0, 0),
    (0, 3, UNKNOWN, UNKNOWN, 5, 7.0, 8.0, 0),
    (1, 3, 1 << 32, UNKNOWN, 5, 7.0, 8.0, 0),
    (0, 9, 2, 7, UNKNOWN, np.nan, np.nan, UNKNOWN),
    (2, 9, 3, -2, 5, 7.0, 8.0, 0),
    (2, 9, 4, 7, -5, 7.0, 8.0, 0),
    (2, 9, 5, 7, 5, -7.0, 8.0, 0),
    (2, 9, 6, 7, (1 << 63) - 1, 7.0, 8.0, 0),
    (0, 2, 7, 7, 5, 7.0, -8.0, 3),
    (0, 2, 8, 7, 5, np.inf, 8.0, 3),
    (0, 2, 9, 7, 5, 7.0, np.inf, 3),
]
NAMES = ["tp", "dp", "never used"]
COLUMNS = ("communicator", "operator", "sequence", "peer", "start_ns", "elapsed_ns", "size_bytes", "iteration")
FLOATS = ("elapsed_ns", "size_bytes")


def columns() -> dict[str, np.ndarray]:
    by_name = dict(zip(COLUMNS, zip(*ROWS, strict=True), strict=True))
    return {name: np.array(one, np.float64 if name in FLOATS else np.int64) for name, one in by_name.items()}


def told(rows: RankRows) -> list[tuple[str, str]]:
    names = tuple(rows._names)
    return sorted((names[one["communicator"]], str(one.tolist()[1:]))
                  for one in np.frombuffer(bytes(rows._rows), imported._COLUMNS))  # fmt: skip


def test_columns_are_kept_and_left_out_as_single_rows_are() -> None:
    single, many = RankRows(), RankRows()
    for communicator, *values in ROWS:
        single.add(NAMES[communicator], *values)
    many.add_columns(NAMES, columns())
    assert told(many) == told(single)
    assert many.unusable == single.unusable == 7
    assert "never used" not in many._names


def test_more_columns_than_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imported, "MOST_ROWS", 3)
    with pytest.raises(imported.InputError, match="must be at most 3"):
        RankRows().add_columns(NAMES, columns())
