"""The logs of a job, joined, imported and judged."""

from __future__ import annotations

import pickle
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.job.measured_time import logged_resolutions_ns
from irregulars.errors import InputError
from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.infra.runs.trace_reports import arrivals_of
from irregulars.messages.announcements import Announcement
from irregulars.messages.records import OPERATOR_CODES
from irregulars.producers.importers import clog_job as job_of_clog
from irregulars.producers.importers import clog_lines as lines_of_clog
from irregulars.producers.importers import following
from irregulars.producers.importers.clog_job import (
    RUNNING_MS,
    LiveClog,
    Log,
    groups_of_job,
    groups_of_log,
    job_of_logs,
    ranks_of_logs,
    read_log,
)
from irregulars.producers.importers.clog_lines import LogParser, Membership, Split
from irregulars.producers.importers.following import LogReader, follow
from irregulars.producers.importers.groups import ProcessGroup
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.publishing.sources import Record
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from tests.producers.importers.clog_lines import (
    BASE_MS,
    event,
    header,
    log,
    new_comm,
    signature,
    split,
    steady,
    write_logs,
)
from tests.producers.importers.test_following import append, column, drain, messages, rows_of

RECORDINGS = Path(__file__).parents[2] / "recordings"


def imported(tmp_path: Path, *logs: bytes) -> tuple[ImportedJob, Trace]:
    source = tmp_path / "job-7"
    source.mkdir()
    for at, one in enumerate(logs):
        (source / f"log-{at}.txt").write_bytes(one)
    job = import_trace("clog", source, tmp_path / "out")
    trace = read_trace(tmp_path / "out")
    assert trace.rejected.count == 0
    return job, trace


def judged(tmp_path: Path, recording: str, backend: str) -> Analysis:
    write_logs(read_trace(RECORDINGS / recording), tmp_path / "logs", backend)
    import_trace("clog", tmp_path / "logs", tmp_path / "out")
    return analyze(number_iterations(read_trace(tmp_path / "out")).trace)


def test_calls_that_block_start_when_they_are_made(tmp_path: Path) -> None:
    job, trace = imported(tmp_path, log(*steady(0)), log(*steady(1, late_ms=2)))
    columns = trace.commops[1].columns
    assert columns["start_ns"].tolist()[:2] == [(BASE_MS + 2) * 1_000_000, (BASE_MS + 12) * 1_000_000]
    assert set(columns["elapsed_ns"].tolist()) == {1_000_000}
    assert set(columns["size_bytes"].tolist()) == {4096}
    assert (job.job, job.clock, job.world_size, job.skipped) == ("job-7", "per_host", 2, {})
    assert job_of_clog.NOTE_CALLS in job.notes
    arrivals, _ = arrivals_of(trace)
    assert set(arrivals.last_rank.tolist()) == {1}
    # The judgement sees that these are whole milliseconds.
    columns = trace.commops[0].columns
    rows = {name: columns[name] for name in ("start_ns", "elapsed_ns")} | {"rank": columns["operator"] * 0}
    assert set(logged_resolutions_ns(rows).tolist()) == {1_000_000}


def test_splits_become_communicators_with_kinds_and_peers_become_global(tmp_path: Path) -> None:
    logs = []
    for rank in range(4):
        pair, pp = ([0, 1] if rank < 2 else [2, 3]), [rank % 2, rank % 2 + 2]
        operator = "send" if rank < 2 else "recv"
        lines = [header(), new_comm(rank, 4, "main"), split("tp", pair, "main"), split("pp", pp, "main"),
                 signature(1, comm=f"tp_{pair[0]}"), signature(2, operator, f"pp_{pp[0]}", peer=int(rank < 2)),
                 signature(3, comm="main")]  # fmt: skip
        for n in range(3):
            lines += [line for c in (1, 2, 3) for line in (event(c, "Q", n), event(c, "S", n), event(c, "E", n + 1))]
        logs.append(log(*lines))
    job, trace = imported(tmp_path, *logs)
    assert {(one.id, one.kind, one.ranks) for one in job.communicators} == {
        ("main", "world", (0, 1, 2, 3)), ("tp#0", "tp", (0, 1)), ("tp#2", "tp", (2, 3)), ("pp#0", "pp", (0, 2)),
        ("pp#1", "pp", (1, 3)),
    }  # fmt: skip
    of_pairs = trace.commops[3].columns["operator"] == OPERATOR_CODES["recv"]
    assert trace.commops[3].columns["peer"][of_pairs].tolist() == [1, 1, 1]
    assert trace.commops[3].columns["sequence"][of_pairs].tolist() == [0, 1, 2]


def test_what_can_t_be_placed_is_left_out_and_counted(tmp_path: Path) -> None:
    lines = [split("x", [0, 1]), split("x", [0]), signature(2, comm="x_0"), signature(3, comm="nowhere"),
             signature(4, "send", peer=7)]  # fmt: skip
    lines += [line for c in (2, 3, 4) for line in (event(c, "Q", 700, 60 + c - 1), event(c, "E", 701))]
    job, trace = imported(tmp_path, log(*steady(0), *lines), log(*steady(1)))
    assert len(trace.commops[0]) == 60
    assert job.skipped == {
        "calls on communicators that share a name with others of the same rank": 1,
        "calls on communicators whose members nothing tells": 1,
    }
    assert job.ranks[0].unusable == 1


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    first, last = steady(0, 4), steady(3, 4)
    del first[-3:]
    last[40:43] = []
    job, trace = imported(tmp_path, log(*first), log(*last))
    assert any("logs of 2 of 4 ranks are not here" in note for note in job.notes)
    assert [(one.rank, one.lost_rows, one.logged_ranks) for one in trace.announcements] == [(0, 0, 2), (3, 1, 2)]


@pytest.mark.parametrize(("lines", "reason"), [
    ([event(1, "Q", n, n + 1) for n in range(9)], r"must hold starts and ends .*; got 18 calls alone: .*LIFE"),
    ([], r"must hold calls of operators \(Q lines\); got none"),
    (["G7|C1|Q|work_id=1|+0.001", "G7|R1|C1|S|+0.002"], r"got 4 events of CUDA graphs, which have no order"),
])  # fmt: skip
def test_logs_that_tell_nothing_are_refused_with_the_reason(tmp_path: Path, lines: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        imported(tmp_path, *(log(header(), new_comm(rank, 2), signature(1), *lines) for rank in (0, 1)))


def test_an_error_names_file_and_line(tmp_path: Path) -> None:
    found = imported(tmp_path, log(*steady(0)), log("V|2|base_timestamp=1.000"))[0].left_out
    assert [(Path(one.name).name, one.rank) for one in found] == [("log-1.txt", 1)]
    assert re.match(r"line 1 must be V\|1\|.*; got 'V\|2\|base_timestamp=1.000'", found[0].reason)
    (tmp_path / "job-7" / "log-1.txt").write_bytes(b"")
    assert [one.reason for one in import_trace("clog", tmp_path / "job-7", tmp_path / "out").left_out] == ["empty"]
    (tmp_path / "job-7" / "log-1.txt").write_bytes(log(*steady(0)))
    with pytest.raises(InputError, match=r"job-7: logs must be of different ranks; got two of rank 0 of world"):
        import_trace("clog", tmp_path / "job-7", tmp_path / "out")


@pytest.mark.parametrize("backend", ["gpu", "gloo"])
def test_a_slow_rank_is_found_from_milliseconds(tmp_path: Path, backend: str) -> None:
    analysis = judged(tmp_path, "gloo-slow-rank", backend)
    first = analysis.verdicts[0]
    assert (first.kind, first.suspects[0].ranks, first.iterations) == ("slow_rank", (2,), (60, 80))


@pytest.mark.parametrize("backend", ["nccl", "ncclx"])
def test_where_a_watchdog_looked_nobody_is_accused_and_it_is_said(tmp_path: Path, backend: str) -> None:
    analysis = judged(tmp_path, "gloo-slow-rank", backend)
    assert not analysis.verdicts
    assert analysis.unjudged_reason is not None
    assert "nobody waits in a collective" in analysis.unjudged_reason
    trace = read_trace(tmp_path / "out")
    assert all(not batch.columns["elapsed_ns"].any() for batch in trace.commops.values())


@pytest.mark.parametrize(("recording", "rank"), [("ddp8-hang-before", 5), ("pp4dp2-hang-inside", 3)])
def test_a_hang_is_found_where_a_watchdog_looked(tmp_path: Path, recording: str, rank: int) -> None:
    analysis = judged(tmp_path, f"bench/{recording}", "nccl")
    (verdict,) = analysis.verdicts
    assert (verdict.kind, verdict.suspects[0].ranks) == ("hang", (rank,))


def hanging(rank: int, base: str, end_ms: int | None) -> list[str]:
    """Of three ranks the last stops after 60 calls; the others wait in the next one, which ends at `end_ms`."""
    lines = [header(base=base), *steady(rank, 3)[1:]]
    if rank < 2:
        lines += [event(1, "Q", 600, 61), *([event(1, "E", end_ms)] if end_ms else [])]
    return lines


@pytest.mark.parametrize("end_ms", [None, 600_600])
def test_a_rank_that_never_came_is_named_though_the_others_were_ended(tmp_path: Path, end_ms: int | None) -> None:
    job, trace = imported(tmp_path, *(log(*hanging(rank, "1714234567.890", end_ms)) for rank in range(3)))
    (verdict,) = [one for one in analyze(number_iterations(trace).trace).verdicts if one.kind == "hang"]
    assert verdict.suspects[0].ranks == (2,)
    assert any("2 calls never ended: a job that was stopped in its midst looks like" in note for note in job.notes)


def test_a_job_that_still_writes_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    now = f"{time.time():.3f}"
    job, trace = imported(tmp_path, *(log(*hanging(rank, now, None)) for rank in range(3)))
    assert {len(batch) for batch in trace.commops.values()} == {60}
    assert any("the job seems to run still: 2 calls that had not ended are left out" in note for note in job.notes)
    assert not [one for one in analyze(number_iterations(trace).trace).verdicts if one.kind == "hang"]


def test_a_call_takes_the_memory_of_its_numbers(tmp_path: Path) -> None:
    """65 bytes while it is read, 64 as a row, and as much again while that is written."""
    path = tmp_path / "log-0.txt"
    path.write_bytes(log(*steady(0, 1, calls=6_000)))
    tracemalloc.start()
    try:
        import_trace("clog", path, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 6_000 * 600
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("others", [list[str](), [event(1, "Q", 500, 10), event(1, "Q", 501, 11)]])
def test_calls_of_all_logs_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[str]) -> None:
    """Those without an end take as much memory."""
    logs = log(*steady(0, calls=8)), log(*steady(1, calls=8 - len(others)), *others)
    monkeypatch.setattr(job_of_clog, "MOST_CALLS", 15)
    (left_out,) = imported(tmp_path, *logs)[0].left_out
    assert left_out.name.endswith("log-1.txt")
    assert left_out.reason == "calls of all ranks together must be at most 15; got more"
    monkeypatch.setattr(job_of_clog, "MOST_CALLS", 16)
    (tmp_path / "again").mkdir()
    assert sum(map(len, imported(tmp_path / "again", *logs)[0].ranks.values())) == 16


WORLD = Membership("world", 2, 4)


def log_of(*members: Membership) -> LogParser:
    parser = LogParser()
    parser.members = list(members)
    return parser


def test_the_largest_communicator_that_holds_all_logs_tells_the_ranks() -> None:
    logs = {f"{rank}.log": log_of(Membership("pair", rank % 2, 2), Membership("w", 3 - rank, 4)) for rank in range(4)}
    ranks = ranks_of_logs(logs, dict.fromkeys(logs))
    assert ranks.of == {"0.log": 3, "1.log": 2, "2.log": 1, "3.log": 0}
    assert (ranks.world_size, ranks.root) == (4, "w")


def test_without_such_a_communicator_the_files_names_tell_or_nobody_does() -> None:
    logs = {"r0.log": log_of(Membership("a", 0, 1)), "r1.log": log_of(Membership("b", 0, 1))}
    ranks = ranks_of_logs(logs, {"r0.log": 0, "r1.log": 5})
    assert (ranks.of["r1.log"], ranks.world_size, ranks.root) == (5, 6, None)
    with pytest.raises(InputError, match=r"must all have a new_comm line of one communicator, or names"):
        ranks_of_logs(logs, {"r0.log": 0, "r1.log": None})
    with pytest.raises(InputError, match=r"two of rank 1 by the files' names: r0.log and r1.log"):
        ranks_of_logs(logs, dict.fromkeys(logs, 1))


@pytest.mark.parametrize(("splits", "groups"), [
    # The page calls the ranks of a split line global; the source checks them against the parent's size.
    ([Split("world", "odd", (3, 2)), Split("odd_2", "one", (1,))],
     {"odd": (3, 2), "odd_2": (3, 2), "one": (2,), "one_1": (2,)}),
    # A name that means two groups on one rank means none.
    ([Split("world", "part", (2, 3)), Split("world", "part", (2, 1)), Split("world", "part", (2, 3))],
     {"part": None, "part_2": (2, 3), "part_1": (2, 1)}),
    ([Split("world", "p", (0, 2)), Split("world", "p", (0, 2, 3))], {"p": None, "p_0": None}),
    # Parts of other ranks, of ranks that are none, and of no communicator that is known
    *(([Split("world", "x", ranks), Split("nowhere", "y", (2,))], {}) for ranks in ((0, 1), (2, 9), (2, 2))),
])  # fmt: skip
def test_split_lines_name_groups_of_a_rank(splits: list[Split], groups: dict[str, tuple[int, ...] | None]) -> None:
    found = groups_of_log([WORLD], splits, 2, 4, {})
    assert {name: own and own.ranks for name, own in found.items()} == {"world": (0, 1, 2, 3), **groups}


def test_a_communicator_made_apart_is_known_if_all_of_its_members_are_here() -> None:
    logs = {str(rank): log_of(Membership("w", rank, 4), Membership("half", rank % 2, 2)) for rank in (1, 2)}
    logs["0"] = log_of(Membership("w", 0, 4), Membership("third", 0, 3))
    groups = groups_of_job(logs, ranks_of_logs(logs, dict.fromkeys(logs)))
    assert groups["2"]["half"] == ProcessGroup("2", "half", (2, 1))
    assert "third" not in groups["0"]


def logs_of(*all_lines: list[str]) -> dict[str, Log]:
    return {f"{n}.log": read_log(log(*lines).splitlines(keepends=True)) for n, lines in enumerate(all_lines)}


@pytest.mark.parametrize("lost", ["C1|E|", ""])
def test_in_a_log_that_lost_lines_or_is_just_shorter_no_call_is_missed(lost: str) -> None:
    damaged = steady(1)
    damaged[40:43] = [lost]
    for other in (steady(1), steady(1)[:-12], damaged):  # of the second one, more than one was called behind it
        assert not job_of_logs(logs_of(steady(0), other), {"0.log": 0, "1.log": 1}, "job").has_open


def test_a_job_runs_while_its_newest_line_is_new() -> None:
    logs = logs_of(steady(0)[:-1], steady(1, calls=90))
    now = [0, RUNNING_MS, RUNNING_MS + 1, -RUNNING_MS - 1]  # the last is another clock's: nothing is known
    jobs = [job_of_logs(logs, {"0.log": 0, "1.log": 1}, "job", BASE_MS + 893 + after_ms) for after_ms in now]
    assert ["run still" in " ".join(job.notes) for job in jobs] == [True, True, False, False]


def test_calls_beyond_the_numbers_of_32_bits_are_kept() -> None:
    logs = {}
    for rank in (0, 1):
        one = read_log(log(*steady(rank)).splitlines(keepends=True))
        moved = Log(one.parser)
        for call in one:
            moved.add(call._replace(number=call.number + (1 << 32)))
        logs[f"log-{rank}"] = moved
    job = job_of_logs(logs, dict.fromkeys(logs), "job")
    rows = {batch.header.rank: batch.columns["sequence"].tolist() for batch in job.batches()}
    assert [own[:3] for own in rows.values()] == [[0, 1, 2]] * 2
    assert all(own.unusable == 0 for own in job.ranks.values())


COLUMNS = ("operator", "sequence", "start_ns", "elapsed_ns", "size_bytes")


def opened(folder: Path, **options: Any) -> Any:
    return follow("clog", folder, "job", **{"ends_when_idle": True, "interval_s": 0.01, **options})


def announced(records: list[Record]) -> dict[int, Announcement]:
    return {one.rank: one for one in records if isinstance(one, Announcement)}


def parts(rank: int, calls: int = 40) -> list[str]:
    """A log with parts of two ranks; nothing but the split line tells the parts of one name apart."""
    first = rank // 2 * 2
    lines = [header(), new_comm(rank, 4), split("tp", [first, first + 1]), signature(1), signature(2, comm="tp")]
    for n in range(calls):
        lines += [event(1, "Q", 20 * n, 2 * n + 1), event(1, "S", 20 * n + 3), event(1, "E", 20 * n + 3)]
        lines += [event(2, "Q", 20 * n + 5, 2 * n + 2), event(2, "S", 20 * n + 9), event(2, "E", 20 * n + 9)]
    return lines


def test_live_and_offline_give_the_same_rows(folder: Path, tmp_path: Path) -> None:
    for rank in range(4):
        (folder / f"{rank}.log").write_bytes(log(*parts(rank)))
    followed = drain(opened(folder))
    import_trace("clog", folder, tmp_path / "out")
    trace = read_trace(tmp_path / "out")
    for name in COLUMNS:
        for rank in range(4):
            assert column(followed, name, rank) == trace.commops[rank].columns[name].tolist()


def test_each_node_gives_a_communicator_the_same_id(folder: Path) -> None:
    """Both nodes see a part called tp, each its own."""
    nodes = []
    for node in (0, 1):
        own = folder / str(node)
        own.mkdir()
        for rank in (2 * node, 2 * node + 1):
            (own / f"{rank}.log").write_bytes(log(*parts(rank)))
        nodes.append(announced(drain(opened(own))))
    assert [sorted(one) for one in nodes] == [[0, 1], [2, 3]]
    ids = [{(c.id, c.ranks) for one in node.values() for c in one.communicators} for node in nodes]
    assert len(ids[0] & ids[1]) == 1
    assert len(ids[0] | ids[1]) == 3
    assert {one.world_size for node in nodes for one in node.values()} == {4}


@pytest.mark.parametrize("cut", [30, 155, 400])
def test_a_call_that_goes_on_where_a_reading_ends_is_whole(folder: Path, cut: int) -> None:
    whole, path = log(*steady(0, calls=50)), folder / "0.log"
    path.write_bytes(whole[:-cut])
    source = opened(folder, ends_when_idle=False)
    records = drain(source, lambda polled: rows_of(polled) >= 30)
    append(path, whole[-cut:])
    records += drain(source, lambda polled: rows_of(records + polled) == 50)
    source.close()
    assert column(records, "sequence", 0) == list(range(50))
    assert set(column(records, "elapsed_ns", 0)) == {3_000_000}


def test_a_log_that_is_begun_anew_is_read_anew(folder: Path) -> None:
    """A restarted job opens its file again and cuts it to nothing."""
    path = folder / "0.log"
    path.write_bytes(log(*steady(0, calls=50)))
    source = opened(folder, ends_when_idle=False)
    records = drain(source, lambda polled: rows_of(polled) == 50)
    lines = steady(0, calls=60)
    path.write_bytes(log(header(base="1714234999.000"), *lines[1:]))
    records += drain(source, lambda polled: rows_of(polled) == 60)
    source.close()
    assert column(records, "start_ns", 0)[50] == 1_714_234_999_000_000_000
    assert column(records, "start_ns", 0)[0] == BASE_MS * 1_000_000


def test_other_files_and_second_logs_of_a_rank_are_left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "train.txt").write_bytes(b"loss 0.5\n" * 12)
    (folder / "0.log").write_bytes(log(*steady(0, 4, calls=10)))
    (folder / "old.log").write_bytes(log(header(base="1714234500.000"), *steady(0, 4, calls=10)[1:]))
    (folder / "late.log").write_bytes(log(header(), signature(1), event(1, "Q", 1, 1), event(1, "E", 2)))
    records = drain(opened(folder, world_size=4))
    assert rows_of(records) == 10
    left_out = messages(caplog, "records_left_out")
    assert "event=records_left_out job=job records=12 reason='lines of files that are no clog'" in left_out
    assert any(
        "records=11 reason='calls of ranks that were not told yet, or of their earlier logs'" in one
        for one in left_out
    )


def grown(folder: Path, rank: int, *, first: int, past: int) -> None:
    """Append the calls from one on to a rank's log."""
    append(folder / f"{rank}.log", log(*steady(rank, calls=past)[3 + 3 * first :]))


SECOND_HEADER = log(*steady(0, calls=5), *steady(0, calls=5))
WITHOUT_ENDS = log(*steady(0, calls=0), *(event(1, "Q", n, 1 + n) for n in range(1001)))


@pytest.mark.parametrize(("bad", "rows", "told"), [
    (SECOND_HEADER, 5, "line 19 must be within one log"),
    (WITHOUT_ENDS, 0, "line 1004 must come when at most 1000 calls"),
    (log(header(version=2)), 0, r"line 1 must be V|1|"),
], ids=["appended to", "without ends", "another version"])  # fmt: skip
def test_a_bad_log_is_told_once_and_left_out_and_the_ranks_beside_it_go_on(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, bad: bytes, rows: int, told: str
) -> None:
    monkeypatch.setattr(lines_of_clog, "MOST_OPEN", 1000)
    (folder / "0.log").write_bytes(bad)
    (folder / "1.log").write_bytes(log(*steady(1, calls=20)))
    source = opened(folder, ends_when_idle=False)
    records = drain(source, lambda polled: rows_of(polled) == 20 + rows)
    grown(folder, 0, first=5, past=9)
    grown(folder, 1, first=20, past=30)
    records += drain(source, lambda polled: rows_of(polled) >= 10)
    source.close()
    assert column(records, "sequence", 1) == list(range(30))
    assert column(records, "sequence", 0) == list(range(rows))
    (refused,) = messages(caplog, "file_refused")
    assert refused.startswith(f"event=file_refused reason='{folder}/0.log: {told}")


def test_where_a_watchdog_looks_that_is_all_that_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [header(), new_comm(0, 2), signature(1)]
    for n in range(60):
        lines += [event(1, "Q", 10 * n, n + 1), *(event(1, kind, 10 * n) for kind in "SE" if n)]
    (folder / "0.log").write_bytes(log(*lines))
    assert not drain(opened(folder))
    (told,) = messages(caplog, "records_left_out")
    assert "records=59 reason='calls of which nobody knows how long they took: a watchdog looks at the GPU'" in told


def test_a_rank_whose_communicators_no_message_can_hold_is_told_once_and_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the agent would end when it announces the rank."""
    monkeypatch.setattr(following, "MAX_ANNOUNCEMENT_BYTES", 10_000)
    size, scattered = 1 << 12, np.random.default_rng(1).permutation(1 << 12)[:2_000].tolist()
    own = [header(), new_comm(0, size), split("tp", [0, *(one for one in scattered if one > 1)])]
    (folder / "0.log").write_bytes(log(*own, *steady(0, size, calls=20)[2:]))
    (folder / "1.log").write_bytes(log(*steady(1, size, calls=20)))
    source = opened(folder, ends_when_idle=False)
    records = drain(source, lambda polled: rows_of(polled) >= 20)
    for rank in (0, 1):
        grown(folder, rank, first=20, past=30)
    records += drain(source, lambda polled: rows_of(polled) >= 10)
    source.close()
    assert column(records, "sequence", 1) == list(range(30))
    assert list(announced(records)) == [1]
    assert column(records, "sequence", 0) == []
    (told,) = messages(caplog, "rank_refused")
    assert "job=job rank=0 reason='its announcement must be at most 10000 bytes; got " in told


def begun(start: int, calls: int, rank: int = 0) -> bytes:
    return log(header(base=f"{1_714_234_567 + start}.000"), *steady(rank, calls=calls)[1:])


def test_what_is_kept_does_not_grow_with_each_start_of_the_job(folder: Path) -> None:
    live, kept_bytes = LiveClog("job", None), []
    reader = LogReader(folder, "job", live)
    for start in range(12):
        for rank in (0, 1):
            (folder / f"{rank}.{start}.log").write_bytes(begun(start, 20, rank))
        job = reader.read()
        assert job is not None
        assert {rank: len(rows) for rank, rows in job.ranks.items()} == {0: 20, 1: 20}
        kept_bytes.append(len(pickle.dumps(live._parsers)))
    assert max(kept_bytes) < 1.1 * kept_bytes[0]


def test_what_an_earlier_log_showed_of_the_backend_stays_and_no_more_of_it_is_read(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier, later = folder / "0.a.log", folder / "0.b.log"
    earlier.write_bytes(begun(0, 30))
    source = opened(folder, ends_when_idle=False)
    records = drain(source, lambda polled: rows_of(polled) == 30)
    later.write_bytes(begun(9, 5))
    records += drain(source, lambda polled: rows_of(polled) == 5)
    append(earlier, begun(0, 40)[len(begun(0, 30)) :])
    append(later, begun(9, 6)[len(begun(9, 5)) :])  # of one call nobody could tell what its times are worth
    records += drain(source, lambda polled: rows_of(polled) == 1)
    source.close()
    assert column(records, "sequence", 0) == [*range(30), *range(6)]
    (told,) = messages(caplog, "records_left_out")
    assert told.endswith("records=30 reason='lines of earlier logs of a rank'")
