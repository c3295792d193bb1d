"""Files that are followed while they grow: each row once, in pieces of any size, across rotation."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.importers import following
from irregulars.producers.importers.following import FollowingSource, NewFileReader, follow
from irregulars.producers.importers.imported import ImportedJob
from irregulars.producers.importers.importing import import_trace, read_kineto
from irregulars.producers.publishing.sources import Record, check_source
from irregulars.producers.trace.directory import read_trace
from irregulars.streams.local_pipeline import LocalPipeline
from tests.producers.importers.inspector_lines import collective, context, lines, marker, pair
from tests.producers.importers.test_flight_recorder import dump, entry
from tests.producers.importers.test_kineto_trace import NAMED, kernel, step, trace_file

DEADLINE_S = 60.0


def opened(kind: str, folder: Path, **options: Any) -> FollowingSource:
    options = {"ends_when_idle": True, "settle_s": 0.0, "interval_s": 0.01, "world_size": 2, **options}
    return follow(kind, folder, "job", **options)


def drain(source: FollowingSource, is_enough: Callable[[list[Record]], bool] = lambda _: False) -> list[Record]:
    """Poll until the source ends, or enough came."""
    polled: list[Record] = []
    stop_s = time.monotonic() + DEADLINE_S
    while not source.is_exhausted and not is_enough(polled):
        assert time.monotonic() < stop_s, f"must come in {DEADLINE_S} s; got {len(polled)} records"
        polled += source.poll(7)
        time.sleep(0.001)
    return polled


def column(records: list[Record], name: str, rank: int, schema: str = "commops") -> list[float]:
    own = [r for r in records if isinstance(r, Batch) and (r.header.rank, r.header.schema) == (rank, schema)]
    return np.concatenate([batch.columns[name][is_own(batch)] for batch in own]).tolist() if own else []


def is_own(batch: Batch) -> np.ndarray:
    """Return which rows are no pauses beside those of their iteration."""
    return np.asarray(batch.columns.get("pause_cause", np.full(len(batch), UNKNOWN)) == UNKNOWN)


def numbers(records: list[Record]) -> list[int]:
    """Return NCCL's numbers of the operators of rank 0: a sequence holds the operator's code as well."""
    return [int(one) >> 4 for one in column(records, "sequence", 0)]


def rows_of(records: list[Record]) -> int:
    """Return the number of operators and iterations, without pauses and events beside them."""
    batches = (one for one in records if isinstance(one, Batch) and one.header.schema != "events")
    return sum(int(is_own(one).sum()) for one in batches)


def log_of(rank: int, first: int, past: int) -> bytes:
    return lines(*({**context(rank), **collective(n, 50, 1000 * n)} for n in range(first, past)))


def captures(folder: Path, first: int, past: int) -> None:
    for rank in (0, 1):
        events = [e for n in range(first, past) for e in (step(n, 1e4 * n, 9e3), kernel(1e4 * n + 1, 2, n, **NAMED))]
        trace_file(folder, rank, events)
        (folder / f"rank-{rank}.json.gz").rename(folder / f"rank-{rank}.{first}.json.gz")


def append(path: Path, value: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(value)


# --- the protocol of sources ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", following.KINDS)
def test_followed_files_of_each_kind_are_a_source(folder: Path, kind: str) -> None:
    if kind == "kineto":
        for first in (0, 150):
            captures(folder, first, first + 150)
    for rank in (0, 1) if kind != "kineto" else ():
        ended = [entry(n, "completed", duration_ms=1.0) for n in range(120)]
        own = {
            "nccl-inspector": log_of(rank, 0, 300)
            + lines(marker(rank, 1, 2), collective(301, 5), *[pair("Send", 1 - rank)] * 2),
            "flight-recorder": json.dumps(dump(*ended, entry(120))).encode(),
        }
        (folder / f"rank_{rank}").write_bytes(own[kind])
    check_source(lambda _: opened(kind, folder, world_size=2))


# --- growing, rotation, restart -------------------------------------------------------------------------------------


def test_lines_come_as_they_are_appended_and_half_a_line_waits(folder: Path) -> None:
    path = folder / "host-pid0.log"
    whole = log_of(0, 0, 10)
    path.write_bytes(whole[:-30])
    source = opened("nccl-inspector", folder, ends_when_idle=False)
    records = drain(source, lambda polled: rows_of(polled) == 9)
    append(path, whole[-30:])
    records += drain(source, lambda polled: rows_of(polled) == 1)
    source.close()
    assert not source.is_exhausted
    assert column(records, "start_ns", 0) == sorted(column(records, "start_ns", 0))
    assert [r.rank for r in records if isinstance(r, Announcement)] == [0]
    assert len(set(column(records, "sequence", 0))) == 10


@pytest.mark.parametrize("how", ["renamed", "copied", "packed"])
def test_rotation_loses_nothing_and_repeats_nothing(folder: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """The log is renamed and a new one begun, or copied away or packed, and cut to nothing."""
    path = folder / "host-pid0.log"
    path.write_bytes(log_of(0, 0, 40))
    source = opened("nccl-inspector", folder, ends_when_idle=False)
    records = drain(source, lambda polled: rows_of(polled) == 40)
    if how == "renamed":
        append(path, log_of(0, 40, 50))
        path.rename(folder / "host-pid0.log.1")
    elif how == "packed":
        (folder / "host-pid0.log.1.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.write_bytes(log_of(0, 50, 55))
    records += drain(source, lambda polled: rows_of(polled) == (15 if how == "renamed" else 5))
    append(path, log_of(0, 55, 56))  # when this has come, whatever would be read twice has come too
    records += drain(source, lambda polled: 55 in numbers(polled))
    source.close()
    assert sorted(numbers(records)) == [*range(40), *range(40 if how == "renamed" else 50, 56)]
    assert caplog.records == []


def test_a_log_that_is_missed_while_it_is_renamed_is_not_read_again(folder: Path) -> None:
    logs = [folder / f"host-pid{rank}.log" for rank in (0, 1)]
    for rank, path in enumerate(logs):
        path.write_bytes(log_of(rank, 0, 20))
    source = opened("nccl-inspector", folder, ends_when_idle=False)
    records = drain(source, lambda polled: rows_of(polled) == 40)
    hidden = logs[0].rename(folder / ".renaming")  # a look that comes between two names sees neither
    append(logs[1], log_of(1, 20, 25))
    records += drain(source, lambda polled: rows_of(polled) == 5)
    append(hidden, log_of(0, 20, 30))
    hidden.rename(folder / "host-pid0.log.1")
    records += drain(source, lambda polled: rows_of(polled) >= 10)
    source.close()
    assert numbers(records) == list(range(30))


def called(comm: str, size: int, first: int, past: int) -> bytes:
    return lines(*({**context(0, comm, size), **collective(n, 50, 1000 * n)} for n in range(first, past)))


def test_ranks_of_a_log_are_announced_with_communicators_that_are_called_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's monitors hold to the first announcement."""
    monkeypatch.setattr(following, "ANNOUNCE_S", DEADLINE_S)
    monkeypatch.setattr(following, "MOST_PIECE_BYTES", 1000)
    (folder / "host-pid0.log").write_bytes(called("0xab", 4, 0, 20) + called("0xcd", 2, 20, 23))
    records = drain(opened("nccl-inspector", folder, world_size=4))
    (announced,) = [one for one in records if isinstance(one, Announcement)]
    assert [one.id for one in announced.communicators] == ["0xab", "0xcd"]
    assert numbers(records) == list(range(23))


def test_ranks_of_a_log_that_grows_are_announced_when_no_communicator_has_come_for_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ANNOUNCE_S", 0.2)
    path = folder / "host-pid0.log"
    path.write_bytes(called("0xab", 4, 0, 3))
    source = opened("nccl-inspector", folder, world_size=4, ends_when_idle=False)
    count, stop_s, records = 3, time.monotonic() + DEADLINE_S, list[Record]()
    while not records:
        assert time.monotonic() < stop_s
        append(path, called("0xcd", 2, count, count + 1))
        count += 1
        records += source.poll(1)
        time.sleep(0.01)
    source.close()
    (announced,) = records
    assert isinstance(announced, Announcement)
    assert [one.id for one in announced.communicators] == ["0xab", "0xcd"]


def test_ranks_of_a_log_that_does_not_grow_are_announced_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "ANNOUNCE_S", DEADLINE_S)
    monkeypatch.setattr(following, "_MOST_IDLE_S", 0.1)
    (folder / "host-pid0.log").write_bytes(called("0xab", 4, 0, 3))
    source = opened("nccl-inspector", folder, world_size=4, ends_when_idle=False)
    assert drain(source, lambda polled: rows_of(polled) == 3)
    source.close()


def test_traces_come_as_they_appear_and_bad_ones_are_passed_over(folder: Path) -> None:
    source = opened("kineto", folder, ends_when_idle=False, settle_s=0.2)
    captures(folder, 0, 5)
    (folder / "rank-0.bad.json.gz").write_bytes(gzip.compress(b'{"traceEvents": ['))
    first = drain(source, lambda polled: rows_of(polled) == 20)
    captures(folder, 5, 8)
    second = drain(source, lambda polled: rows_of(polled) == 12)
    source.close()
    assert column(first + second, "iteration", 1) == list(range(8))
    assert column(second, "iteration", 0, "iterations") == [5, 6, 7]
    watermarks = [r.header.watermark_ns for r in first + second if isinstance(r, Batch) and r.header.rank == 0]
    assert None not in watermarks


def test_live_and_offline_give_the_same_rows(folder: Path, tmp_path: Path) -> None:
    captures(folder, 0, 30)
    followed = drain(opened("kineto", folder))
    import_trace("kineto", folder, tmp_path / "out")
    trace = read_trace(tmp_path / "out")
    for name in ("sequence", "start_ns", "elapsed_ns", "iteration", "operator"):
        for rank in (0, 1):
            assert column(followed, name, rank) == trace.commops[rank].columns[name].tolist()


def test_a_hang_is_judged_from_followed_dumps_when_the_job_falls_silent(folder: Path) -> None:
    """The dumps come through the monitors of the stream; rank 1 never came."""
    for rank, listed in ((0, [entry(7)]), (1, []), (2, [entry(7)])):
        (folder / f"dump_{rank}.json").write_text(json.dumps(dump(*listed)))
        os.utime(folder / f"dump_{rank}.json", ns=(1_700_000_180_000_000_000,) * 2)
    records = drain(opened("flight-recorder", folder, world_size=3))
    pipeline = LocalPipeline("job")
    for record in records:
        assert isinstance(record, Announcement | Batch)
        pipeline.take(record)
    pipeline.monitor.add(pipeline.reduce())
    for now_s in (0.0, pipeline.settings.silence_s + 1):
        pipeline.monitor.tick(now_s)
    judged = pipeline.judge()
    (verdict,) = judged.verdicts
    assert (verdict.kind, verdict.suspects[0].ranks) == ("hang", (1,))
    assert verdict.lost_s == pytest.approx(180.0, abs=0.001)


# --- misuse ---------------------------------------------------------------------------------------------------------


def test_what_following_needs_is_said_and_so_is_whatever_stops_its_thread(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InputError, match="kind must be one of"):
        opened("nsight", folder)
    with pytest.raises(InputError, match="world_size must be given to follow nccl-inspector"):
        opened("nccl-inspector", folder, world_size=None)

    class Broken:
        def read(self) -> None:
            raise ZeroDivisionError("by zero")

    source = FollowingSource(Broken())
    with pytest.raises(InputError, match=r"followed files must be readable; got ZeroDivisionError: by zero"):
        drain(source)
    source.close()
    assert caplog.messages == ["event=follower_failed"]


# --- directories as they are in the field ---------------------------------------------------------------------------


def messages(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [text for text in caplog.messages if f"event={event} " in text]


@contextmanager
def growing(path: Path) -> Iterator[None]:
    """Append to a file all the time."""
    is_over = threading.Event()

    def grow() -> None:
        while not is_over.wait(0.02):
            append(path, b"loss 0.5\n")

    path.write_bytes(b"")
    thread = threading.Thread(target=grow)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_log_that_grows_beside_traces_does_not_hold_them_up(folder: Path) -> None:
    with growing(folder / "train.log"):
        captures(folder, 0, 3)
        source = opened("kineto", folder, ends_when_idle=False, settle_s=0.3)
        drain(source, lambda polled: rows_of(polled) == 12)
        source.close()


def test_a_trace_that_never_rests_holds_others_up_for_a_while(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MOST_WAIT_S", 0.5)
    captures(folder, 0, 3)
    with growing(folder / "rank-7.json"):
        reader = NewFileReader(folder, "job", read_kineto, settle_s=0.3)
        deadline_s, piece = time.monotonic() + DEADLINE_S, None
        while piece is None and time.monotonic() < deadline_s:
            piece = reader.read()
            time.sleep(0.02)
    assert piece is not None
    assert sorted(piece.ranks) == [0, 1]


@pytest.mark.parametrize("at", [-(10**18), 10**18])
def test_a_file_of_an_older_or_later_time_is_read_when_it_is_moved_in(folder: Path, tmp_path: Path, at: int) -> None:
    captures(folder, 0, 3)
    late = next(folder.glob("rank-1*")).rename(tmp_path / "rank-1.json.gz")
    source = opened("kineto", folder, ends_when_idle=False)
    drain(source, lambda polled: rows_of(polled) == 6)
    os.utime(late, ns=(time.time_ns() + at,) * 2)
    late.rename(folder / "rank-1.json.gz")
    drain(source, lambda polled: rows_of(polled) == 6)
    source.close()


def test_a_file_that_vanishes_while_it_is_read_is_passed_over(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def read(files: list[Path], job: str) -> ImportedJob:
        if gone.exists():
            gone.unlink()
            gone.stat()
        return read_kineto(files, job)

    captures(folder, 0, 3)
    gone = folder / "rank-1.0.json.gz"
    reader = NewFileReader(folder, "job", read, settle_s=0.0)
    piece = reader.read() or reader.read()
    assert piece is not None
    assert list(piece.ranks) == [0]
    assert len(messages(caplog, "file_refused")) == 1


@pytest.mark.parametrize("kind", ["kineto", "nccl-inspector"])
def test_a_directory_that_can_t_be_listed_is_named_once_and_read_when_it_can(
    folder: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level("INFO")
    source = opened(kind, folder / "sub", ends_when_idle=False)
    drain(source, lambda _: bool(messages(caplog, "directory_unreadable")))
    made = folder / "made"
    made.mkdir()
    captures(made, 0, 3)
    for rank in (0, 1):
        (made / f"{rank}.log").write_bytes(log_of(rank, 0, 6))
    made.rename(folder / "sub")
    drain(source, lambda polled: rows_of(polled) == 12)
    source.close()
    assert messages(caplog, "directory_unreadable") == [
        f"event=directory_unreadable directory={folder / 'sub'} reason='No such file or directory'"
    ]
    assert len(messages(caplog, "directory_back")) == 1


def test_what_of_a_log_can_t_be_used_is_told_and_not_once_a_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "0.log").write_bytes(log_of(0, 0, 3) + b"half a li\n" * 250)
    (folder / "1.log").write_bytes(b"x" * (3 << 20))
    assert rows_of(drain(opened("nccl-inspector", folder))) == 3
    assert messages(caplog, "records_left_out") == [
        "event=records_left_out job=job records=250 reason='lines that are no JSON'"
    ]
    assert messages(caplog, "file_refused") == [
        f"event=file_refused reason='{folder}/1.log: must hold lines; got a longer one'"
    ]
