"""The committed recordings: complete, readable, and small."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from irregulars.producers.trace.directory import read_trace
from tests.benchmarks.recordings.__main__ import BENCH, judged, label_of, recordings_in

DIRECTORIES = recordings_in(BENCH)
KINDS = {"slow_rank", "slow_nic", "slow_link", "slow_communicator", "slow_stage", "imbalance", "hang", "none"}
FILES = {"bandwidth.parquet", "commops.parquet", "iterations.parquet", "job.json", "label.json"}
LABEL = {
    "kind", "device", "rank", "peer", "ranks", "host", "switch", "direction", "injected", "iterations", "spans",
    "communicator", "world_size", "dims", "job", "regular_ms", "regular_p90_ms", "window_ms", "inflation", "hard",
}  # fmt: skip
KEYS = ("communicator", "source", "destination", "sequence")
MOST_BYTES = 30_000_000
CLOCKS_NS = 100_000  # what the contract allows shared clocks to be apart


def test_the_set_is_whole_and_small() -> None:
    assert len(DIRECTORIES) >= 48
    assert sum(file.stat().st_size for path in DIRECTORIES for file in path.iterdir()) <= MOST_BYTES
    kinds = Counter(str(label_of(path)["kind"]) for path in DIRECTORIES)
    assert kinds["none"] >= 12
    assert kinds.keys() == KINDS


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_a_recording_is_complete(directory: Path) -> None:
    label = label_of(directory)
    assert {path.name for path in directory.iterdir()} == FILES
    assert label.keys() == LABEL
    trace = read_trace(directory)
    assert (trace.rejected.count, trace.copies, trace.clock) == (0, 0, "shared")
    assert trace.job == directory.name
    world = list(range(label["world_size"]))
    assert sorted(trace.commops) == sorted(trace.iterations) == sorted(trace.bandwidth) == world
    assert [one.rank for one in trace.announcements] == world
    assert all(None not in (one.host, one.gpu, one.nic, one.switch) for one in trace.announcements)
    assert {one.lost_rows for one in trace.announcements} == {0}
    named = [one.rank for one in trace.announcements if label["host"] == one.host]
    assert label["device"] != "host" or named == label["ranks"]
    # A NIC is read each 10 ms.
    steps_ms = [np.diff(batch.columns["time_ns"]) / 1e6 for batch in trace.bandwidth.values()]
    assert all(9 < np.median(steps) < 12 for steps in steps_ms)
    if label["kind"] != "hang":
        assert {tuple(batch.columns["iteration"].tolist()) for batch in trace.iterations.values()} == {
            tuple(range(70))
        }
        # Every collective has all its ranks and every send its recv; all ended, and none came before it was sent.
        communicators = json.loads((directory / "job.json").read_text(encoding="utf-8"))["communicators"]
        table = pq.read_table(directory / "commops.parquet")
        assert table["elapsed_ns"].null_count == table["start_ns"].null_count == 0
        collectives = table.filter(pc.is_null(table["peer"])).group_by(["communicator", "sequence"])
        found = collectives.aggregate([("rank", "count_distinct"), ("rank", "count")]).to_pydict()
        sizes = [len(communicators[name]["ranks"]) for name in found["communicator"]]
        assert found["rank_count_distinct"] == found["rank_count"] == sizes
        sent, received = (_one_way(table, *names) for names in (("send", "rank", "peer"), ("recv", "peer", "rank")))
        assert all(sent[name].equals(received[name]) for name in KEYS)
        arrived_ns = pc.add(received["start_ns"], received["elapsed_ns"])
        assert pc.all(pc.greater_equal(pc.add(arrived_ns, CLOCKS_NS), sent["start_ns"])).as_py() is not False


def _one_way(table: pa.Table, operator: str, source: str, destination: str) -> pa.Table:
    rows = table.filter(pc.equal(table["operator"], operator))
    names = {source: "source", destination: "destination"}
    rows = rows.rename_columns([names.get(name, name) for name in rows.column_names])
    return rows.sort_by([(name, "ascending") for name in KEYS])


def test_wrong_is_who_accuses_somebody_else_and_missed_who_accuses_nobody() -> None:
    row = judged(BENCH / "ddp8-loader")
    assert (row.outcome, row.kind) == ("right", "slow_rank")
    silent, healthy = replace(row.score, is_top1=False, promised=None), replace(row.truth, kind=None)
    assert replace(row, score=silent).outcome == "missed"
    assert replace(row, score=replace(silent, promised=0.9)).outcome == "wrong"
    assert replace(row, score=silent, truth=healthy).outcome == "right"
    assert replace(row, truth=healthy).outcome == "wrong"
