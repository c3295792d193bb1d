"""The committed recordings of wrong numbers: complete, readable, small, and true to their labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from irregulars.messages.records import PHASES, UNKNOWN
from irregulars.producers.trace.directory import Trace, read_trace
from tests.benchmarks.numerics.faults import BEFORE, PLACES
from tests.benchmarks.numerics.table import are_whole
from tests.conftest import RECORDINGS

DIRECTORIES = sorted(path for path in (RECORDINGS / "numerics").iterdir() if path.is_dir())
FILES = {"audits.parquet", "commops.parquet", "iterations.parquet", "job.json", "label.json"}
MOST_BYTES = 3_000_000
RANKS = 4


def label_of(directory: Path) -> dict[str, Any]:
    label: dict[str, Any] = json.loads((directory / "label.json").read_text())
    return label


def columns_of(trace: Trace, name: str) -> np.ndarray:
    rows = [trace.iterations[rank].columns for rank in range(RANKS)]
    return np.array([own[name][are_whole(own)] for own in rows])


def odd_votes(trace: Trace) -> dict[int, set[int]]:
    """Ranks whose checksum of an audit is not that of most, by iteration."""
    votes: dict[int, dict[int, int]] = {}
    for rank in range(RANKS):
        own = trace.iterations[rank].columns
        for place in np.flatnonzero(own["audit_of_rank"] != UNKNOWN).tolist():
            votes.setdefault(int(own["iteration"][place]), {})[rank] = int(own["audit_checksum"][place])
    found = {}
    for number, own in votes.items():
        most = max(own.values(), key=list(own.values()).count)
        found[number] = {rank for rank, checksum in own.items() if checksum != most}
    return found


def test_the_set_is_whole_and_small() -> None:
    assert len(DIRECTORIES) >= 12
    assert sum(file.stat().st_size for path in DIRECTORIES for file in path.iterdir()) <= MOST_BYTES
    labels = [label_of(path) for path in DIRECTORIES]
    assert {label["kind"] for label in labels} == {"corruption", "loss_spike", "none"}
    assert {label["place"] for label in labels if label["kind"] == "corruption"} == set(PLACES)
    assert {label["dtype"] for label in labels} == {"float32", "bfloat16"}


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_a_recording_is_complete(directory: Path) -> None:
    assert {path.name for path in directory.iterdir()} == FILES
    trace = read_trace(directory)
    assert (trace.rejected.count, trace.copies, trace.clock, trace.world_size) == (0, 0, "shared", RANKS)
    assert [one.replicas for one in trace.announcements] == [tuple(range(RANKS))] * RANKS
    numbers = columns_of(trace, "iteration")
    assert (numbers == np.arange(numbers.shape[1])).all()
    assert (np.diff(columns_of(trace, "start_ns")) > 0).all()
    for name in ("loss", "grad_norm", "local_grad_norm", "update_rms", "not_finite"):
        assert not np.isnan(columns_of(trace, name)).any(), name
    assert (columns_of(trace, "parameters_checksum") >= 0).all()
    audited = columns_of(trace, "phase")[0] == PHASES.index("eval")
    assert audited.sum() >= len(odd_votes(trace)) >= numbers.shape[1] // 15 - 1


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_nothing_differs_before_the_fault_or_without_one(directory: Path) -> None:
    label, trace = label_of(directory), read_trace(directory)
    first = label["iteration"] if label["kind"] == "corruption" else None
    checksums = columns_of(trace, "parameters_checksum")[:, :first]
    assert (checksums == checksums[0]).all()
    assert not any(odd for number, odd in odd_votes(trace).items() if first is None or number < first)
    assert (columns_of(trace, "not_finite")[:, :first] == 0).all()


@pytest.mark.parametrize("directory", DIRECTORIES, ids=lambda path: path.name)
def test_before_the_reduction_replicas_stay_equal_and_audits_name_a_rank_that_errs_again(directory: Path) -> None:
    label, trace = label_of(directory), read_trace(directory)
    if label["kind"] != "corruption" or label["place"] not in BEFORE:
        return
    checksums = columns_of(trace, "parameters_checksum")
    assert (checksums == checksums[0]).all()  # all replicas take in the same wrong gradient
    found = [odd for odd in odd_votes(trace).values() if odd]
    assert all(odd == {label["rank"]} for odd in found)
    assert label["repeats"] or not found
