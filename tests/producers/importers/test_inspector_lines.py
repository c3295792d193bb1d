"""NCCL Inspector's logs: with and without start times, with a header a line or a marker for many."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.trace_reports import arrivals_of
from irregulars.messages.records import OPERATOR_CODES, UNKNOWN
from irregulars.producers.importers.following import LogReader
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.importers.inspector_job import NOTE_EARLIER, LiveLog
from irregulars.producers.trace.directory import Trace, read_trace
from tests.producers.importers.inspector_lines import START_US, collective, context, lines, marker, pair, proxy_step
from tests.producers.importers.test_following import append


def imported(tmp_path: Path, *logs: bytes) -> tuple[ImportedJob, Trace]:
    source = tmp_path / "logs"
    source.mkdir(parents=True)
    for at, log in enumerate(logs):
        (source / f"host-0-pid{100 + at}.log").write_bytes(log)
    job = import_trace("nccl-inspector", source, tmp_path / "out")
    trace = read_trace(tmp_path / "out")
    assert trace.rejected.count == 0
    return job, trace


def test_verbose_logs_give_the_kernels_times(tmp_path: Path) -> None:
    logs = [lines({**context(rank), **collective(5, 90 - 10 * rank, 1000 + 10 * rank)}) for rank in (0, 1)]
    job, trace = imported(tmp_path, *logs)
    columns = trace.commops[1].columns
    assert columns["start_ns"].tolist() == [(START_US + 1010) * 1000]
    assert columns["elapsed_ns"].tolist() == [80_000]
    assert columns["size_bytes"].tolist() == [4096]
    assert not any("start time" in note for note in job.notes)


def test_without_start_times_durations_still_tell_who_was_last(tmp_path: Path) -> None:
    logs = [lines(*({**context(rank), **collective(n, 90 - 40 * rank)} for n in range(4))) for rank in (0, 1)]
    job, trace = imported(tmp_path, *logs)
    assert set(trace.commops[0].columns["start_ns"].tolist()) == {UNKNOWN}
    assert "8 of 8 operators have no start time" in job.notes[1]
    arrivals, _ = arrivals_of(trace)
    assert arrivals.last_rank.tolist() == [1] * 4
    assert arrivals.waited_ns.tolist() == [40_000] * 4


def test_numbers_of_each_kind_are_kept_apart(tmp_path: Path) -> None:
    """NCCL counts all_reduces and broadcasts from 0 each."""
    both = [collective(0, 5), collective(0, 6, name="AllGather"), collective(1, 7)]
    _, trace = imported(tmp_path, *(lines(*({**context(rank), **one} for one in both)) for rank in (0, 1)))
    arrivals, _ = arrivals_of(trace)
    assert sorted(arrivals.operator.tolist()) == sorted(
        [OPERATOR_CODES["all_reduce"], OPERATOR_CODES["all_reduce"], OPERATOR_CODES["all_gather"]]
    )
    assert arrivals.shares.tolist() == [2, 2, 2]


def test_a_marker_speaks_for_the_lines_that_it_counts(tmp_path: Path) -> None:
    first = lines(
        marker(0, 2, 1, dropped=3), collective(0, 5), collective(1, 6), pair("Send", 1), collective(9, 9),
        marker(0, 1, comm="0xcd"), collective(0, 4),
    )  # fmt: skip
    job, trace = imported(
        tmp_path, first, lines(marker(1, 2, 1), collective(0, 5), collective(1, 6), pair("Recv", 0))
    )
    assert [len(trace.commops[rank]) for rank in (0, 1)] == [4, 3]
    assert job.skipped == {"records without communicator, operator or time": 1}
    assert [a.lost_rows for a in trace.announcements] == [3, None]
    sends = trace.commops[0].columns["operator"] == OPERATOR_CODES["send"]
    assert trace.commops[0].columns["peer"][sends].tolist() == [1]


def test_global_ranks_are_those_of_the_communicator_that_holds_all(tmp_path: Path) -> None:
    """Process 0 is rank 1 of the world and rank 0 of a part."""
    first = lines({**context(0, "0xpart", 1), **collective(0, 5)}, {**whole(0, 1), **collective(0, 5)})
    _, trace = imported(tmp_path, first, lines({**whole(1, 0), **collective(0, 5)}))
    part = next(c for a in trace.announcements for c in a.communicators if "part" in c.id)
    assert part.ranks == (1,)


def whole(process: int, rank: int) -> dict[str, object]:
    return context(process, "0xworld", 2, comm_rank=rank)


def test_processes_of_containers_that_look_alike_are_refused_and_not_taken_for_one_rank(tmp_path: Path) -> None:
    logs = [lines({**context(0, comm_rank=rank), **collective(5, 90)}) for rank in (0, 1)]
    with pytest.raises(InputError, match=r"logs: processes must be told apart by host and process id; got two of"):
        imported(tmp_path, *logs)


def test_where_no_communicator_holds_all_processes_are_numbered_and_it_is_said(tmp_path: Path) -> None:
    logs = [
        lines({**context(rank, f"0x{rank // 2}", 2, comm_rank=rank % 2), **collective(0, 5)}) for rank in range(4)
    ]
    job, trace = imported(tmp_path, *logs)
    assert trace.world_size == 4
    assert any("numbered by host and process id" in note for note in job.notes)


def test_lines_that_can_not_be_read_are_counted(tmp_path: Path) -> None:
    good = lines({**context(0), **collective(0, 5)})
    nowhere = {**context(0), **collective(1, 5)}
    nowhere["metadata"]["hostname"] = ""
    job, trace = imported(tmp_path, good + b"{\n\n[1]\n" + lines({}, {**context(0)}, nowhere) + good[:-20])
    assert len(trace.commops[0]) == 1
    assert sum(job.skipped.values()) == 6


def test_collectives_that_others_logged_are_lost_rows_of_those_that_did_not(tmp_path: Path) -> None:
    """NCCL counts each function of a communicator by itself; numbers that nobody logged were too small to be."""
    kept = {0: (1, 2, 4, 5), 1: (1, 5), 2: (1, 2, 4, 5)}
    logs = [lines(*({**context(rank, size=3), **collective(n, 90)} for n in own)) for rank, own in kept.items()]
    logs[1] += lines({**context(1, size=3), **collective(1, 5, name="AllGather")})
    job, _ = imported(tmp_path, *logs)
    assert {rank: place.lost_rows for rank, place in job.places.items()} == {0: 1, 1: 2, 2: 1}
    assert any("4 collectives that others logged are not in the logs of ranks 0-2" in note for note in job.notes)


def test_proxies_tell_what_sends_waited_for(tmp_path: Path) -> None:
    """Rank 2 is late: its sends wait for its GPU, in steps that came by themselves or inside of their operator."""
    logs = []
    for rank in range(4):
        step = proxy_step((rank + 1) % 4, 50 if rank == 2 else 5, 3, 10)
        own = {"gpu_produce_us": 50 if rank == 2 else 5, "peer_credit_us": 3, "wire_us": 10}
        whole = {"record_type": "proxy_op", "peer": (rank + 1) % 4, "direction": "send", "steps": [own]}
        first = lines(marker(rank, 1, size=4, proxy=2), collective(1, 9), step, {"proxy_trace": whole}, step)
        logs.append(first)
    job, _ = imported(tmp_path, *logs)
    assert job.skipped == {"records of proxies without communicator or peer": 4}  # more than their marker counted
    assert "by the proxies' clocks chunks waited most until rank 2 made them (0.1 ms of 0.13 ms)" in job.notes
    alike = [
        lines(marker(rank, 1, size=4, proxy=1), collective(1, 9), proxy_step((rank + 1) % 4, 5, 3, 9))
        for rank in range(4)
    ]
    job, _ = imported(tmp_path / "alike", *alike)
    assert "by the proxies' clocks no rank and no way stands out in what sends waited for" in job.notes
    # Of the only log that is here no receiver is known.
    alone = lines(marker(0, 1, size=4, proxy=1), collective(1, 9), proxy_step(1, 5, 3, 9))
    assert imported(tmp_path / "alone", alone)[0].notes[-1] == job.notes[-1]


def test_a_log_that_can_not_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    good, foreign = (lines({**context(rank, version=v), **collective(0, 5)}) for rank, v in ((0, "v4.2"), (1, "v9")))
    job, trace = imported(tmp_path, good, foreign)
    assert len(trace.commops) == 1
    assert [Path(one.name).name for one in job.left_out] == ["host-0-pid101.log"]
    assert job.left_out[0].reason.startswith("inspector_output_format_version must be one of v4.0 v4.1")


STARTS = 12


def marked(start: int, rank: int, coll: int, p2p: int, at_us: int = 0) -> dict[str, Any]:
    """The marker line of a rank's process of one start: each has its own pid and communicator."""
    stats = {"coll_records": coll, "p2p_records": p2p}
    told = context(2 * (STARTS - start) + rank, f"0x{start}", version="v4.3", comm_rank=rank)
    told["metadata"]["dump_timestamp_us"] = START_US + 10**6 * start + at_us
    return {**told, "dump_stats": stats}


def written(start: int, rank: int) -> bytes:
    sends = [pair("Send", 1 - rank)] * 3
    return lines(marked(start, rank, 4, 3), *(collective(n, 5) for n in range(4)), *sends)


def sends_of(job: ImportedJob | None, rank: int) -> list[int]:
    assert job is not None
    (found,) = [batch for batch in job.batches() if batch.header.rank == rank]
    is_send = found.columns["operator"] == OPERATOR_CODES["send"]
    return [int(one) for one in found.columns["sequence"][is_send]]


def test_what_is_kept_does_not_grow_with_each_start_of_the_job(tmp_path: Path) -> None:
    live, kept_bytes = LiveLog("job", 2), []
    reader = LogReader(tmp_path, "job", live)
    for start in range(STARTS):
        for rank in (0, 1):
            (tmp_path / f"{rank}.{start}.log").write_bytes(written(start, rank))
        job = reader.read()
        assert job is not None
        assert {rank: len(rows) for rank, rows in job.ranks.items()} == {0: 7, 1: 7}
        kept_bytes.append(len(pickle.dumps(live)))
    assert max(kept_bytes) < 1.1 * kept_bytes[0]


def test_of_processes_that_were_all_found_at_once_the_one_that_wrote_last_is_counted_on(tmp_path: Path) -> None:
    """Its pid is the smallest, and so is its name; it is silent while a log of the other rank goes on."""
    for start in (0, 1, 2):
        for rank in (0, 1):
            (tmp_path / f"{9 - start}.{rank}.log").write_bytes(written(start, rank))
    live = LiveLog("job", 2)
    reader = LogReader(tmp_path, "job", live)
    assert len(sends_of(reader.read(), 0)) == 9
    append(tmp_path / "7.1.log", lines(marked(2, 1, 1, 0, 100), collective(5, 5)))
    assert reader.read() is not None
    assert len(live._ranks) == 2
    append(tmp_path / "7.0.log", lines(marked(2, 0, 1, 1, 200), collective(5, 5), pair("Send", 1)))
    assert sends_of(reader.read(), 0) == [3]


def test_of_processes_that_look_alike_the_second_file_is_refused_while_they_are_followed() -> None:
    live = LiveLog("job", 2)
    first, second = (lines({**context(0, comm_rank=rank), **collective(5, 90)}) for rank in (0, 1))
    live.add("a", first)
    with pytest.raises(InputError, match=r"got two of 100 on host-0, ranks 0 and 1 of 0xab"):
        live.add("b", second)
    live.add("a", first.replace(b'"coll_sn": 5', b'"coll_sn": 6'))
    job = live.job()
    assert job is not None
    assert {rank: len(rows) for rank, rows in job.ranks.items()} == {0: 2}


@pytest.mark.parametrize(("begin_us", "kept"), [(10_000, 2), (100, 4)])
def test_processes_of_an_earlier_start_of_the_job_are_left_out(tmp_path: Path, begin_us: int, kept: int) -> None:
    """A second start logs beside the first; two jobs of one time are not told apart so."""
    logs = []
    for process in range(4):
        own = context(process, f"0x{process // 2}", comm_rank=process % 2)
        calls = [{**own, **collective(n, 90, n * 200 + process // 2 * begin_us)} for n in range(1, 4)]
        logs.append(lines(*calls))
    job, trace = imported(tmp_path, *logs)
    assert len(trace.commops) == kept
    assert [note for note in job.notes if "earlier start" in note][:1] == (
        [NOTE_EARLIER.format(count=2)] if kept == 2 else []
    )
