"""Files that would fill the memory are refused in one line, and before they do."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from irregulars.errors import InputError
from irregulars.producers.trace import files
from irregulars.producers.trace.files import read_file

ROOT = Path(__file__).resolve().parents[3]
MOST_BYTES = 1 << 30
"""Of the process that refuses: Python, numpy and pyarrow take 200 MB."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    recording = ROOT / "tests" / "recordings" / "gloo-clean"
    (tmp_path / "trace").mkdir()
    shutil.copy(recording / "job.json", tmp_path / "trace")
    return tmp_path / "trace"


MEASURED = """import resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Runs a command, and says with which status it ended and how many KiB it took at most."""


def test_a_small_parquet_of_very_many_rows_is_refused_in_one_line(trace: Path) -> None:
    path = trace / "commops.parquet"
    part = 1_000_000
    schema = pa.schema(
        [("rank", pa.int32()), ("communicator", pa.string()), ("operator", pa.string()), ("sequence", pa.int64()),
         ("peer", pa.int64()), ("start_ns", pa.int64()), ("elapsed_ns", pa.int64()), ("size_bytes", pa.int64()),
         ("iteration", pa.int64())]
    )  # fmt: skip
    texts = {"communicator": "world", "operator": "all_reduce"}
    columns = [
        pa.DictionaryArray.from_arrays(np.zeros(part, np.int32), [texts[field.name]]).cast(field.type)
        if field.name in texts
        else pa.array(np.zeros(part, np.int64)).cast(field.type)
        for field in schema
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    with pa.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(20_000_000 // part):
            writer.write_batch(batch, row_group_size=part)
    assert (trace / "commops.parquet").stat().st_size < 5_000_000
    # By a small process in between: ours has had other children, and is large itself when it forks.
    command = [sys.executable, "-c", MEASURED, sys.executable, "-m", "irregulars", "analyze", str(trace), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    status, most_kib = map(int, done.stdout.split())
    assert status == 2, done
    (line,) = done.stderr.splitlines()
    assert "commops.parquet: must have at most 8 rows a byte" in line
    assert "20000000 rows" in line
    assert most_kib * 1024 < MOST_BYTES


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
