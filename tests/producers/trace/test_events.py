"""Events of a trace directory: whose they are, what is refused, and what comes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from irregulars.infra.runs.analysis import judge_whole
from irregulars.messages.device_events import events_of
from irregulars.messages.judgements import Verdict
from irregulars.producers.trace.directory import Trace, read_trace, trace_batches
from irregulars.producers.trace.writer import write_trace
from irregulars.streams.local_pipeline import LocalPipeline
from tests.producers.trace_directories import RECORDINGS
from tests.streams.judged_streams import in_order, judge

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
    assert {rank: events_of(batch) for rank, batch in again.events.items()} == {
        rank: events_of(batch) for rank, batch in trace.events.items()
    }


def newest(verdicts: list[Verdict]) -> dict[str, Verdict]:
    return {one.verdict_id: one for one in verdicts}


def verdicts_of(trace: Trace) -> list[Verdict]:
    return list(judge_whole(LocalPipeline(trace.job), trace).verdicts)


def test_a_file_and_a_stream_give_the_same_verdicts_and_events_change_no_id(tmp_path: Path) -> None:
    plain = read_trace(RECORDING)
    [alone] = newest(verdicts_of(plain)).values()
    onset_ns = next(
        one.start_ns for one in judge_whole(LocalPipeline(plain.job), plain).iterations if one.iteration == 25
    )
    rows = [ROWS[0] | {"time_ns": onset_ns - 10**9}, ROWS[0] | {"time_ns": onset_ns + 10**9, "code": 45}]
    trace = read_trace(directory_with(rows, tmp_path))
    whole, streamed = verdicts_of(trace), judge(in_order(trace), trace.job).revisions
    assert newest(whole) == newest(streamed)
    [told] = newest(whole).values()
    assert (told.verdict_id, told.kind, told.suspects[0].rank) == (alone.verdict_id, alone.kind, 2)
    assert "gpu0 of rank 2 reported XID 79 (bus or device), followed by 45" in told.evidence
    assert "45" not in whole[0].evidence, "it had not happened when the verdict opened"
