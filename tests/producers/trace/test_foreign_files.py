from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.producers.importers.importing import KINDS
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.foreign_files import kind_of_files, kinds_of_file
from tests.conftest import RECORDINGS
from tests.producers.importers.test_hostile_files import VALID, dump_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_analyses_files_of_another_tool_is_told_how_to_import_them(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "of my job"
    folder.mkdir()
    (folder / "notes.txt").write_text("the night of the 21st\n")
    file = folder / "rank_0"
    file.write_bytes(VALID[kind]())
    with pytest.raises(InputError, match=rf"job\.json: must exist.*; run: irregulars import {kind} '.*/of my job' "):
        read_trace(folder)
    with pytest.raises(InputError, match=rf"must be a trace directory; got a file\. It looks like {kind}; run: "):
        read_trace(file)
    file.write_bytes(gzip.compress(file.read_bytes()))
    assert kind_of_files(folder) == kind


def test_dumps_as_json_are_told_from_traces_that_name_the_same_groups(tmp_path: Path) -> None:
    (tmp_path / "rank_0.json").write_text(json.dumps(pickle.loads(dump_bytes())))
    assert kind_of_files(tmp_path) == "flight-recorder"


def test_nothing_is_made_of_what_is_not_known(tmp_path: Path) -> None:
    assert kind_of_files(tmp_path) is None
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b\x00")
    (tmp_path / "other.json").write_text('{"version": 1, "traces": []}')
    assert kind_of_files(tmp_path) is None
    with pytest.raises(InputError, match=r"got no such file$"):
        read_trace(tmp_path)
    assert kind_of_files(RECORDINGS / "gloo-clean") is None


@pytest.mark.parametrize(("content", "tool"), [
    (b'[{"name": "AllReduce", "cat": "COLL", "ph": "b", "args": {"CommHash": 7}}]', "NCCL's example"),
    (b'{"rocprofiler-sdk-tool":[{"metadata":{}}]}', "rocprofv3"),
    (b'{"schema": "1.0.1", "nodes": [{"name": "[pytorch|profiler|execution_trace|thread]"}]}', "PyTorch"),
    (b'[{"name": "aten::add", "ph": "X", "pid": "CPU functions"}]', "torch.autograd.profiler"),
    (b'{"traceEvents": [{"ph": "M", "args": {"name": "XLA Ops"}}]}', "XLA"),
    (b"SQLite format 3\0rest", "Nsight Systems"),
])  # fmt: skip
def test_files_of_other_tools_are_refused_by_their_name(tmp_path: Path, content: bytes, tool: str) -> None:
    (tmp_path / "trace").write_bytes(content)
    with pytest.raises(InputError, match=tool):
        kinds_of_file(tmp_path / "trace")
