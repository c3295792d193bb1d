"""Kineto traces: collectives of kernels and of gloo annotations, their groups, their iterations, the last arriver."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.infra.runs.trace_reports import arrivals_of
from irregulars.messages.records import OPERATORS, UNKNOWN
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.importers.kineto_trace import EventReader
from irregulars.producers.trace.directory import Trace, read_trace

Shared = Callable[[str], Path]


def imported(source: Path, tmp_path: Path) -> Trace:
    import_trace("kineto", source, tmp_path / "out")
    trace = read_trace(tmp_path / "out")
    assert trace.rejected.count == 0
    return trace


def test_dlrm_has_its_collectives_and_names_the_last_arriver_of_each(shared_trace: Shared, tmp_path: Path) -> None:
    trace = imported(shared_trace("raw/kineto-dlrm8"), tmp_path)
    assert {rank: len(batch) for rank, batch in trace.commops.items()} == dict.fromkeys(range(8), 8)
    arrivals, names = arrivals_of(trace)
    assert names == ("default_pg",)
    assert arrivals.shares.tolist() == [8] * 8
    assert arrivals.ends_apart_ns.max() < 10_000
    # What traces/README.md says of it: all ranks leave together, and the shortest share is the late rank's.
    assert arrivals.last_rank.tolist() == [7, 7, 7, 7, 7, 5, 5, 4]
    operators = [OPERATORS[code] for code in arrivals.operator.tolist()]
    assert (operators.count("all_to_all"), operators.count("all_reduce")) == (5, 3)
    assert set(arrivals.iteration.tolist()) == {10}
    assert trace.clock == "shared"
    assert (trace.commops[0].columns["size_bytes"] > 0).sum() >= 8
    assert analyze(trace).verdicts == []


def test_gloo_annotations_find_their_groups(shared_trace: Shared, tmp_path: Path) -> None:
    trace = imported(shared_trace("raw/kineto-gloo4"), tmp_path)
    assert sorted(trace.iterations[0].columns["iteration"].tolist()) == list(range(3, 23))
    members = {c.id: (c.kind, c.ranks) for one in trace.announcements for c in one.communicators}
    assert members == {
        "default_pg": ("world", (0, 1, 2, 3)), "tp0": ("tp", (0, 1)), "tp1": ("tp", (2, 3)),
        "pp0": ("pp", (0, 2)), "pp1": ("pp", (1, 3)),
    }  # fmt: skip
    for rank, batch in trace.commops.items():
        used = [batch.header.names[code] for code in batch.columns["communicator"].tolist()]
        own = {"default_pg": 20, f"tp{rank // 2}": 20, f"pp{rank % 2}": 20}
        assert {name: used.count(name) for name in set(used)} == own
        assert set(batch.columns["peer"].tolist()) == {UNKNOWN, (rank + 2) % 4}
    arrivals, names = arrivals_of(trace)
    is_slept_in = (arrivals.communicator == names.index("tp1")) & np.isin(arrivals.iteration, range(12, 17))
    assert arrivals.last_rank[is_slept_in].tolist() == [2] * 5
    assert [n.iteration for n in analyze(trace).iterations if n.is_irregular] == [13, 14, 15, 16]


def test_traces_without_groups_count_by_stream(shared_trace: Shared, tmp_path: Path) -> None:
    folder = shared_trace("raw/hta")
    source = tmp_path / "sampled"
    source.mkdir()
    for path in folder.glob("sampled_rank-*"):
        (source / path.name).write_bytes(path.read_bytes())
    trace = imported(source, tmp_path)
    assert trace.world_size == 128
    assert {rank: len(batch) for rank, batch in trace.commops.items()} == {0: 10, 1: 10}
    assert {c.id for c in trace.announcements[0].communicators} == {"stream 84", "stream 203"}
    operators = [OPERATORS[code] for code in trace.commops[0].columns["operator"].tolist()]
    # Their kernels are all called SendRecv.
    assert {name: operators.count(name) for name in set(operators)} == {
        "all_reduce": 4,
        "all_to_all": 4,
        "all_gather": 2,
    }


def test_kernels_that_name_their_group_and_size(shared_trace: Shared, tmp_path: Path) -> None:
    trace = imported(shared_trace("raw/hta") / "nccl_data.json.gz", tmp_path)
    batch = trace.commops[0]
    assert len(batch) == 21
    assert trace.announcements[0].communicators[0].ranks == (0, 1)
    assert sorted(set(batch.columns["iteration"].tolist())) == [4, 5, 6]
    assert 2_049_000 * 4 in batch.columns["size_bytes"].tolist()


# --- made up --------------------------------------------------------------------------------------------------------

GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]},
    {"pg_name": "4", "pg_desc": "pp", "ranks": [1, 0]},
]


def kernel(ts: float, dur: float, external: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_X", "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"stream": 20, "External id": external, "correlation": external, **arguments}}  # fmt: skip


def step(number: int, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1, "ts": ts,
            "dur": dur, "args": {}}  # fmt: skip


def trace_file(folder: Path, rank: int, events: list[Any], **properties: Any) -> None:
    folder.mkdir(exist_ok=True)
    told = {"rank": rank, "world_size": 2, "pg_config": GROUPS}
    value = {"distributedInfo": told, "baseTimeNanoseconds": 10**18, **properties, "traceEvents": events}
    (folder / f"rank-{rank}.json.gz").write_bytes(gzip.compress(json.dumps(value).encode()))


def test_an_operator_belongs_to_the_step_that_issued_it(tmp_path: Path) -> None:
    """The GPU runs it when the CPU is in the next step already."""
    issued = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": 5.0, "dur": 1.0, "tid": 1,
              "args": {"External id": 3, "Collective name": "allreduce"}}  # fmt: skip
    named = {"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 10, "dtype": "Float"}
    trace_file(tmp_path / "in", 0, [step(4, 0, 10), step(5, 10, 10), issued, kernel(12.5, 3, 3, **named)])
    columns = imported(tmp_path / "in", tmp_path).commops[0].columns
    assert columns["iteration"].tolist() == [4]
    assert columns["start_ns"].tolist() == [10**18 + 12_500]
    assert (columns["elapsed_ns"].tolist(), columns["size_bytes"].tolist()) == ([3_000.0], [40.0])


def test_captures_that_begin_at_different_steps_share_their_numbers(tmp_path: Path) -> None:
    named = {"Collective name": "allreduce", "Process Group Name": "0"}
    for rank, first in ((0, 3), (1, 4)):
        events = [e for n in range(first, 7) for e in (step(n, 10 * n, 9), kernel(10 * n + 1, 2 + rank, n, **named))]
        trace_file(tmp_path / "in", rank, events)
    arrivals, _ = arrivals_of(imported(tmp_path / "in", tmp_path))
    assert arrivals.iteration.tolist() == [4, 5, 6]
    assert arrivals.last_rank.tolist() == [0, 0, 0]


def test_ends_of_a_send_are_ranks_of_the_group(tmp_path: Path) -> None:
    for rank, name, end in ((0, "send", "Dst Rank"), (1, "recv", "Src Rank")):
        named = {"Collective name": name, "Process Group Name": "4", end: rank}
        trace_file(tmp_path / "in", rank, [step(0, 0, 9), kernel(1, 2, 1, **named)])
    trace = imported(tmp_path / "in", tmp_path)
    assert [trace.commops[rank].columns["peer"].tolist() for rank in (0, 1)] == [[1], [0]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "must be a JSON object with a list 'traceEvents', or a list of events; got none"),
        ('{"traceEvents": []}', "distributedInfo.rank must be a rank, or the file's name end in one"),
        ('{"traceEvents": [], "distributedInfo": {"rank": 0}}', "traces must hold collectives"),
    ],
)
def test_what_holds_no_collectives_is_refused(tmp_path: Path, value: str, message: str) -> None:
    (tmp_path / "trace.json").write_text(value)
    with pytest.raises(InputError, match=message):
        import_trace("kineto", tmp_path / "trace.json", tmp_path / "out")


def test_other_files_beside_traces_are_passed_over(tmp_path: Path) -> None:
    named = {"Collective name": "allreduce", "Process Group Name": "0"}
    trace_file(tmp_path / "in", 0, [step(0, 0, 9), kernel(1, 2, 1, **named)])
    (tmp_path / "in" / "notes.txt").write_text("rank 3 was slow")
    assert list(imported(tmp_path / "in", tmp_path).commops) == [0]


def test_hosts_are_read_off_the_names_that_torch_gives(tmp_path: Path) -> None:
    source = tmp_path / "traces"
    source.mkdir()
    named = {"Collective name": "allreduce", "Process Group Name": "0"}
    for rank in (0, 1):
        trace_file(source, rank, [step(0, 0, 9), kernel(2, 5, 1, **named)])
    written = sorted(source.iterdir())
    for at, path in enumerate(written):
        path.rename(source / f"node-{at}_471{at}.1694128201545.pt.trace.json")
    assert [one.host for one in imported(source, tmp_path).announcements] == ["node-0", "node-1"]
    (source / "node-1_4711.1694128201545.pt.trace.json").rename(source / "rank1.json")
    assert [one.host for one in imported(source, tmp_path).announcements] == [None, None]


WANTED = (b"nccl", b"Step#")
# Texts that look like structure: quotes, brackets, backslashes, the names that are looked for.
tricky = st.text(alphabet='{}[]",:\\ abc\n_Yy\x7fé', max_size=12) | st.sampled_from(
    ["nccl", '"},{"nccl', "traceEvents", '"traceEvents": [', "\\", '\\"', "Step#4"]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | tricky,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tricky, inner, max_size=3),
    max_leaves=8,
)
events = st.lists(st.dictionaries(tricky, values, max_size=4), max_size=6)
properties = st.dictionaries(tricky.filter(lambda key: key != "traceEvents"), values, max_size=3)


def written(before: dict[str, Any], listed: list[Any], after: dict[str, Any], indent: int | None) -> bytes:
    whole = {**before, "traceEvents": listed}
    whole |= {key: value for key, value in after.items() if key not in whole}
    return json.dumps(whole, indent=indent, ensure_ascii=False).encode()


def read(value: bytes, block_bytes: int = 1 << 20) -> tuple[list[Any], dict[str, Any], int]:
    reader = EventReader(io.BytesIO(value), WANTED, block_bytes)
    found = list(reader.read())
    return found, reader.properties(), reader.events


def is_wanted(event: Any) -> bool:
    return any(text in json.dumps(event, ensure_ascii=False).encode() for text in WANTED)


@settings(max_examples=50)
@given(properties, events, properties, st.sampled_from([None, 0, 2]), st.integers(1, 200))
def test_exactly_the_wanted_events_are_found(
    before: dict[str, Any], listed: list[Any], after: dict[str, Any], indent: int | None, block_bytes: int
) -> None:
    value = written(before, listed, after, indent)
    found, rest, count = read(value, block_bytes)
    assert found == [event for event in listed if is_wanted(event)]
    assert count == len(listed)
    assert rest == json.loads(value) | {"traceEvents": []}


@settings(max_examples=40)
@given(events.filter(bool), st.data())
def test_a_file_that_was_cut_off_anywhere_is_refused(listed: list[Any], data: st.DataObject) -> None:
    value = written({"a": 1}, listed, {"b": [2]}, None)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(InputError):
        read(value[:cut], data.draw(st.integers(1, 50)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "must be a JSON object with a list 'traceEvents'"),
        (b'[{"nccl": 1}', "must be a complete trace"),
        (b'{"a": {"traceEvents": [1]}}', "must be a JSON object with a list 'traceEvents'"),
        (b'{"traceEvents": {"nccl": 1}}', "must be a JSON object with a list 'traceEvents'"),
        (b'{"traceEvents": [{"nccl": }]}', "event 1 must be JSON"),
        (b'{"traceEvents": [{"a": 1}, {"nccl": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "event 2 must be JSON"),
        (b'{"traceEvents": [] "a": 1}', "must be a complete JSON object"),
    ],
)
def test_what_is_no_trace_is_refused(value: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(value)


def test_an_event_or_a_head_without_end_is_refused_before_it_fills_the_memory() -> None:
    class Endless(io.RawIOBase):
        def __init__(self, begin: bytes, fill: bytes) -> None:
            self.begin, self.fill = begin, fill

        def read(self, size: int = -1) -> bytes:
            begin, self.begin = self.begin, b""
            return begin or self.fill * (size // len(self.fill))

    for begin, fill, most in (
        (b"{", b" ", 8 << 20),
        (b'{"traceEvents": [', b" ", 4 << 20),
        (b'{"traceEvents": [{"a": "', b"x", 4 << 20),
    ):
        reader = EventReader(Endless(begin, fill), WANTED)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"must be at most {most} bytes"):
            list(reader.read())
    reader = EventReader(Endless(b'{"traceEvents": []', b" "), WANTED)  # type: ignore[arg-type]
    list(reader.read())
    with pytest.raises(InputError, match="must be at most 8388608 bytes"):
        reader.properties()
