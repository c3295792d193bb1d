"""No change alters a verdict: each on one recording, as a file, and on one simulated job, as a stream.

A quick selection; `python -m tests.benchmarks.metamorphic` tries all on all.
"""

from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.records import SCHEMAS
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import SimulatorSettings, with_preset
from irregulars.producers.simulator.source import simulate_trace
from irregulars.producers.simulator.truth import calibrated
from irregulars.producers.trace.directory import read_trace
from irregulars.settings import JudgeSettings
from tests.benchmarks.metamorphic.changes import CHANGES, Change
from tests.benchmarks.metamorphic.check import Charge, Check, Outcome, check
from tests.benchmarks.metamorphic.jobs import JOBS as ALL_JOBS
from tests.benchmarks.metamorphic.recording import Changed, Delivery, Naming, Recording, read_recording
from tests.conftest import RECORDINGS
from tests.producers.trace_directories import assert_same

JOBS: dict[str, tuple[dict[str, Any], str]] = {
    "three": ({"dp": 3, "pp": 2, "tp": 2}, "slow_rank:rank=5,from=30,to=45,factor=1.6"),
    "data": ({"dp": 8, "pp": 1, "tp": 1, "gradient_sync": "all_reduce"}, "slow_host:host=1,from=30,to=45,factor=1.6"),
    "stopped": ({"dp": 2, "pp": 2, "tp": 2}, "hang:rank=3,from=30"),
}
"""Small simulated jobs: settings, and what is broken."""


@cache
def recorded(name: str) -> Recording:
    return read_recording(RECORDINGS / name)


@cache
def simulated(name: str, iterations: int = 60) -> Recording:
    shape, fault = JOBS[name]
    job = SimulatorSettings(iterations=iterations, micro_batches=4, gpus_per_host=4, **shape)
    with tempfile.TemporaryDirectory() as directory:
        simulate_trace(directory, replace(with_preset(job, "suite"), faults=(parse_fault(fault),)))
        return read_recording(Path(directory))


NAMES = sorted(path.name for path in RECORDINGS.iterdir() if (path / "job.json").exists())
SETTINGS = JudgeSettings()


@cache
def check_of(name: str) -> Check:
    if name in JOBS:
        return Check(simulated(name), SETTINGS, delivery=Delivery())
    return Check(recorded(name), SETTINGS)


def first_that_applies(change: str, names: list[str]) -> Outcome:
    """Begin at another name with each change, so that all have their turn."""
    first = list(CHANGES).index(change) % len(names)
    for name in names[first:] + names[:first]:
        (outcome,) = check_of(name).run([change])
        if outcome.does_apply:
            return outcome
    pytest.fail(f"{change} must apply to one of {', '.join(names)}; it does not")


@pytest.mark.slow
@pytest.mark.parametrize("names", [NAMES, list(JOBS)], ids=["recorded", "simulated"])
@pytest.mark.parametrize("change", CHANGES)
def test_no_change_alters_a_verdict(change: str, names: list[str]) -> None:
    outcome = first_that_applies(change, names)
    assert (outcome.gone, outcome.new) == ([], [])


@pytest.mark.parametrize(("name", "charge"), [
    ("three", Charge("slow_rank", (30, 45), "gpu", (5,))),
    ("data", Charge("slow_rank", (30, 45), "host", (4, 5, 6, 7))),
    ("stopped", Charge("hang", (30, 31), "gpu", (3,))),
])  # fmt: skip
def test_what_must_stay_the_same_is_right(name: str, charge: Charge) -> None:
    assert charge in check_of(name).charges


def apply(name: str, recording: Recording, seed: int = 0) -> Changed:
    changed = CHANGES[name].apply(recording, np.random.default_rng(seed))
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


SLOW_LINK = Charge("slow_link", (60, 80), "link", (1, 3))


TIMES = {"commops.start_ns", "iterations.start_ns", "bandwidth.time_ns"}
ELAPSED = {"commops.elapsed_ns"}
LENGTHS = ELAPSED | {"iterations.elapsed_ns"}
NOTHING: set[str] = set()
ROWS = {"commops", "iterations", "bandwidth"}
RANKS = {"commops.rank", "commops.peer", "iterations.rank", "bandwidth.rank", "communicators", "places"}

TOUCHED = {
    **dict.fromkeys(("round-1ns", "round-1us", "round-10us"), TIMES | LENGTHS),
    **dict.fromkeys(("elapsed-fast", "elapsed-slow", "elapsed-apart"), ELAPSED),
    "shift": TIMES,
    **dict.fromkeys(("clock-offsets", "clock-drift"), TIMES | {"clock"}),
    "row-copies": ROWS,
    "row-loss": ROWS | {"places"},
    **dict.fromkeys(("ranks-permuted", "ranks-dealt"), RANKS),
    "devices-renamed": {"places", "devices"},
    "communicators-renamed": {"communicators", "commops.communicator"},
    "iterations-later": {"commops.iteration", "iterations.iteration"},
    "sequences-later": {"commops.sequence"},
    "evaluation": {"commops.start_ns", "commops.iteration", "iterations", "bandwidth"},
    **dict.fromkeys(("batches-of-29", "batches-of-1500", "batches-of-20000"), NOTHING),
}


@pytest.mark.parametrize("name", TOUCHED)
def test_a_change_alters_its_own_columns_and_a_reader_takes_all_rows(name: str) -> None:
    before, changed = simulated("three"), apply(name, simulated("three"))
    assert touched(before, changed.recording) == TOUCHED[name]
    assert changed.recording.to_trace().rejected.count == 0
    names = changed.naming.ranks
    assert sorted(names) == sorted(names.values())
    old = {rank: place.host for rank, place in before.job.places.items()}
    new = {names.get(rank, rank): place.host for rank, place in changed.recording.job.places.items()}
    assert name == "devices-renamed" or new == old


def test_another_order_has_the_same_rows() -> None:
    before, after = simulated("three"), apply("row-order", simulated("three")).recording
    for schema in SCHEMAS:
        assert (after.tables[schema]["rank"] != before.tables[schema]["rank"]).any()
        assert texts(after, schema) == texts(before, schema)
    assert set(CHANGES) == {*TOUCHED, "row-order"}


def test_rows_that_tell_who_arrived_in_a_hang_are_never_lost() -> None:
    before = simulated("stopped")
    unended = before.with_rows(
        "commops", np.flatnonzero(np.isnan(before.tables["commops"]["elapsed_ns"])).repeat(200)
    )
    after = apply("row-loss", unended).recording
    assert len(after.tables["commops"]["rank"]) == len(unended.tables["commops"]["rank"]) > 0


@given(window=st.tuples(st.integers(0, 200), st.integers(1, 50)), first=st.integers(0, 200), count=st.integers(1, 9))
def test_windows_lose_inserted_iterations(window: tuple[int, int], first: int, count: int) -> None:
    begin, past = window[0], window[0] + window[1]

    def new(number: int) -> int:
        return number + 1_000 + (count if number >= first else 0)

    naming = Naming(iterations_later=1_000, inserted=(first, first + count))
    assert naming.old_window((new(begin), new(past - 1) + 1)) == (begin, past)


def lose_the_fault(recording: Recording, _: np.random.Generator) -> Changed:
    recording = recording.with_rows("commops", recording.tables["commops"]["iteration"] < 55)
    return Changed(recording.with_rows("iterations", recording.tables["iterations"]["iteration"] < 55))


def test_a_verdict_that_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check(recorded("gloo-slow-link"), JudgeSettings())
    monkeypatch.setitem(CHANGES, "row-loss", Change("the fault is lost", lose_the_fault))  # type: ignore[arg-type]
    monkeypatch.setitem(CHANGES, "row-copies", Change("it does not apply", lambda *_: None))  # type: ignore[arg-type]
    same, lost, unfit = check.run(["shift", "row-loss", "row-copies"])
    assert (same.does_apply, same.is_changed) == (True, False)
    assert (lost.gone, lost.new) == ([SLOW_LINK], [])
    assert (unfit.does_apply, unfit.is_changed) == (False, False)


@pytest.mark.parametrize("name", ["gloo-slow-nic", "torch-slow-rank"])
def test_a_recording_is_what_its_files_hold(name: str) -> None:
    assert_same(recorded(name).to_trace(), read_trace(RECORDINGS / name))


@pytest.mark.parametrize("name", ALL_JOBS)
def test_every_job_is_possible(name: str) -> None:
    settings = ALL_JOBS[name].settings(0)
    assert calibrated(settings).world_size <= 32


def test_a_trace_directory_is_checked_by_its_path(recordings: Path) -> None:
    found = check(str(recordings / "gloo-clean"), ["shift"], seed=0, is_streamed=False)
    assert (found.charges, [outcome.is_changed for outcome in found.outcomes]) == ([], [False])
