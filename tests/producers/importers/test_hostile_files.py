"""Truncated, empty, hostile and random files: one line that names the file, no code run, no memory filled."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import pickle
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.producers.importers.importing import KINDS, import_trace
from irregulars.producers.trace.directory import read_trace
from tests.conftest import examples
from tests.producers.importers.inspector_lines import collective, context, lines, marker, pair
from tests.producers.importers.played_server import PlayedJob
from tests.producers.importers.test_flight_recorder import dump, entry
from tests.producers.importers.test_kineto_trace import GROUPS, NAMED, kernel, step
from tests.producers.importers.test_watchdog import caught

pytestmark = pytest.mark.slow

MOST_BYTES = 256 << 20
BOMB_BYTES = 384 << 20


def dump_bytes() -> bytes:
    return pickle.dumps(dump(entry(3), entry(3)), 2)


def trace_bytes() -> bytes:
    told = {"rank": 0, "world_size": 2, "pg_config": GROUPS}
    events = [step(3, 1.5, 9.0), kernel(2.25, 3.5, 4, **NAMED)]
    return json.dumps({"distributedInfo": told, "traceEvents": events, "traceName": "x"}).encode()


def log_bytes() -> bytes:
    whole = [
        {**context(0), **collective(1, 5, 50)},
        {**context(0), **collective(2, 5)},
        {**context(0), **pair("Send", 1)},
    ]
    return lines(*whole, marker(0, 1), collective(3, 4))


def answer_bytes() -> bytes:
    job = PlayedJob(world_size=2)
    job.launch(job.world, but=[1])
    return job.answer() * 2


def watchdog_bytes() -> bytes:
    lines = [f"[rank{rank}]:[E] {caught(rank)}" for rank in (0, 2)]
    return "\n".join(["epoch 1", *lines, ""]).encode()


VALID: dict[str, Callable[[], bytes]] = {
    "flight-recorder": dump_bytes, "kineto": trace_bytes, "nccl-inspector": log_bytes,
    "nccl-ras": answer_bytes, "watchdog": watchdog_bytes,
}  # fmt: skip
NAMES = {
    "flight-recorder": "_dump_0", "kineto": "rank-0.json", "nccl-inspector": "host-pid1.log",
    "nccl-ras": "ras.json", "watchdog": "train.log",
}  # fmt: skip


def try_import(folder: Path, kind: str, value: bytes) -> str | None:
    """Import a file; the error's text, or None where it could be read, and then analysed."""
    (folder / NAMES[kind]).write_bytes(value)
    try:
        import_trace(kind, folder / NAMES[kind], folder / "out")
    except InputError as error:
        text = " ".join(str(error).split())
        assert NAMES[kind] in text or "must hold" in text or "dumps" in text, text
        assert len(text) < 600
        return text
    analyze(read_trace(folder / "out"))
    return None


def test_every_kind_is_tried_and_a_path_that_no_system_takes_is_told_in_one_line(tmp_path: Path) -> None:
    assert VALID.keys() == NAMES.keys() == KINDS.keys()
    with pytest.raises(InputError, match=r"got: File name too long"):
        import_trace("kineto", tmp_path / ("a" * 5000), tmp_path / "out")


@pytest.mark.parametrize("kind", VALID)
def test_a_good_file_is_read_packed_or_behind_the_mark_that_windows_puts_first(tmp_path: Path, kind: str) -> None:
    value = VALID[kind]()
    text = json.dumps(pickle.loads(value)).encode() if kind == "flight-recorder" else value
    for one in (value, gzip.compress(value), codecs.BOM_UTF8 + text):
        assert try_import(tmp_path, kind, one) is None


@pytest.mark.parametrize("kind", VALID)
def test_empty_and_foreign_files_are_refused(tmp_path: Path, kind: str) -> None:
    for value in (b"", b"\n", b"\0" * 100, b"\xff\xfe", b"{}", b"[]", b"null", b"1e999", b"{" * 50_000):
        assert try_import(tmp_path, kind, value) is not None, value[:9]


def test_a_dump_that_was_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    value = dump_bytes()
    for cut in range(0, len(value) - 1, 7):
        assert try_import(tmp_path, "flight-recorder", value[:cut]) is not None


@pytest.mark.parametrize("kind", [kind for kind in VALID if kind != "watchdog"])
def test_a_packed_file_that_was_cut_off_is_refused(tmp_path: Path, kind: str) -> None:
    packed = gzip.compress(VALID[kind]())
    for cut in range(3, len(packed) - 1, 11):
        assert try_import(tmp_path, kind, packed[:cut]) is not None


@pytest.mark.parametrize("kind", VALID)
@settings(
    max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_any_change_of_its_bytes_is_read_or_refused(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    value = bytearray(VALID[kind]())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(value) - 1))
        value[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=8))
    try_import(tmp_path, kind, bytes(value))


odd = st.none() | st.booleans() | st.text(max_size=3) | st.sampled_from(
    [-1, 0, 2**31, 2**62, 2**63 - 1, -(2**62), 1e300, -0.5, [], {}, [[]], {"a": []}, [2**62] * 3, "9" * 300, "[0, 0]"]
)  # fmt: skip


def with_odd(value: Any, data: st.DataObject) -> Any:
    """Put odd values of any type in some places of a plain value."""
    if data.draw(st.integers(0, 12)) == 0:
        return data.draw(odd)
    if isinstance(value, dict):
        return {key: with_odd(one, data) for key, one in value.items()}
    if isinstance(value, list):
        return [with_odd(one, data) for one in value]
    return value


@pytest.mark.parametrize("kind", VALID)
@settings(
    max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_values_of_any_type_and_size_are_read_or_refused(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    value = VALID[kind]()
    if kind == "nccl-inspector":
        made = lines(*(with_odd(json.loads(line), data) for line in value.splitlines()))
    elif kind == "kineto":
        made = json.dumps(with_odd(json.loads(value), data)).encode()
    elif kind == "watchdog":
        odd = st.sampled_from([b"", b"-1", b"0", b"7", b"9" * 30])
        made = re.sub(rb"\d+", lambda _: data.draw(odd), value)
    elif kind == "nccl-ras":
        made = json.dumps(with_odd(json.loads(value[: len(value) // 2]), data), indent=2).encode() + b"\n" + value
    else:
        made = pickle.dumps(with_odd(pickle.loads(value), data), data.draw(st.sampled_from([2, 4])))
    try_import(tmp_path, kind, made)


def bomb(begin: bytes, fill: bytes) -> bytes:
    """A file of many packed parts, which are one when it is unpacked."""
    return gzip.compress(begin) + gzip.compress(fill * (1 << 20)) * (BOMB_BYTES >> 20)


@pytest.mark.parametrize(("kind", "begin", "fill"), [
    ("flight-recorder", b"{", b" "), ("flight-recorder", b"\x80\x02", b"N"), ("kineto", b"", b" "),
    ("kineto", b'{"traceEvents": [{"a": "', b"x"), ("kineto", b'{"traceEvents": [', b"["),
    ("nccl-inspector", b"", b"x"),
])  # fmt: skip
def test_a_bomb_does_not_fill_the_memory(tmp_path: Path, kind: str, begin: bytes, fill: bytes) -> None:
    value = bomb(begin, fill)
    assert len(value) < BOMB_BYTES / 100
    tracemalloc.start()
    try:
        assert try_import(tmp_path, kind, value) is not None
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_a_billion_references_do_not_fill_the_memory(tmp_path: Path) -> None:
    value: Any = [1]
    for _ in range(40):
        value = [value] * 10
    groups = {"0": {"name": "0", "desc": "x", "ranks": [0, 1]}}
    one = {
        "process_group": ["0"],
        "collective_seq_id": 3,
        **dict.fromkeys(("profiling_name", "input_sizes", "state"), value),
    }
    whole = {"version": "2.9", "pg_config": groups, "entries": [one], "pg_status": value}
    try_import(tmp_path, "flight-recorder", pickle.dumps(whole, 2))


@pytest.mark.parametrize("kind", VALID)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / NAMES[kind])
    with pytest.raises(InputError, match=r"must be a file or a directory of files; got a pipe"):
        import_trace(kind, tmp_path / NAMES[kind], tmp_path / "out")


def test_many_lists_before_the_events_do_not_hold_up_the_reader(tmp_path: Path) -> None:
    """Each of them was once looked at with all that stands before it: hours."""
    lists = b"".join(b',"%d":[]' % n for n in range(400_000))
    value = b'{"x": ["traceEvents"]' + lists + b", " + trace_bytes()[1:]
    assert try_import(tmp_path, "kineto", value) is None


@pytest.mark.parametrize(("found", "put", "reason"), [
    (b'"ts": 2.25', b'"ts": "2.25"', "1 x collectives without a usable time"),
    (b'"dur": 3.5', b'"dur": -3.5', "1 x collectives without a usable time"),
    (b'"distributedInfo"', b'"baseTimeNanoseconds": 4611686018427387903, "distributedInfo"', "2 x with impossible"),
    (b'"rank": 0', b'"rank": 7', "1 x collectives whose process group nothing tells"),
    (b'"cat": "kernel"', b'"cat": "k"', "none of them"),
])  # fmt: skip
def test_a_trace_of_which_nothing_can_be_used_says_why(tmp_path: Path, found: bytes, put: bytes, reason: str) -> None:
    assert found in trace_bytes()
    text = try_import(tmp_path, "kineto", trace_bytes().replace(found, put))
    assert text is not None
    assert f"got {reason}" in text
