"""Pauses of a trace directory: a file of their own, and rows of their iterations on the bus."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.runs.analysis import judge_whole
from irregulars.messages.device_events import events_of
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import PAUSES, UNKNOWN, Batch
from irregulars.producers.trace.directory import Trace, read_trace, trace_batches, write_trace
from irregulars.streams.local_pipeline import LocalPipeline
from tests.producers.trace_directories import RECORDINGS, START_NS, commop, write_directory
from tests.streams.judged_streams import in_order, judge

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


RECORDING = RECORDINGS / "bench" / "ddp8-compute"  # rank 2 is GPU 0 of node-2, and slow from iteration 25 on
NAMES = ("time_ns", "host", "rank", "device", "kind", "code", "detail")
ROWS: list[dict[str, object]] = [
    dict(zip(NAMES, values, strict=True))
    for values in (
        (30, "node-2", None, "gpu0", "xid", 79, "off"),
        (10, "node-2", None, "eth0", "link_down", None, None),
        (20, "node-2", None, None, "out_of_memory", 7, None),
        (40, "somewhere", 5, "gpu9", "ecc", 1, None),
    )
]


def directory_with(rows: list[dict[str, object]], folder: Path) -> Path:
    copy = folder / RECORDING.name
    shutil.copytree(RECORDING, copy)
    (copy / "events.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return copy


def test_events_belong_to_the_ranks_that_use_the_devices(tmp_path: Path) -> None:
    trace = read_trace(directory_with([*ROWS, ROWS[0]], tmp_path))
    assert trace.rejected.count == 0
    found = {rank: [(e.time_ns, e.kind, e.device, e.code) for e in events_of(b)] for rank, b in trace.events.items()}
    assert found == {
        2: [(10, "link_down", "eth0", None), (20, "out_of_memory", "", 7), (30, "xid", "gpu0", 79)],
        5: [(40, "ecc", "gpu9", 1)],
    }


def test_an_event_of_a_device_that_no_rank_uses_is_nobody_s_and_no_broken_row(tmp_path: Path) -> None:
    rows = [ROWS[0], ROWS[0] | {"device": "gpu7"}, ROWS[1] | {"device": "0000:3b:00.0"}]
    trace = read_trace(directory_with(rows, tmp_path))
    assert (trace.rejected.count, {rank: len(own) for rank, own in trace.events.items()}) == (0, {2: 1})
    path = tmp_path / RECORDING.name / "job.json"
    job = json.loads(path.read_text())
    for place in job["ranks"].values():
        del place["gpu"]
    path.write_text(json.dumps(job))
    assert len(read_trace(path.parent).events[2]) == len(rows)  # it may be its own


@pytest.mark.parametrize(("change", "reason"), [
    ({"kind": "bad"}, "kind must be one of xid ecc"), ({"rank": 99}, "rank must be an integer from 0 to 7; got 99"),
    ({"host": "nowhere"}, "host must be one of job.json's ranks, where no rank is given; got 'nowhere'"),
    ({"time_ns": -1}, "time_ns must be an integer"),
])  # fmt: skip
def test_rows_that_tell_nothing_are_told_and_left_out(change: dict[str, object], reason: str, tmp_path: Path) -> None:
    trace = read_trace(directory_with([ROWS[0], ROWS[1] | change], tmp_path))
    assert trace.rejected.count == 1
    assert reason in trace.rejected.reasons[0]
    assert "events.jsonl: row 2" in trace.rejected.reasons[0]
    assert sum(map(len, trace.events.values())) == 1


def test_a_written_trace_has_them(tmp_path: Path) -> None:
    trace = read_trace(directory_with(ROWS, tmp_path))
    write_trace(tmp_path / "again", trace.announcements, trace_batches(trace))
    again = read_trace(tmp_path / "again")
    found = [{rank: events_of(batch) for rank, batch in one.events.items()} for one in (again, trace)]
    assert found[0] == found[1]


def newest(verdicts: list[Verdict]) -> dict[str, Verdict]:
    return {one.verdict_id: one for one in verdicts}


def verdicts_of(trace: Trace) -> list[Verdict]:
    return list(judge_whole(LocalPipeline(trace.job), trace).verdicts)


def test_a_file_and_a_stream_give_the_same_verdicts_and_events_change_no_id(tmp_path: Path) -> None:
    plain = read_trace(RECORDING)
    [alone] = newest(verdicts_of(plain)).values()
    iterations = judge_whole(LocalPipeline(plain.job), plain).iterations
    onset_ns = next(one.start_ns for one in iterations if one.iteration == 25)
    rows = [ROWS[0] | {"time_ns": onset_ns - 10**9}, ROWS[0] | {"time_ns": onset_ns + 10**9, "code": 45}]
    trace = read_trace(directory_with(rows, tmp_path))
    whole, streamed = verdicts_of(trace), judge(in_order(trace), trace.job).revisions
    assert newest(whole) == newest(streamed)
    [told] = newest(whole).values()
    assert (told.verdict_id, told.kind, told.suspects[0].rank) == (alone.verdict_id, alone.kind, 2)
    assert "gpu0 of rank 2 reported XID 79 (bus or device), followed by 45" in told.evidence
    assert "45" not in whole[0].evidence, "it had not happened when the verdict opened"
