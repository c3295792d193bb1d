"""What a message would take is known before it is taken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from irregulars.errors import RecordError
from irregulars.messages.arrow_limits import MAX_BATCH_ROWS, MAX_BODY_BYTES, require_bounded
from irregulars.messages.records import COMMOPS, decode_batch, encode_arrow

HEADER = {"job": "j", "attempt": 0, "rank": 1, "rows_before": 0, "watermark_ns": 5, "names": ["w"]}
MOST_BYTES = 200 << 20
"""That decoding may take; the bomb holds a gigabyte."""


def message(rows: int, compression: str | None, schema: pa.Schema = COMMOPS) -> bytes:
    kinds = [np.dtype(field.type.to_pandas_dtype()) for field in schema]
    arrays = [pa.array(np.zeros(rows, kind), field.type) for kind, field in zip(kinds, schema, strict=True)]
    options = pa.ipc.IpcWriteOptions(compression=compression)
    return encode_arrow("commops", HEADER, pa.RecordBatch.from_arrays(arrays, schema=schema), options)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_sound_message_passes(compression: str | None) -> None:
    assert len(decode_batch(message(1500, compression), "commops")) == 1500


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_message_of_more_rows_or_wider_columns_than_a_worker_holds_is_refused(compression: str) -> None:
    with pytest.raises(RecordError, match=f"must hold at most {MAX_BATCH_ROWS} rows; got {MAX_BATCH_ROWS + 1}"):
        decode_batch(message(MAX_BATCH_ROWS + 1, compression), "commops")
    schema = pa.schema([pa.field("x", pa.list_(pa.float64()))])
    wide = pa.array([np.zeros(MAX_BODY_BYTES // 8 + 1)], schema.field(0).type)
    value = encode_arrow(
        "commops",
        HEADER,
        pa.RecordBatch.from_arrays([wide], schema=schema),
        pa.ipc.IpcWriteOptions(compression=compression),
    )
    assert len(value) < MAX_BODY_BYTES / 50
    with pytest.raises(RecordError, match="bytes decompressed"):
        require_bounded(value)


@pytest.mark.parametrize("topic", ["commops", "evidence"])
def test_a_bomb_takes_no_memory(tmp_path: Path, topic: str) -> None:
    """In a process of its own, whose largest size says what decoding took."""
    (tmp_path / "bomb").write_bytes(message(40_000_000, "zstd"))
    program = f"""
import resource, sys
from irregulars.errors import RecordError
from irregulars.messages.evidence import decode_evidence
from irregulars.messages.records import decode_batch
value = open(sys.argv[1], "rb").read()
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
try:
    decode_evidence(value) if {topic!r} == "evidence" else decode_batch(value, {topic!r})
except RecordError as error:
    print(error)
now = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
print(now - before)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "bomb")]
    said, taken = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    assert "must hold at most" in said
    assert int(taken) < MOST_BYTES


def test_any_cut_and_any_metadata_are_refused_or_pass_in_bounded_time() -> None:
    whole = bytearray(message(3, "zstd"))
    for at in range(len(whole)):
        for damage in (0x00, 0x7F, 0xFF):
            spoilt = bytearray(whole)
            spoilt[at] = damage
            try:
                decode_batch(bytes(spoilt), "commops")
            except RecordError:
                continue
    for length in range(len(whole) - 8):  # without its last eight bytes, the mark of the end, a stream is whole
        with pytest.raises(RecordError):
            decode_batch(bytes(whole[:length]), "commops")


def test_a_stream_of_countless_messages_is_refused() -> None:
    value = message(0, None)
    end = json.dumps(HEADER)  # any bytes behind the end of a stream are no part of it
    assert len(decode_batch(value + end.encode(), "commops")) == 0
    batches = [pa.RecordBatch.from_arrays([pa.array([], f.type) for f in COMMOPS], schema=COMMOPS)] * 100
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, COMMOPS) as writer:
        for batch in batches:
            writer.write_batch(batch)
    with pytest.raises(RecordError, match="at most 64 messages"):
        require_bounded(bytes(sink.getvalue()))
