from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import random
import re
import shutil
import sys
import tempfile
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import OPERATOR_CODES, UNKNOWN, decode_batch, encode_batch
from irregulars.producers.publishing.batches import event_times_ns
from irregulars.producers.trace import files
from irregulars.producers.trace.directory import Trace, read_trace, trace_batches, write_trace
from irregulars.producers.trace.files import read_file
from tests.benchmarks.numerics.table import are_whole
from tests.conftest import examples
from tests.producers.trace_directories import (
    RECORDINGS,
    SCHEMAS,
    START_NS,
    assert_same,
    commop,
    job,
    table_rows,
    write_directory,
)

ENDINGS = (".parquet", ".jsonl", ".csv", ".parquet.gz", ".jsonl.gz", ".csv.gz")


@pytest.fixture(params=["gloo-slow-link", "gloo-slow-nic"])
def recording(request: pytest.FixtureRequest) -> Path:
    return RECORDINGS / str(request.param)


def write(directory: Path, trace: Trace, batches: Any = None) -> Trace:
    write_trace(directory, trace.announcements, trace_batches(trace) if batches is None else batches)
    return read_trace(directory)


def turn(number: int, at: int | None = None, **values: Any) -> dict[str, Any]:
    """One iteration of rank 0; `at`: its place in time, where that is not its number."""
    start_ns = START_NS + 10 * (number if at is None else at)
    return {"rank": 0, "iteration": number, "start_ns": start_ns, "elapsed_ns": 5, **values}


def sample(rank: int, device: str) -> dict[str, Any]:
    rates = {"tx_bytes_per_s": 1.0, "rx_bytes_per_s": 2.0}
    return {"rank": rank, "time_ns": START_NS, "path": "nic", "device": device, **rates}


# --- what is read ---------------------------------------------------------------------------------------------------


def test_a_recording_is_read_whole(recording: Path) -> None:
    trace = read_trace(recording)
    assert (trace.job, trace.world_size, trace.clock, trace.attempt) == (recording.name, 4, "shared", 0)
    assert (trace.rejected.count, trace.copies, trace.recorded_until_ns) == (0, 0, None)
    for schema in SCHEMAS:
        rows = table_rows(recording / f"{schema}.parquet")
        assert sum(len(batch) for batch in trace.batches(schema).values()) == len(rows)
    first = trace.announcements[0]
    assert (first.host, first.nic, first.gpu, first.logged_ranks) == ("node-0", "eth0", None, 4)
    assert first.sources == SCHEMAS
    assert [c.id for c in first.communicators] == ["pp0", "tp0", "world"]
    assert trace.commops[3].header.names == ("pp1", "tp1", "world")


def test_rows_keep_their_values() -> None:
    trace = read_trace(RECORDINGS / "gloo-slow-link")
    rows = [row for row in table_rows(RECORDINGS / "gloo-slow-link" / "commops.parquet") if row["rank"] == 3]
    batch = trace.commops[3]
    wanted = {
        (r["communicator"], OPERATOR_CODES[r["operator"]], r["sequence"], r["peer"] or UNKNOWN, r["start_ns"],
         float(r["elapsed_ns"]), float(r["size_bytes"]), UNKNOWN if r["iteration"] is None else r["iteration"])
        for r in rows
    }  # fmt: skip
    found = zip(*(batch.columns[name].tolist() for name in batch.columns), strict=True)
    assert {(batch.header.names[code], *rest) for code, *rest in found} == wanted


def test_batches_look_as_if_they_had_been_decoded(recording: Path) -> None:
    trace = read_trace(recording)
    for batch in itertools.chain(*(trace.batches(schema).values() for schema in SCHEMAS)):
        decoded = decode_batch(encode_batch(batch), batch.header.schema)
        assert decoded.header == batch.header
        for name, column in decoded.columns.items():
            np.testing.assert_array_equal(batch.columns[name], column)


def test_the_label_is_never_read(tmp_path: Path) -> None:
    directory = write_directory(tmp_path / "t")
    (directory / "label.json").write_text("no JSON at all")
    assert read_trace(directory).rejected.count == 0


@pytest.mark.parametrize("ending", ENDINGS)
def test_all_formats_hold_the_same(tmp_path: Path, ending: str) -> None:
    rows = {schema: table_rows(RECORDINGS / "gloo-slow-nic" / f"{schema}.parquet") for schema in SCHEMAS}
    job_object = json.loads((RECORDINGS / "gloo-slow-nic" / "job.json").read_text())
    found = read_trace(write_directory(tmp_path / "t", job_object=job_object, ending=ending, **rows))
    assert_same(found, read_trace(RECORDINGS / "gloo-slow-nic"))


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
def test_integers_with_nulls_written_as_floats_are_taken(tmp_path: Path, ending: str) -> None:
    rows = [
        commop(elapsed_ns=1e6, iteration=None, peer=None, size_bytes=None),
        commop(sequence=2.0, elapsed_ns=None, iteration=7.0),
    ]
    checksums = [4.611686018427388e18, None, 5.0, -9.1e18]
    turns = [turn(number, parameters_checksum=one) for number, one in enumerate(checksums)]
    trace = read_trace(write_directory(tmp_path / "t", rows, ending=ending, iterations=turns))
    assert trace.rejected.count == 0
    columns = trace.commops[0].columns
    assert columns["iteration"].tolist() == [UNKNOWN, 7]
    np.testing.assert_array_equal(columns["elapsed_ns"], [1e6, np.nan])
    found = trace.iterations[0].columns["parameters_checksum"].tolist()
    assert found == [UNKNOWN if one is None else int(one) for one in checksums]


def test_json_rows_may_leave_out_what_is_null(tmp_path: Path) -> None:
    row = {key: value for key, value in commop().items() if key not in ("peer", "size_bytes", "iteration")}
    batch = read_trace(write_directory(tmp_path / "t", [row], ending=".jsonl")).commops[0]
    assert batch.columns["iteration"].tolist() == [UNKNOWN]
    assert np.isnan(batch.columns["size_bytes"]).all()


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".csv"])
def test_phases_are_read_and_a_loss_that_is_nan_is_no_missing_one(tmp_path: Path, ending: str) -> None:
    names = ("loss", "not_finite", "parameters_checksum", "phase")
    marked = (np.nan, None, None, "train"), (None, 3, 1 << 60, "eval")
    given = [*marked, (np.inf, 0, None, None), (2.0, None, -1, None)]
    rows = [turn(number, **dict(zip(names, own, strict=True))) for number, own in enumerate(given)]
    trace = read_trace(write_directory(tmp_path / "t", ending=ending, iterations=rows))
    assert trace.rejected.count == 0
    columns = trace.iterations[0].columns
    np.testing.assert_array_equal(columns["loss"], [np.inf, np.nan, np.inf, 2.0])
    np.testing.assert_array_equal(columns["not_finite"], [np.nan, 3, 0, np.nan])
    assert columns["parameters_checksum"].tolist() == [UNKNOWN, 1 << 60, UNKNOWN, -1]
    assert columns["phase"].tolist() == [0, 1, 255, 255]
    assert np.isnan(columns["tokens"]).all()


@pytest.mark.parametrize(("numbers", "evaluations", "gone", "kept"), [
    ([0, 1, 2, 3, 1, 2, 3, 4], (), [1, 2, 3], [0, 4, 5, 6, 7]),  # it went back to a checkpoint
    ([0, 1, 1, 2, 2, 3], (), [], [0, 1, 2, 3, 4, 5]),  # steps and evaluations with rows of their own
    ([0, 1, 9_999, 2, 3, 3], (), [], [0, 1, 3, 4, 5, 2]),  # one wrong number
    ([0, 1, 2, 1, 3, 4], (3,), [], [0, 1, 2, 3, 4, 5]),  # an evaluation that begins behind the next step
])  # fmt: skip
def test_of_an_iteration_that_was_begun_again_the_newest_row_counts_and_the_others_are_told(
    tmp_path: Path, numbers: list[int], evaluations: tuple[int, ...], gone: list[int], kept: list[int]
) -> None:
    rows = [
        turn(number, at, rank=rank, loss=float(at), phase="eval" if at in evaluations else "train")
        for rank in range(2)
        for at, number in enumerate(numbers)
    ]
    audits = [{"rank": 0, "iteration": number, "of_rank": 0, "checksum": number} for number in (0, 2)]
    trace = read_trace(write_directory(tmp_path / "t", iterations=rows[::-1], audits=audits))
    whole = [batch.columns["loss"][are_whole(batch.columns)] for batch in trace.iterations.values()]
    assert [sorted(own.tolist()) for own in whole] == [sorted(map(float, kept))] * 2
    assert trace.rejected.count == 2 * len(gone) + (2 in gone)  # the audit of iteration 2 is of one pass or the other
    assert all("must not go back in one attempt" in one for one in trace.rejected.reasons)
    audited = trace.iterations[0].columns
    assert audited["iteration"][~are_whole(audited)].tolist() == ([0] if gone else [0, 2])


def test_device_names_are_those_of_the_rank_and_the_peer_of_a_collective_means_nothing(tmp_path: Path) -> None:
    rows = [sample(rank, device) for rank, device in ((2, "eth1"), (0, "mlx5_1"), (0, "mlx5_0"))]
    bandwidth = read_trace(write_directory(tmp_path / "t", bandwidth=rows)).bandwidth
    assert {rank: batch.header.names for rank, batch in bandwidth.items()} == {0: ("mlx5_0", "mlx5_1"), 2: ("eth1",)}
    assert bandwidth[0].columns["device"].tolist() == [0, 1]
    trace = read_trace(write_directory(tmp_path / "t", [commop(peer=-1), commop(peer=99, rank=1)]))
    assert trace.rejected.count == 0
    assert trace.commops[0].columns["peer"].tolist() == [UNKNOWN]


# --- announcements --------------------------------------------------------------------------------------------------


def test_only_ranks_with_rows_are_logged_unless_told(tmp_path: Path) -> None:
    rows = [commop(rank=2)]
    default = read_trace(write_directory(tmp_path / "a", rows, job(ranks={"3": {"host": "h"}, "2": {"gpu": 7}})))
    assert [(a.rank, a.is_logged, a.sources, a.logged_ranks) for a in default.announcements] == [
        (2, True, ("commops",), 1),
        (3, False, (), 1),
    ]
    assert default.announcements[0].gpu == 7
    told = read_trace(write_directory(tmp_path / "b", rows, job(logged_ranks=[0, 2], recorded_until_ns=START_NS)))
    assert [(a.rank, a.sources) for a in told.announcements] == [(0, ("commops",)), (2, ("commops",))]
    assert told.announcements[0].recorded_until_ns == told.recorded_until_ns == START_NS


def test_communicators_are_those_of_the_rank_in_their_order(tmp_path: Path) -> None:
    communicators = {"z": {"kind": "ep", "ranks": [3, 1]}, "a": {"kind": "unknown", "ranks": [1]}}
    rows = [commop(rank=1, communicator="z")]
    trace = read_trace(write_directory(tmp_path / "t", rows, job(communicators=communicators, attempt=2)))
    wanted = (Communicator("a", "unknown", (1,)), Communicator("z", "ep", (3, 1)))
    assert trace.announcements[0].communicators == wanted
    assert trace.announcements[0].attempt == trace.commops[1].header.attempt == trace.attempt == 2


# --- order and copies -----------------------------------------------------------------------------------------------


def test_rows_are_ordered_by_end_and_what_never_ended_comes_last(tmp_path: Path) -> None:
    rows = [
        commop(sequence=1, start_ns=START_NS, elapsed_ns=None),
        commop(sequence=2, start_ns=START_NS + 5, elapsed_ns=100),
        commop(sequence=3, start_ns=START_NS + 50, elapsed_ns=10),
        commop(sequence=4, start_ns=None, elapsed_ns=10),
    ]
    batch = read_trace(write_directory(tmp_path / "t", rows)).commops[0]
    assert batch.columns["sequence"].tolist() == [3, 2, 4, 1]
    assert batch.header.watermark_ns == START_NS + 105


def test_copies_count_once_and_an_ended_one_wins(tmp_path: Path) -> None:
    p2p = {"rank": 0, "communicator": "pp0", "peer": 2}
    rows = [
        commop(elapsed_ns=None),
        commop(elapsed_ns=70),
        commop(operator="barrier", elapsed_ns=90),  # the same collective, whatever a row calls it
        commop(**p2p, operator="send"),
        commop(**p2p, operator="recv"),  # the other direction is another operator
        commop(**p2p, operator="recv"),
    ]
    trace = read_trace(write_directory(tmp_path / "t", rows))
    assert trace.copies == 3
    assert sorted(trace.commops[0].columns["elapsed_ns"].tolist()) == [70, 1000, 1000]


@settings(
    max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(seed=st.integers(0, 2**32))
def test_order_and_copies_change_nothing(recording: Path, seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(recording / "job.json", folder)
        for schema in SCHEMAS:
            rows = pa.parquet.read_table(recording / f"{schema}.parquet")
            places = [*range(len(rows)), *chance.choices(range(len(rows)), k=chance.randrange(len(rows)))]
            chance.shuffle(places)
            pa.parquet.write_table(rows.take(places), Path(folder) / f"{schema}.parquet")
        assert_same(read_trace(folder), read_trace(recording))


OPTIONAL = st.none() | st.integers(0, 3)


@st.composite
def commop_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    pairs = [("world", rank) for rank in range(4)] + [("tp0", 0), ("tp0", 1), ("pp0", 0), ("pp0", 2)]
    rows = []
    for communicator, rank in draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=30)):
        is_p2p = communicator == "pp0"
        rows.append(
            commop(
                rank=rank, communicator=communicator,
                operator=draw(st.sampled_from(("send", "recv") if is_p2p else ("all_reduce", "barrier"))),
                sequence=draw(st.integers(0, 3)), peer=2 - rank if is_p2p else None,
                start_ns=draw(st.none() | st.integers(START_NS, START_NS + 3)), elapsed_ns=draw(OPTIONAL),
                size_bytes=draw(OPTIONAL), iteration=draw(OPTIONAL),
            )
        )  # fmt: skip
    return rows


@settings(max_examples=examples(60))
@given(rows=commop_rows(), seed=st.integers(0, 1000), ending=st.sampled_from((".jsonl", ".csv")))
def test_rows_full_of_ties_and_nulls_are_alike_in_any_order(
    rows: list[dict[str, Any]], seed: int, ending: str
) -> None:
    shuffled = rows + rows[: len(rows) // 2]
    random.Random(seed).shuffle(shuffled)
    with tempfile.TemporaryDirectory() as folder:
        expected = read_trace(write_directory(Path(folder) / "a", rows, ending=ending))
        found = read_trace(write_directory(Path(folder) / "b", shuffled, ending=ending))
        assert expected.rejected.count == found.rejected.count == 0
        assert_same(found, expected)
        assert_same(write(Path(folder) / "c", expected), expected)


# --- batches as published -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_rows", [1, 100, 1500])
def test_published_batches_hold_every_row_once_by_watermark_whose_promise_they_keep(max_rows: int) -> None:
    trace = read_trace(RECORDINGS / "gloo-slow-nic")
    rows: dict[tuple[str, int], int] = defaultdict(int)
    promised: dict[tuple[str, int], int] = {}
    watermarks = []
    for batch in trace_batches(trace, max_rows=max_rows, max_span_s=0.5):
        key, event_ns = (batch.header.schema, batch.header.rank), event_times_ns(batch)
        assert batch.header.rows_before == rows[key]
        rows[key] += len(batch)
        assert 0 < len(batch) <= max_rows
        assert event_ns.max() - event_ns.min() <= 500_000_000
        assert event_ns.min() > promised.get(key, 0)
        assert batch.header.watermark_ns is not None
        promised[key] = batch.header.watermark_ns
        watermarks.append(batch.header.watermark_ns)
    assert watermarks == sorted(watermarks)
    assert rows == {(schema, rank): len(b) for schema in SCHEMAS for rank, b in trace.batches(schema).items()}


def test_what_never_ended_is_published_last(tmp_path: Path) -> None:
    ended = [commop(sequence=i, start_ns=START_NS + i * 10**9) for i in range(3)]
    hung = [commop(rank=1, sequence=i, elapsed_ns=None) for i in range(3)]
    batches = list(trace_batches(read_trace(write_directory(tmp_path / "t", hung + ended))))
    assert [batch.header.rank for batch in batches] == [0, 0, 1]
    assert batches[-1].header.watermark_ns is None


# --- writing --------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_back(recording: Path, tmp_path: Path) -> None:
    trace = read_trace(recording)
    assert_same(write(tmp_path / "t", trace), trace)


def test_a_trace_with_little_in_it_is_read_back(tmp_path: Path) -> None:
    ranks = {"1": {"lost_rows": 3}, "3": {}}
    job_object = job(ranks=ranks, logged_ranks=[0, 1], recorded_until_ns=START_NS, attempt=4)
    trace = read_trace(write_directory(tmp_path / "a", [], job_object))
    again = write(tmp_path / "b", trace)
    assert_same(again, trace)
    assert [a.rank for a in again.announcements] == [0, 1, 3]


def test_writing_replaces_an_earlier_trace_and_refuses_announcements_of_two_jobs(tmp_path: Path) -> None:
    full = read_trace(RECORDINGS / "gloo-clean")
    write(tmp_path, full)
    few = write(tmp_path, full, list(full.commops.values()))
    assert (len(few.commops), len(few.bandwidth), len(few.iterations)) == (4, 0, 0)
    one, other = (read_trace(RECORDINGS / name).announcements for name in ("gloo-clean", "gloo-slow-nic"))
    with pytest.raises(InputError, match=r"job must be the same in all announcements; got \['gloo-clean"):
        write_trace(tmp_path, one + other, [])


# --- rows that break the contract -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "reason"), [
    ({"operator": "allreduce"}, "operator must be one of all_reduce .*; got 'allreduce'"),
    ({"communicator": "dp9"}, "communicator must be one of pp0 tp0 world; got 'dp9'"),
    ({"communicator": None}, "communicator must be one of pp0 tp0 world; got None"),
    ({"rank": 2, "communicator": "tp0"}, "rank must be a member of its communicator; got 2 .communicator 'tp0'."),
    ({"rank": 4}, "rank must be an integer from 0 to 3; got 4"),
    ({"communicator": "pp0", "operator": "send"}, "peer must be a rank of the .*; got None .communicator 'pp0'."),
    ({"communicator": "pp0", "operator": "recv", "peer": 6}, "peer must be .*; got 6 .*"),
    ({"elapsed_ns": -5}, "elapsed_ns must be an integer from 0 to .*; got -5"),
    ({"sequence": None}, "sequence must be an integer .*; got None"),
    ({"sequence": 2**32}, "sequence must be an integer from 0 to 4294967295; got 4294967296"),
    ({"sequence": 1.5}, "sequence must be an integer .*; got 1.5"),
])  # fmt: skip
@pytest.mark.parametrize("ending", [".parquet", ".jsonl"])
def test_a_bad_row_is_left_out_and_explained(
    tmp_path: Path, changes: dict[str, Any], reason: str, ending: str
) -> None:
    good = [commop(rank=rank, sequence=9) for rank in range(4)]
    rows = [*good, commop(**changes), commop(sequence=10)]
    trace = read_trace(write_directory(tmp_path / "t", rows, ending=ending))
    assert trace.rejected.count == 1
    (text,) = trace.rejected.reasons
    file = tmp_path / "t" / f"commops{ending}"
    assert text.startswith(f"{file}: row 5: ")
    assert re.search(rf"row 5: {reason}$", text), text
    assert trace.commops[0].columns["sequence"].tolist() == [9, 10]


@pytest.mark.parametrize(("ending", "line", "reason"), [
    (".jsonl", '{"rank": 0, ', "must be JSON; got"),
    (".jsonl", "[1, 2]", "must be a JSON object; got [1, 2]"),
    (".jsonl", json.dumps(commop(sequence="7")), "sequence must be an integer; got '7'"),
    (".jsonl", json.dumps(commop(sequence=10**400)), "sequence must be an integer from 0 to 4294967295; got inf"),
    (".jsonl", json.dumps(commop(rank=True)), "rank must be an integer; got True"),
    (".jsonl", json.dumps(commop(communicator="\ud800")), "communicator must be one of pp0 tp0 world; got '?'"),
    (".jsonl", "[" * 100_000, "must be JSON; got"),
    (".csv", "0,world,all_reduce,x,,1,1,1,1", "sequence must be an integer; got 'x'"),
    (".csv", "0,world,all_reduce,1", "must have 9 values; got 4"),
    (".csv", "0,world,all_reduce,1,,1,1e400,1,1",
     "elapsed_ns must be an integer from 0 to 9007199254740991; got inf"),
])  # fmt: skip
def test_an_unreadable_row_is_left_out_and_explained(tmp_path: Path, ending: str, line: str, reason: str) -> None:
    directory = write_directory(tmp_path / "t", [commop(), commop(sequence=2)], ending=ending)
    with (directory / f"commops{ending}").open("a") as file:
        file.write("\n" + line + "\n")
    trace = read_trace(directory)
    assert trace.rejected.count == 1
    assert trace.rejected.reasons[0].startswith(f"{directory}/commops{ending}: row 3: {reason}")
    assert "\n" not in trace.rejected.reasons[0]
    assert len(trace.commops[0]) == 2


def test_bytes_that_are_no_text_reject_their_row(tmp_path: Path) -> None:
    for ending in (".jsonl", ".csv"):
        directory = write_directory(tmp_path / ending, [commop(), commop(sequence=2)], ending=ending)
        file = directory / f"commops{ending}"
        file.write_bytes(file.read_bytes().replace(b"all_reduce", b"all_\xff", 1))
        trace = read_trace(directory)
        assert (trace.rejected.count, len(trace.commops[0])) == (1, 1)


def test_many_bad_rows_are_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    rows = [commop(sequence=i, operator="nap" if i % 2 else "barrier") for i in range(100)]
    rejected = read_trace(write_directory(tmp_path / "t", rows)).rejected
    assert rejected.count == 50
    assert [text.split(": ")[1] for text in rejected.reasons] == [f"row {2 * n}" for n in range(1, 11)]


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_a_file_whose_end_is_cut_takes_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Arrow refuses the file: it is read row by row, of which Python's objects are many times as large."""
    monkeypatch.setattr(files, "_CHUNK_ROWS", 500)
    rows = 10_300
    write_directory(tmp_path / "t", [commop(sequence=n, start_ns=2**53 + n) for n in range(rows)], ending=ending)
    path = tmp_path / "t" / f"commops{ending}"
    path.write_bytes(path.read_bytes()[:-9])
    read = read_file(path, "commops")  # the first time Arrow imports other packages, which take memory too
    tracemalloc.start()
    try:
        read_file(path, "commops")
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
    assert read.columns["sequence"].to_pylist() == list(range(rows - 1))
    assert read.columns["start_ns"].to_pylist() == [2**53 + n for n in range(rows - 1)]
    assert read.row_numbers is not None
    assert read.row_numbers.tolist() == list(range(1, rows))
    assert [number for number, _ in read.unreadable] == [rows]


@pytest.mark.parametrize(("schema", "ending", "change", "reason"), [
    ("bandwidth", ".parquet", {"path": "usb"}, "path must be one of nic pcie nvlink; got 'usb'"),
    ("bandwidth", ".parquet", {"device": None}, "device must be a text; got None"),
    ("iterations", ".parquet", {"phase": "nap"}, "phase must be one of train eval checkpoint"),
    ("iterations", ".parquet", {"elapsed_ns": None}, "elapsed_ns must be an integer from 0"),
    ("iterations", ".parquet", {"rank": 7}, "rank must be an integer from 0 to 3; got 7"),
    *(
        ("bandwidth", ending, {"rx_bytes_per_s": rate}, "rx_bytes_per_s must be a rate from 0 to 1e+15; got")
        for ending, rate in (
            (".parquet", -1.0), (".jsonl", -1e-300), (".csv", 1e300), (".parquet", np.inf), (".csv", -np.inf),
        )
    ),
])  # fmt: skip
def test_a_bad_row_of_bandwidth_or_iterations_is_left_out_and_explained(
    tmp_path: Path, schema: str, ending: str, change: dict[str, Any], reason: str
) -> None:
    good = turn(1, phase="train") if schema == "iterations" else sample(0, "eth0")
    trace = read_trace(write_directory(tmp_path / "t", ending=ending, **{schema: [good, good | change]}))
    assert trace.rejected.count == 1
    assert f"{schema}{ending}: row 2: {reason}" in trace.rejected.reasons[0]
    assert len(trace.batches(schema)[0]) == 1


# --- directories that can't be used ---------------------------------------------------------------------------------


def assert_refused(directory: Path, text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(directory)
    assert text in str(caught.value)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)


GROUPS = (
    ({"kind": "xp", "ranks": [0]}, "kind must be one of world, dp, tp, pp, ep, cp, unknown; got 'xp'"),
    ({"kind": "dp"}, "ranks must be a list of integers that is not empty; got none"),
    ({"kind": "dp", "ranks": []}, "ranks must be a list"),
    ({"kind": "dp", "ranks": [0, 4]}, "ranks must be a list of distinct ranks below 4; got 4"),
    ({"kind": "dp", "ranks": [1, 1]}, "ranks must be a list of distinct ranks below 4; got [1, 1]"),
)


@pytest.mark.parametrize(("changes", "text"), [
    ({"job": ...}, "job must be text of 1 to 4096 characters that begins with no zero byte; got none"),
    ({"world_size": 1 << 40}, "world_size must be an integer from 1 to 4194304; got 1099511627776"),
    ({"clock": "utc"}, "clock must be one of shared, per_host; got 'utc'"),
    ({"communicators": []}, "communicators must be an object; got []"),
    ({"ranks": {"4": {}}}, "ranks must be keyed by ranks below 4, as text; got '4'"),
    ({"ranks": {"01": {}}}, "ranks must be keyed by ranks below 4, as text; got '01'"),
    ({"ranks": {"1": "node"}}, "ranks['1'] must be an object; got 'node'"),
    ({"ranks": {"1": {"host": 3}}}, "ranks['1'].host must be text that is not empty; got 3"),
    ({"ranks": {"1": {"lost_rows": -1}}}, "ranks['1'].lost_rows must be an integer from 0 to 281474976710656"),
    ({"logged_ranks": [0, 9]}, "logged_ranks must be a list of distinct ranks below 4; got 9"),
    ({"recorded_until_ns": 1.5}, "recorded_until_ns must be an integer of at least 0; got 1.5"),
    *(({"communicators": {"a": group}}, f"communicators['a'].{text}") for group, text in GROUPS),
])  # fmt: skip
def test_a_bad_job_file_is_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    assert_refused(write_directory(tmp_path / "t", job_object=job(**changes)), f"job.json: {text}")


def _remove(name: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).unlink()


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_bytes(content)


def _truncate(directory: Path) -> None:
    file = directory / "commops.parquet"
    file.write_bytes(file.read_bytes()[:-100])


def _with(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    def rewrite(directory: Path) -> None:
        file = directory / "commops.parquet"
        pa.parquet.write_table(change(pa.parquet.read_table(file)), file)

    return rewrite


_drop_column = _with(lambda table: table.drop_columns(["elapsed_ns"]))
_text_for_numbers = _with(lambda table: table.set_column(0, "rank", pa.array(["0"] * len(table))))
_float_times = _with(lambda table: table.set_column(5, "start_ns", pa.array([1.0] * len(table))))


@pytest.mark.parametrize(("spoil", "text"), [
    (_remove("job.json"), "job.json: must exist, every trace directory has one; got no such file"),
    (_remove("commops.parquet"), "must hold commops.parquet, commops.jsonl or commops.csv; got none of them"),
    (_truncate, "commops.parquet: must be a complete parquet file; got"),
    (_write("commops.parquet", b""), "commops.parquet: must be a complete parquet file; got"),
    (_write("job.json", b'{"job": '), "job.json: must be JSON; got Expecting value"),
    (_write("job.json", b"\xff\xfe\xfd"), "job.json: must be JSON; got"),
    (_write("job.json", b""), "job.json: must be JSON; got Expecting value"),
    (_write("job.json", b"[" * 100_000), "job.json: must be JSON; got"),
    (_write("job.json", b"[1]"), "job.json: must be a JSON object; got [1]"),
    (_write("job.json", b'{"job": "a", "job": "b"}'), "job.json: must be JSON; got the key 'job' twice in one "),
    (_drop_column, "commops.parquet: columns must include 'elapsed_ns'; got"),
    (_text_for_numbers, "commops.parquet: column 'rank' must be of integers; got string"),
    (_float_times, "commops.parquet: column 'start_ns' must be of integers; got double"),
    (lambda d: (d / "commops.csv").write_text("rank"), "must hold one file of commops; got commops.parquet, com"),
    (lambda d: (d / "bandwidth.csv").write_text("rank,path"), "bandwidth.csv: columns must include 'time_ns'"),
    (lambda d: (d / "bandwidth.csv").write_text(""), "bandwidth.csv: columns must include 'rank'; got ''"),
    (lambda d: (d / "bandwidth.csv").write_text("rank,rank"), "bandwidth.csv: columns must have distinct names"),
    (lambda d: (d / "iterations.jsonl").write_text('{"rank": 1}'), "iterations.jsonl: columns must include 'it"),
    (lambda d: (d / "iterations.csv.gz").write_text("rank"), "iterations.csv.gz: must be a complete csv file"),
    (lambda d: (d / "iterations.parquet").mkdir(), "iterations.parquet: must be a complete parquet file; got"),
])  # fmt: skip
def test_an_unusable_directory_is_refused(tmp_path: Path, spoil: Callable[[Path], object], text: str) -> None:
    directory = write_directory(tmp_path / "t")
    spoil(directory)
    assert_refused(directory, text)


@pytest.mark.parametrize("ending", [".jsonl.gz", ".csv.gz", ".parquet.gz"])
def test_a_truncated_gzip_file_is_refused(tmp_path: Path, ending: str) -> None:
    directory = write_directory(tmp_path / "t", [commop(sequence=i) for i in range(500)], ending=ending)
    file = directory / f"commops{ending}"
    file.write_bytes(file.read_bytes()[:-40])
    assert_refused(directory, f"commops{ending}: must be a complete {ending.split('.')[1]} file; got")


def count_calls(directory: Path) -> int:
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        read_trace(directory)
    finally:
        sys.setprofile(None)
    return count


def test_no_python_runs_per_row_where_rows_are_good(tmp_path: Path) -> None:
    rows = [commop(sequence=i, start_ns=START_NS + i) for i in range(5_000)]
    many, few = write_directory(tmp_path / "many", rows), write_directory(tmp_path / "few", rows[:50])
    read_trace(few)  # imports
    assert count_calls(many) < 1.1 * count_calls(few)


@pytest.mark.parametrize("name", ["job.json", "commops.jsonl", "bandwidth.csv.gz"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    directory = write_directory(tmp_path / "trace")
    if name != "bandwidth.csv.gz":
        (directory / ("job.json" if name == "job.json" else "commops.parquet")).unlink()
    os.mkfifo(directory / name)
    with pytest.raises(InputError, match=rf"{name}: must be a file; got a pipe"):
        read_trace(directory)


def test_a_directory_that_can_t_be_reached_or_holds_parts_of_a_killed_run_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, found in (("nowhere", "nothing"), ("a" * 5000, "File name too long"), ("loop/x", "Too many levels")):
        assert_refused(tmp_path / name, f"must be a trace directory; got {found}")
    (tmp_path / "trace dir" / "parts").mkdir(parents=True)
    with pytest.raises(InputError, match=r"got parts/.*torch_hook\.trace_parts '.*trace dir'$"):
        read_trace(tmp_path / "trace dir")


def test_a_small_parquet_of_very_many_rows_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "t") / "commops.parquet"
    part = pa.parquet.read_table(path).take(np.zeros(1_000_000, dtype=np.int64))
    with pa.parquet.ParquetWriter(path, part.schema, compression="zstd") as writer:
        for _ in range(20):
            writer.write_table(part)
    assert path.stat().st_size < 5_000_000
    before_bytes = pa.default_memory_pool().max_memory()
    rule = "must have at most 8 rows a byte, or 16777216 in all"
    assert_refused(tmp_path / "t", f"commops.parquet: {rule}; got 20000000")
    assert pa.default_memory_pool().max_memory() < before_bytes + (256 << 20)


FREE_BYTES = 32 << 20
"""Instead of a gigabyte, which takes a while to unpack."""


def test_a_packed_file_that_becomes_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FREE_BYTES", FREE_BYTES)
    path = tmp_path / "commops.jsonl.gz"
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as stream:
        stream.write(b"")
        for _ in range((FREE_BYTES >> 20) + 1):
            stream.write(b" " * (1 << 20))
    path.write_bytes(packed.getvalue())
    for name in ("commops.jsonl.gz", "commops.csv.gz", "commops.parquet.gz"):
        path = path.rename(tmp_path / name)
        with pytest.raises(InputError, match=f"{name}: must unpack to at most 200 times its size"):
            read_file(path, "commops")
