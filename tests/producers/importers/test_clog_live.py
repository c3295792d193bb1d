"""clog's logs, followed while they grow: the same rows as of an import, beside other files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from irregulars.messages.announcements import Announcement
from irregulars.producers.importers import clog_lines as lines_of_clog
from irregulars.producers.importers import following
from irregulars.producers.importers.clog_job import LiveClog
from irregulars.producers.importers.following import LogReader, follow
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.publishing.sources import Record
from irregulars.producers.trace.directory import read_trace
from tests.producers.importers.clog_lines import BASE_MS, event, header, log, new_comm, signature, split, steady
from tests.producers.importers.test_following import append, column, drain, messages, rows_of

NAMES = ("operator", "sequence", "start_ns", "elapsed_ns", "size_bytes")


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
    for name in NAMES:
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
