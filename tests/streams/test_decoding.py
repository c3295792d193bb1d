"""Whatever bytes come, decoding gives a record or says why not: nothing else, since it would stop every worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from irregulars.errors import RecordError
from irregulars.kafka.topics import rank_key
from irregulars.messages.announcements import (
    Announcement,
    Communicator,
    Heartbeat,
    SourceProgress,
    decode_announcement,
    decode_heartbeat,
    encode_announcement,
    encode_heartbeat,
)
from irregulars.messages.evidence import CLASS_COLUMNS, Membership, decode_evidence, encode_evidence
from irregulars.messages.records import COMMOPS, SCHEMAS, VERSION, decode_batch
from tests.streams.evidence_rows import evidence_of

ANNOUNCEMENT = json.loads(
    encode_announcement(Announcement("j", 0, 1, 4, 4, (Communicator("w", "world", (0, 1, 2, 3)),), host="node-0"))
)
HEARTBEAT = json.loads(encode_heartbeat(Heartbeat("j", 0, 1, {"commops": SourceProgress(3, 5)})))
(MEMBERS,) = (json.loads(value) for value in encode_evidence([Membership("j", 0, 1, reason="finished")], "j"))
(EVIDENCE,) = encode_evidence([evidence_of(1, {0: 5.0, 1: 5.0})], "j")
HEADER = {
    "schema": "commops", "version": VERSION, "job": "j", "attempt": 0, "rank": 1, "rows_before": 0,
    "watermark_ns": 5, "names": ["w"],
}  # fmt: skip
TOO_LARGE = 1 << 70
HALF_A_SIGN = "\ud800"


def one_run(first: int, past: int, step: int) -> list[dict[str, Any]]:
    return [{"id": "w", "kind": "world", "ranks": [[first, past, step]]}]


BAD_ANNOUNCEMENTS = [
    {"rank": -1}, {"rank": 1 << 40}, {"rank": True}, {"attempt": TOO_LARGE}, {"attempt": None}, {"world_size": 0},
    {"world_size": TOO_LARGE}, {"logged_ranks": -1}, {"job": HALF_A_SIGN}, {"job": ""}, {"host": 5},
    {"host": HALF_A_SIGN}, {"nic": ["a"]}, {"switch": {}}, {"gpu": "x"}, {"gpu": TOO_LARGE}, {"lost_rows": -5},
    {"lost_rows": "x"}, {"recorded_until_ns": TOO_LARGE}, {"is_logged": "no"}, {"clock": 3}, {"sources": "commops"},
    {"sources": [["commops"]]}, {"communicators": "w"}, {"communicators": [None]},
    {"communicators": one_run(-5, 1, 1)}, {"communicators": one_run(0, 1, 0)},
    {"communicators": one_run(0, TOO_LARGE, 1)}, {"communicators": one_run(0, 1 << 27, 1)},
    {"job": "\0position"},
]  # fmt: skip
BAD_HEARTBEATS = [
    {"rank": -1}, {"attempt": TOO_LARGE}, {"state": 1}, {"reason": 5}, {"sources": []}, {"sources": {"commops": 1}},
    {"sources": {"commops": {"rows": TOO_LARGE, "watermark_ns": None}}},
    {"sources": {"commops": {"rows": 1, "watermark_ns": 1.5}}},
]  # fmt: skip
BAD_HEADERS = [
    {"rank": -1}, {"attempt": TOO_LARGE}, {"rows_before": -1}, {"watermark_ns": TOO_LARGE}, {"watermark_ns": "x"},
    {"names": "w"}, {"names": [None]}, {"names": []}, {"job": HALF_A_SIGN}, {"job": "\0piece/"}, {"version": 2},
    {"schema": "bandwidth"},
]  # fmt: skip


def as_json(values: Any) -> bytes:
    return json.dumps(values).encode()


@pytest.mark.parametrize("change", BAD_ANNOUNCEMENTS, ids=str)
def test_an_announcement_that_breaks_its_schema_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        decode_announcement(as_json(ANNOUNCEMENT | change))


@pytest.mark.parametrize("change", BAD_HEARTBEATS, ids=str)
def test_a_heartbeat_that_breaks_its_schema_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        decode_heartbeat(as_json(HEARTBEAT | change))


@pytest.mark.parametrize("name", ["job", "attempt", "rank", "world_size", "logged_ranks", "communicators", "sources"])
def test_what_an_announcement_lacks_is_named(name: str) -> None:
    values = {key: value for key, value in ANNOUNCEMENT.items() if key != name}
    with pytest.raises(RecordError, match=name):
        decode_announcement(as_json(values))


def arrow_message(header: Any, *batches: pa.RecordBatch, schema: pa.Schema = COMMOPS) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.with_metadata({"irregulars": as_json(header)})) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata({"irregulars": as_json(header)}))
    return bytes(sink.getvalue())


def commops(**changes: Any) -> pa.RecordBatch:
    row = dict.fromkeys(COMMOPS.names, 0) | changes
    arrays = [pa.array([row[field.name]], field.type) for field in COMMOPS]
    return pa.RecordBatch.from_arrays(arrays, schema=COMMOPS)


def test_a_sound_batch_is_read() -> None:
    assert len(decode_batch(arrow_message(HEADER, commops()), "commops")) == 1


@pytest.mark.parametrize("change", BAD_HEADERS, ids=str)
def test_a_batch_whose_header_breaks_its_schema_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        decode_batch(arrow_message(HEADER | change, commops()), "commops")


@pytest.mark.parametrize("name", ["communicator", "operator", "sequence"])
def test_a_batch_with_nulls_where_none_may_be_is_refused(name: str) -> None:
    with pytest.raises(RecordError, match=f"'{name}' must be known"):
        decode_batch(arrow_message(HEADER, commops(**{name: None})), "commops")


def test_a_second_batch_is_refused_and_not_dropped() -> None:
    with pytest.raises(RecordError, match="one batch; got more"):
        decode_batch(arrow_message(HEADER, commops(), commops()), "commops")


def evidence_message(changes: Mapping[str, pa.Array]) -> bytes:
    with pa.ipc.open_stream(EVIDENCE) as reader:
        batch = reader.read_next_batch()
    columns = {name: batch.column(name) for name in batch.schema.names} | dict(changes)
    changed = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, changed.schema.with_metadata(batch.schema.metadata)) as writer:
        writer.write_batch(changed.replace_schema_metadata(batch.schema.metadata))
    return bytes(sink.getvalue())


BAD_COLUMNS = {
    "rank": [pa.array([-1, 0], pa.int32()), pa.array([None, 0], pa.int32()), pa.array(["a", "b"])],
    "partition": [pa.array([0, -1], pa.int32())],
    "attempt": [pa.array([0, None], pa.int64()), pa.array([0, (1 << 63) - 1], pa.int64())],
    "offsets": [pa.array([0, 0], pa.int64()), pa.array([[-1], []]), pa.array([[None], []], pa.list_(pa.int64()))],
    "class_count": [pa.array([[1], []], pa.list_(pa.int32())), pa.array([None, []], pa.list_(pa.int32()))],
}


@pytest.mark.parametrize(("name", "column"), [(n, c) for n, columns in BAD_COLUMNS.items() for c in columns])
def test_evidence_that_breaks_its_schema_is_refused(name: str, column: pa.Array) -> None:
    with pytest.raises(RecordError):
        decode_evidence(evidence_message({name: column}))


def test_evidence_whose_names_lack_a_communicator_is_refused() -> None:
    columns = {f"class_{name}": pa.array([[0], []], pa.list_(kind)) for name, kind in CLASS_COLUMNS.items()}
    with pytest.raises(RecordError, match="class_communicator must be from 0 to -1"):
        decode_evidence(evidence_message(columns))


BAD_MEMBERS = [
    {"rank": -1}, {"attempt": "x"}, {"reason": 5}, {"announcement": {}}, {"announcement": ANNOUNCEMENT | {"rank": 2}},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD_MEMBERS, ids=str)
def test_a_membership_that_breaks_its_schema_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(RecordError):
        decode_evidence(as_json(MEMBERS | {"members": [MEMBERS["members"][0] | change]}))


def test_brackets_without_end_are_refused() -> None:
    for decode in (decode_announcement, decode_heartbeat, decode_evidence):
        with pytest.raises(RecordError):
            decode(b'{"a":' + b"[" * 200_000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_any_value_in_any_field_gives_a_record_or_the_reason(data: st.DataObject) -> None:
    record, decode = data.draw(
        st.sampled_from(
            [(ANNOUNCEMENT, decode_announcement), (HEARTBEAT, decode_heartbeat), (MEMBERS, decode_evidence)]
        )
    )
    value = as_json(record | {data.draw(st.sampled_from(sorted(record))): data.draw(JSON)})
    try:
        found = decode(value)
    except RecordError:
        return
    if isinstance(found, Announcement | Heartbeat):
        assert rank_key(found.job, found.rank)


@pytest.mark.parametrize("first", [b"\x80", b"\xff"])
@pytest.mark.parametrize("name", COMMOPS.names)
def test_a_column_whose_name_is_no_text_is_refused(name: str, first: bytes) -> None:
    value = arrow_message(HEADER, commops())
    assert value.count(name.encode()) == 1
    with pytest.raises(RecordError, match="got UnicodeDecodeError"):
        decode_batch(value.replace(name.encode(), first + name.encode()[1:]), "commops")


BATCH = arrow_message(HEADER, commops())


@given(
    whole=st.sampled_from([EVIDENCE, BATCH]),
    damage=st.lists(st.tuples(st.integers(0, len(EVIDENCE) - 1), st.integers(0, 255)), max_size=4),
    length=st.none() | st.integers(0, len(EVIDENCE)),
)
@example(whole=BATCH, damage=[(404, 0x80)], length=None)  # a column's name that is no text
@example(whole=BATCH, damage=[(720, 0x80)], length=None)
def test_damage_gives_a_record_or_a_reason(whole: bytes, damage: list[tuple[int, int]], length: int | None) -> None:
    value = np.frombuffer(whole, np.uint8).copy()
    for at, byte in damage:
        value[at % len(value)] = byte
    damaged = value.tobytes()[:length]
    for schema in (*SCHEMAS, "evidence"):
        try:
            decode_evidence(damaged) if schema == "evidence" else decode_batch(damaged, schema)
        except RecordError:
            continue
