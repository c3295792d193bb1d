"""Pauses of a trace directory: a file of their own, and rows of their iterations on the bus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from irregulars.messages.records import PAUSES, UNKNOWN, Batch
from irregulars.producers.trace.directory import read_trace, write_trace
from tests.producers.trace_directories import START_NS, commop, write_directory

MS = 1_000_000


def iteration(rank: int, number: int) -> dict[str, Any]:
    return {"rank": rank, "iteration": number, "start_ns": START_NS + number * 100 * MS, "elapsed_ns": 90 * MS}


def pause(rank: int, at_ms: float, number: int | None = None, **changes: Any) -> dict[str, Any]:
    start_ns = START_NS + round(at_ms * MS)
    return {
        "rank": rank, "cause": "data_loader", "start_ns": start_ns, "elapsed_ns": 5 * MS, "iteration": number,
        "detail": "shard-7", **changes,
    }  # fmt: skip


def directory(path: Path, pauses: list[dict[str, Any]]) -> Path:
    rows = [iteration(rank, number) for rank in range(2) for number in range(3)]
    return write_directory(path, [commop(), commop(rank=1)], ending=".jsonl", iterations=rows, pauses=pauses)


def pauses_of(batch: Batch) -> list[tuple[int, str, int]]:
    own = batch.columns
    rows = zip(*(own[name].tolist() for name in ("iteration", "pause_cause", "pause_start_ns")), strict=True)
    return [(number, PAUSES[cause], start_ns - START_NS) for number, cause, start_ns in rows if cause != UNKNOWN]


def test_a_pause_belongs_to_the_iteration_that_it_names_else_to_the_newest_that_had_begun(tmp_path: Path) -> None:
    given = [pause(0, 250, 1), pause(0, 100), pause(0, 199), pause(1, 305, cause="garbage_collection")]
    trace = read_trace(directory(tmp_path, given))
    assert trace.rejected.count == 0
    assert sorted(pauses_of(trace.iterations[0])) == [
        (1, "data_loader", 100 * MS), (1, "data_loader", 199 * MS), (1, "data_loader", 250 * MS),
    ]  # fmt: skip
    assert pauses_of(trace.iterations[1]) == [(2, "garbage_collection", 305 * MS)]
    own = trace.iterations[1].columns
    assert len(set(own["start_ns"][own["iteration"] == 2].tolist())) == 1  # with the times of its iteration


@pytest.mark.parametrize(("wrong", "rule"), [
    (pause(0, -5), "iteration must be one of its rank's"),
    (pause(0, 5, 99), "iteration must be one of its rank's"),
    (pause(0, 5, cause="lunch"), "row 1: cause must be one of garbage_collection"),
    (pause(0, 5, elapsed_ns=-1), "row 1: elapsed_ns must be an integer"),
    (pause(7, 5), "row 1: rank must be"),
])  # fmt: skip
def test_what_is_no_pause_of_an_iteration_is_counted_alone(tmp_path: Path, wrong: dict[str, Any], rule: str) -> None:
    trace = read_trace(directory(tmp_path, [wrong, pause(1, 10, 0)]))
    assert trace.rejected.count == 1
    assert rule in trace.rejected.reasons[0]
    assert pauses_of(trace.iterations[1]) == [(0, "data_loader", 10 * MS)]


def test_what_was_read_is_written_again_and_twice_counts_once(tmp_path: Path) -> None:
    given = [pause(0, 10, 0), pause(1, 110, 1), pause(0, 10, 0)]
    trace = read_trace(directory(tmp_path / "given", given))
    write_trace(tmp_path / "again", trace.announcements, [*trace.commops.values(), *trace.iterations.values()])
    again = read_trace(tmp_path / "again")
    for rank in range(2):
        assert pauses_of(again.iterations[rank]) == pauses_of(trace.iterations[rank]) != []
    assert again.copies == 0


def test_without_a_file_of_iterations_pauses_are_of_those_that_operators_name(tmp_path: Path) -> None:
    def operator(rank: int, number: int, elapsed_ns: int | None = 90 * MS) -> dict[str, Any]:
        start_ns = START_NS + number * 100 * MS
        return commop(rank=rank, sequence=number, iteration=number, start_ns=start_ns, elapsed_ns=elapsed_ns)

    rows = [*(operator(rank, number) for rank in range(2) for number in range(3)), operator(0, 3, None)]
    given = [pause(0, 250, 1), pause(0, 199), pause(1, 205), pause(0, 310, 3)]
    trace = read_trace(write_directory(tmp_path, rows, ending=".jsonl", pauses=given))
    assert trace.rejected.count == 1  # of the iteration that has not ended
    assert sorted(pauses_of(trace.iterations[0])) == [(1, "data_loader", 199 * MS), (1, "data_loader", 250 * MS)]
    assert pauses_of(trace.iterations[1]) == [(2, "data_loader", 205 * MS)]
    own = trace.iterations[0].columns
    assert set(own["elapsed_ns"].tolist()) == {90.0 * MS}
    (tmp_path / "pauses.jsonl").unlink()
    assert read_trace(tmp_path).iterations == {}
