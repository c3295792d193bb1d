from __future__ import annotations

import pytest

from irregulars.producers.trace.directory import read_trace
from tests.conftest import RECORDINGS
from tests.infra.checking.recordings import recorded, simulated
from tests.producers.trace_directories import assert_same

NAMES = sorted(path.name for path in RECORDINGS.iterdir() if (path / "job.json").exists())


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_read_back_as_it_was_read_from_files(name: str) -> None:
    assert_same(recorded(name).to_trace(), read_trace(RECORDINGS / name))


def test_no_row_is_rejected_on_the_way_back() -> None:
    trace = simulated("three").to_trace()
    assert (trace.rejected.count, trace.copies) == (0, 0)


def test_columns_hold_the_rows_of_all_ranks() -> None:
    recording = recorded("gloo-slow-nic")
    assert recording.logged.tolist() == [0, 1, 2, 3]
    assert {schema: len(table["rank"]) for schema, table in recording.tables.items()} == {
        "commops": 1948, "bandwidth": 2237, "iterations": 640,
    }  # fmt: skip
    assert recording.devices == ("eth0",)
