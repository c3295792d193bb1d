"""A hang in flight recorder dumps: who caused it, not who waits."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.producers.importers import flight_recorder, importing
from irregulars.producers.importers.flight_recorder import job_of_dumps, load_plain, read_dump
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.trace.directory import read_trace

Shared = Callable[[str], Path]
WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
PAIRS = {"1": {"name": "1", "desc": "pp", "ranks": [2, 0, 1]}}


def entry(number: int, state: str = "scheduled", name: str = "nccl:all_reduce", **more: Any) -> dict[str, Any]:
    return {
        "record_id": number, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": name,
        "time_created_ns": 1_700_000_000_000_000_000 + number, "duration_ms": None,
        "input_sizes": [[4, 8]], "input_dtypes": ["Float"], "state": state, "retired": False,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "is_p2p": False, **more,
    }  # fmt: skip


def dump(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": "2.10", "pg_config": {**WORLD, **PAIRS}, "pg_status": {}, "entries": list(entries), **more}


def verdicts(tmp_path: Path, *dumps: dict[str, Any]) -> list[Verdict]:
    source = tmp_path / "dumps"
    source.mkdir()
    for rank, one in enumerate(dumps):
        (source / f"trace_{rank}.json").write_text(json.dumps(one))
    import_trace("flight-recorder", source, tmp_path / "out")
    return analyze(read_trace(tmp_path / "out")).verdicts


@pytest.mark.parametrize("name", ["gpu_error_1st", "lock_gil_2nd"])
def test_both_injected_ranks_are_the_first_suspects(shared_trace: Shared, tmp_path: Path, name: str) -> None:
    folder = shared_trace(f"raw/flight-recorder/{name}")
    listed = re.search(r"Fault ranks: \[(.*)\]", (folder / "fault_injection.log").read_text())
    assert listed is not None
    import_trace("flight-recorder", folder, tmp_path / "out")
    (verdict,) = analyze(read_trace(tmp_path / "out")).verdicts
    assert verdict.kind == "hang"
    assert verdict.suspects[0].ranks == tuple(map(int, listed[1].split(",")))


def test_json_says_the_same_as_a_pickle(shared_trace: Shared, folder: Path, tmp_path: Path) -> None:
    source = shared_trace("raw/flight-recorder/lock_gil_2nd")
    for path in source.glob("_dump_*"):
        (folder / f"{path.name}.json").write_text(json.dumps(as_json(load_plain(path.read_bytes()))))
    import_trace("flight-recorder", source, tmp_path / "a", "job")
    import_trace("flight-recorder", folder, tmp_path / "b", "job")
    assert (tmp_path / "a" / "job.json").read_bytes() == (tmp_path / "b" / "job.json").read_bytes()
    assert (tmp_path / "a" / "commops.parquet").read_bytes() == (tmp_path / "b" / "commops.parquet").read_bytes()


def as_json(value: dict[str, Any]) -> dict[str, Any]:
    """Write a dump as PyTorch does in JSON: 0 for times that are not set, texts in the status, no empty list."""
    for one in value["entries"]:
        for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            one[name] = one[name] or 0
    for status in value["pg_status"].values():
        status.update({name: str(number) for name, number in status.items()})
    if not value["entries"]:
        del value["entries"]
    return value


@pytest.mark.parametrize("is_list", [True, False])
def test_dumps_of_pytorch_2_2_and_2_3_have_no_groups(tmp_path: Path, is_list: bool) -> None:
    def made(rank: int) -> Any:
        entries = [
            {"pg_id": 0, "seq_id": number, "profiling_name": "nccl:all_reduce", "input_sizes": [[4]],
             "time_created_us": 1_700_000_000_000_000, "state": "completed" if number < 4 else "scheduled"}
            for number in range(1, 4 if rank == 1 else 5)
        ]  # fmt: skip
        return entries if is_list else {"version": "1.5", "entries": entries}

    (verdict,) = verdicts(tmp_path, *map(made, range(3)))
    assert (verdict.kind, verdict.suspects[0].ranks) == ("hang", (1,))


def test_a_job_that_does_not_hang_gives_no_verdict(tmp_path: Path) -> None:
    assert verdicts(tmp_path, *(dump(entry(7, "completed", duration_ms=2.0)) for _ in range(3))) == []


def rounds(rank: int, states: list[tuple[str, str]], first: int = 0, collective: int | None = None) -> dict[str, Any]:
    """Return the dump of an end of a pipeline 0 -> 1: each round a batch goes forth and a gradient comes back.

    `first`: number of its first entry. `collective`: place of a collective that has ended; None: there is none.
    """
    names = ("nccl:send 0->1", "nccl:recv 0<-1") if rank == 0 else ("nccl:recv 1<-0", "nccl:send 1->0")
    calls = [(name, state) for own in states for name, state in zip(names, own, strict=True) if state]
    more = {"is_p2p": True, "collective_seq_id": 0}
    made = [entry(n, state, name, p2p_seq_id=n + 1, **more) for n, (name, state) in enumerate(calls, first)]
    if collective is not None:
        made.insert(collective, entry(9, "completed"))
    return dump(*made)


DONE, SENT = ("completed", "completed"), ("completed", "scheduled")
BOTH_OPEN, OPEN = ("scheduled", "scheduled"), ("scheduled", "")
STATUS = {"0": {"last_completed_collective": "7"}, "1": {"last_completed_collective": -1}}


@pytest.mark.parametrize(("dumps", "ranks", "words"), [
    ([dump(entry(7)), dump(entry(6, "completed", duration_ms=1.5)), dump(entry(7))], (1,),
     "2 ranks wait in operators that never ended; rank 1 never arrived in all_reduce 7 on default_pg"),
    # Rank 1 has nothing to show but its status: it has completed what rank 2 never came out of.
    ([dump(entry(7, "completed")), dump(pg_status=STATUS), dump(entry(7))], (2,),
     "ended on other ranks and never on rank 2"),
    ([dump(entry(7))] * 3, (), "ranks 0, 1, 2 stand in all_reduce 7 on default_pg, and nobody is missing"),
    # NCCL ends a small send before it is received: the sender has no open one from which to count.
    ([rounds(0, [DONE, DONE, SENT]), rounds(1, [DONE, DONE, BOTH_OPEN])], (1,), ""),
    ([rounds(0, [DONE, DONE, SENT]), rounds(1, [DONE, DONE, OPEN])], (1,), ""),
    ([rounds(0, [DONE, DONE, DONE]), rounds(1, [DONE, DONE, DONE, OPEN])], (0,), ""),
    # One has lost its first entries: both count from the first open one.
    ([rounds(0, [DONE, SENT], first=4), rounds(1, [DONE, DONE, DONE, ("completed", "")])], (1,), ""),
    # Each ring begins at another call: both count from the newest collective that both have ended. Counted from
    # the open ones each end waited for a recv of the other.
    ([rounds(0, [DONE, DONE, SENT], 40, 2), rounds(1, [DONE, DONE, DONE, BOTH_OPEN], 70, 4)], (1,), ""),
    ([rounds(0, [DONE, DONE, SENT], 40, 2), rounds(1, [DONE, DONE, DONE, OPEN], 70, 4)], (1,), ""),
])  # fmt: skip
def test_the_rank_that_is_waited_for_is_named_if_it_is_known(
    tmp_path: Path, dumps: list[dict[str, Any]], ranks: tuple[int, ...], words: str
) -> None:
    (verdict,) = verdicts(tmp_path, *dumps)
    assert (verdict.kind, tuple(rank for one in verdict.suspects[:1] for rank in one.ranks)) == ("hang", ranks)
    assert words in verdict.evidence


def test_the_dump_of_another_rank_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = Mock(wraps=flight_recorder.begin_of_both)
    monkeypatch.setattr(flight_recorder, "begin_of_both", searched)
    job_of_dumps([read_dump(rounds(rank, [DONE, DONE]), rank) for rank in (0, 1)], "j")
    assert searched.call_count == 2  # by each rank, though they are a pair both ways


def test_equal_groups_of_all_dumps_are_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dump lists all ranks of the job, and 10,000 such lists take 3 GB."""
    paths = [tmp_path / f"trace_{rank}.json" for rank in range(3)]
    for path in paths:
        path.write_text(json.dumps(dump(entry(7))))
    joined = Mock(wraps=job_of_dumps)
    monkeypatch.setattr(importing, "job_of_dumps", joined)
    importing.read_hang({"flight-recorder": paths}, "job")
    (dumps, _) = joined.call_args.args
    assert len({id(group) for one in dumps for group in one.groups.values()}) == 2


def test_ends_of_a_send_are_ranks_of_the_group() -> None:
    """Group rank 0 of ``pp`` is global rank 2; the recorder's numbers differ at the two ends."""
    pair = {"is_p2p": True, "process_group": ["1", "pp"]}
    sender = dump(entry(3, name="nccl:send 0->1", p2p_seq_id=11, **pair))
    receiver = dump(entry(3, name="nccl:recv 1<-0", p2p_seq_id=4, **pair))
    job = job_of_dumps([read_dump(sender, 2), read_dump(receiver, 0)], "job")
    rows = {batch.header.rank: batch.columns for batch in job.batches()}
    assert (rows[2]["peer"][0], rows[0]["peer"][0]) == (0, 2)
    assert rows[2]["sequence"][0] == rows[0]["sequence"][0]
    assert rows[2]["size_bytes"][0] == 128


def test_operators_issued_as_one_have_the_state_of_the_whole() -> None:
    pair = {"is_p2p": True, "process_group": ["1", "pp"], "p2p_seq_id": 5}
    parts = [entry(1, name="nccl:send 0->1", **pair), entry(1, name="nccl:recv 0<-1", **pair)]
    ended = entry(1, "completed", "nccl:coalesced", time_discovered_completed_ns=1_700_000_000_000_009_000, **pair)
    (batch,) = job_of_dumps([read_dump(dump(*parts, ended), 2)], "job").batches()
    assert batch.columns["elapsed_ns"].tolist() == [8_999, 8_999]
    assert not list(job_of_dumps([read_dump(dump(*parts), 2)], "job").batches())


@pytest.mark.parametrize(("value", "message"), [
    ([], "must be a flight recorder dump with a text under 'version'; got a list"),
    ({"version": "3.0"}, "version must be 1.x or 2.x; got '3.0'"),
    ({"version": "2.9"}, "pg_config must be an object of process groups; got a NoneType"),
    ({"version": "2.9", "pg_config": {"0": {"ranks": "[0, x]"}}}, "ranks must be the ranks of a group; got none"),
    ({"version": "2.9", "pg_config": {}, "entries": 3}, "entries must be a list; got a int"),
])  # fmt: skip
def test_what_is_no_dump_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        read_dump(value, 0)


def test_entries_that_make_no_sense_are_left_out_and_a_dump_without_groups_holds_nothing() -> None:
    bad = [3, {}, entry(1, name="x"), entry(-1), entry(1, process_group=["9", ""]), entry(1, name="nccl:send 0->9")]
    read = read_dump(dump(entry(1), *bad), 0)  # type: ignore[arg-type]
    assert (len(read.entries), read.skipped) == (1, len(bad))
    job = job_of_dumps([read_dump({"version": "2.9", "pg_config": {}}, 3)], "job")
    assert (job.world_size, len(job.ranks[3])) == (4, 0)


scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary()
)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(plain, st.sampled_from([3, 4, 5]))
def test_plain_data_reads_as_it_was_written(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == value


class Evil:
    """Would make a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    value = pickle.dumps({"version": "2.9", "entries": [Evil(tmp_path / "made")]}, protocol)
    with pytest.raises(InputError, match="which builds more than plain data"):
        load_plain(value)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("value", [{1, 2}, 1j, bytearray(b"a"), 2**64])
def test_everything_else_than_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(InputError):
        load_plain(pickle.dumps(value, 5))


@pytest.mark.parametrize("head", [b"\x80\x02}()q\0", b"\x80\x04}()\x94"])
@pytest.mark.parametrize(
    "link", [b"%s%s\x86", b"%s%sK\1\x87", b"(%s%sNNNNt", b"%sX\1\0\0\0a%s\x87", b"h\0%s%s\x80\2\x86"]
)
def test_a_key_that_takes_for_ever_or_is_too_deep_to_hash_is_refused(head: bytes, link: bytes) -> None:
    places = [b"h%c" % place for place in range(40)]
    puts = [b"q%c" % (place + 1) if head[1] == 2 else b"\x94" for place in range(40)]
    chain = b"".join(link % (place, place) + put for place, put in zip(places, puts, strict=True))
    deep = b"\x80\2})" + b"\x85" * 400_000
    for value in (head + chain + b"Nu.", deep + b"I1\ns.", deep + b"K\1s."):
        with pytest.raises(InputError, match="a key that is a tuple"):
            load_plain(value)


@pytest.mark.parametrize("protocol", range(6))
def test_a_tuple_may_stand_in_several_places(protocol: int) -> None:
    value = {"entries": [{"process_group": ("0", "default_pg")}] * 3, "t": [("0", "default_pg")] * 2}
    assert load_plain(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize(
    "value",
    [b"", b"\x80", b"\x80\x02", b"\x80\x02.", b"\x80\x02}", b"(.", b"0.", b"\x80\x02h\x05.",
     b"\x80\x02}(X\x01\x00\x00\x00au.", b"\x80\x02]}e.",
     b"\x80\x02(K\x01r\xff\xff\xff\xffN.", b"\x8a\xff" + b"\x01" * 255 + b"."],
)  # fmt: skip
def test_broken_pickles_are_refused(value: bytes) -> None:
    with pytest.raises(InputError, match="must be a complete pickle of plain data"):
        load_plain(value)


@pytest.mark.parametrize("value", [
    b"\x80\x02Nr\xff\xff\xff\xff.",  # a place in memory far out
    b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # bytes that are not there
    b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",  # a bytearray of a tebibyte
])  # fmt: skip
def test_a_few_bytes_never_take_much_memory(value: bytes) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(InputError):
            assert load_plain(value) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(value: bytes) -> None:
    with contextlib.suppress(InputError):
        load_plain(b"\x80\x02" + value)
