"""Recordings to try changes on, and what two of them have in common."""

from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from irregulars.messages.records import SCHEMAS
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.presets import with_preset
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import simulate_trace
from tests.benchmarks.metamorphic.changed import Changed, Given
from tests.benchmarks.metamorphic.changes import CHANGES
from tests.benchmarks.metamorphic.recording import Recording, read_recording
from tests.conftest import RECORDINGS

JOBS: dict[str, tuple[dict[str, Any], str]] = {
    "three": ({"dp": 3, "pp": 2, "tp": 2}, "slow_rank:rank=5,from=30,to=45,factor=1.6"),
    "data": ({"dp": 8, "pp": 1, "tp": 1, "gradient_sync": "all_reduce"}, "slow_host:host=1,from=30,to=45,factor=1.6"),
    "stopped": ({"dp": 2, "pp": 2, "tp": 2}, "hang:rank=3,from=30"),
}
"""Small simulated jobs: settings, and what is broken."""


@cache
def recorded(name: str) -> Recording:
    """One of the project's recordings."""
    return read_recording(RECORDINGS / name)


@cache
def simulated(name: str, iterations: int = 60) -> Recording:
    """One of `JOBS`."""
    shape, fault = JOBS[name]
    job = SimulatorSettings(iterations=iterations, micro_batches=4, gpus_per_host=4, **shape)
    with tempfile.TemporaryDirectory() as directory:
        simulate_trace(directory, replace(with_preset(job, "suite"), faults=(parse_fault(fault),)))
        return read_recording(Path(directory))


def apply(name: str, recording: Recording, seed: int = 0, accused: frozenset[int] = frozenset()) -> Changed:
    """Make a change that must apply."""
    changed = CHANGES[name].apply(recording, Given(np.random.default_rng(seed), accused))
    assert changed is not None
    return changed


def touched(before: Recording, after: Recording) -> set[str]:
    """Name the columns (``schema.column``) and the keys of the job that differ; ``schema`` alone: other rows."""
    names = {field.name for field in fields(before.job)}
    found = {name for name in names if getattr(before.job, name) != getattr(after.job, name)}
    for schema in SCHEMAS:
        old, new = before.tables[schema], after.tables[schema]
        if len(old["rank"]) != len(new["rank"]):
            found.add(schema)
            continue
        # Whether NaN may be in it.
        found |= {
            f"{schema}.{name}"
            for name in old
            if not np.array_equal(old[name], new[name], old[name].dtype.kind == "f")
        }
    return found | ({"devices"} if before.devices != after.devices else set())


def texts(recording: Recording, schema: str, *left_out: str) -> list[tuple[Any, ...]]:
    """Rows with the names that codes stand for, sorted: two recordings compare whatever their order."""
    table = dict(recording.tables[schema])
    if schema == "commops":
        ids = np.array([communicator.id for communicator in recording.job.communicators], dtype=object)
        table["communicator"] = ids[table["communicator"]]
    columns = [
        np.asarray(column).astype(str).tolist() for name, column in sorted(table.items()) if name not in left_out
    ]
    return sorted(zip(*columns, strict=True))
