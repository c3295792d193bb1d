"""Iterations of real recordings, after their marks were removed; those of the shared folder where it is there."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import Numbered, job_columns, number_iterations
from tests.producers.iteration_inference.made_up_jobs import border_errors, taken

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared" / "traces"
OURS = sorted((ROOT / "tests" / "recordings").glob("gloo-*"))
RECORDINGS = [*OURS, *(path for path in (SHARED / "bytedance-ar",) if path.is_dir())]


def without_marks(trace: Trace) -> Trace:
    commops = {
        rank: Batch(b.header, {**b.columns, "iteration": np.full(len(b), UNKNOWN)})
        for rank, b in trace.commops.items()
    }
    return replace(trace, commops=commops, iterations={})


def marks_of(trace: Trace) -> np.ndarray:
    return np.concatenate([batch.columns["iteration"] for batch in trace.commops.values()])


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_borders_are_within_one_operator_of_the_truth_and_the_same_on_all_ranks(path: Path) -> None:
    trace = read_trace(path)
    numbered = number_iterations(without_marks(trace))
    columns = job_columns(trace)[0]
    found = marks_of(numbered.trace)
    assert border_errors(columns, found).max() <= 1
    assert numbered.report is not None
    assert f"inferred {len(np.unique(found[found != UNKNOWN]))} " in numbered.report
    columns = taken({**columns, "iteration": found}, columns["peer"] == UNKNOWN)  # collectives
    share = columns["communicator"] * (1 << 32) + columns["sequence"]
    order = np.argsort(share, kind="stable")
    is_same = np.diff(share[order]) == 0
    assert is_same.any()
    assert (np.diff(columns["iteration"][order])[is_same] == 0).all()


def test_a_trace_with_marks_stays_as_it_is_and_one_without_a_period_says_so() -> None:
    trace = read_trace(OURS[0])
    numbered = number_iterations(trace)
    assert numbered.trace is trace
    assert numbered.report is None
    only_times = replace(without_marks(trace), iterations=trace.iterations)
    assert number_iterations(only_times).trace is only_times
    trace = without_marks(read_trace(OURS[0]))
    few = {rank: Batch(b.header, {n: c[:6] for n, c in b.columns.items()}) for rank, b in trace.commops.items()}
    numbered = number_iterations(replace(trace, commops=few))
    assert numbered.report is not None
    assert "no period was found" in numbered.report
    assert (marks_of(numbered.trace) == UNKNOWN).all()


def test_iterations_that_operators_alone_mark_last_from_end_to_end_where_ranks_mostly_work(
    tmp_path: Path,
) -> None:
    """Two ranks work for 40 ms and meet for 2 ms, from iteration 7 on; in the twelfth they hang."""
    world = {"world": {"kind": "world", "ranks": [0, 1]}}
    job = {"job": "j", "world_size": 2, "clock": "shared", "communicators": world}
    (tmp_path / "job.json").write_text(json.dumps(job))

    def numbered(step: int = 1, meets_ms: int = 2) -> Numbered:
        lines = ["rank,communicator,operator,sequence,peer,start_ns,elapsed_ns,size_bytes,iteration"]
        for rank, at in product(range(2), range(12)):
            took_ns = "" if at == 11 else str(meets_ms * 10**6)
            begin_ns = 10**18 + (42 * at + 42 - meets_ms) * 10**6
            lines.append(f"{rank},world,all_reduce,{at},,{begin_ns},{took_ns},1024,{7 + step * at}")
        (tmp_path / "commops.csv").write_text("\n".join(lines))
        return number_iterations(read_trace(tmp_path))

    found = numbered()
    assert found.report is not None
    rows = found.trace.iterations[1].columns
    assert rows["iteration"].tolist() == list(range(7, 18))
    assert rows["elapsed_ns"].tolist() == [2e6] + 10 * [42e6]
    # Where every tenth is profiled, or ranks communicate most of the time, nothing is added
    assert not numbered(step=10).trace.iterations
    assert not numbered(meets_ms=40).trace.iterations
