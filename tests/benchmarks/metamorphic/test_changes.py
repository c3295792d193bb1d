"""Each change alters the columns that it is about and no others, and names are translated back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.records import SCHEMAS
from irregulars.producers.trace.directory import read_trace
from irregulars.settings import JudgeSettings
from tests.benchmarks.metamorphic.changed import Changed, Delivery, Given, Naming
from tests.benchmarks.metamorphic.changes import CHANGES, Change
from tests.benchmarks.metamorphic.check import Check
from tests.benchmarks.metamorphic.judged import Charge, judge
from tests.benchmarks.metamorphic.recording import Recording
from tests.benchmarks.metamorphic.small_jobs import apply, recorded, simulated, texts, touched
from tests.conftest import RECORDINGS
from tests.producers.trace_directories import assert_same

SLOW_LINK = Charge("slow_link", (60, 80), "link", (1, 3))


TIMES = {"commops.start_ns", "iterations.start_ns", "bandwidth.time_ns"}
ELAPSED = {"commops.elapsed_ns"}
LENGTHS = ELAPSED | {"iterations.elapsed_ns"}
NOTHING: set[str] = set()
ROWS = {"commops", "iterations", "bandwidth"}
RANKS = {"commops.rank", "commops.peer", "iterations.rank", "bandwidth.rank", "communicators", "places"}
JOINED = {"commops", "iterations", "communicators", "places", "world_size", "logged_ranks"}

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
    "idle-communicator": {"communicators", "commops.communicator"},
    "unlogged-rank": {"communicators", "commops.communicator", "places", "world_size"},
    "evaluation": {"commops.start_ns", "commops.iteration", "iterations", "bandwidth"},
    "member": JOINED,
    "replica": JOINED | {"bandwidth", "devices"},
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
    assert name in ("devices-renamed", "unlogged-rank", "member", "replica") or new == old


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


def test_a_replica_with_an_accused_rank_is_not_copied() -> None:
    given_ranks = Given(np.random.default_rng(0), frozenset(range(simulated("three").job.world_size)))
    assert CHANGES["replica"].apply(simulated("three"), given_ranks) is None


@given(window=st.tuples(st.integers(0, 200), st.integers(1, 50)), first=st.integers(0, 200), count=st.integers(1, 9))
def test_windows_lose_inserted_iterations(window: tuple[int, int], first: int, count: int) -> None:
    begin, past = window[0], window[0] + window[1]

    def new(number: int) -> int:
        return number + 1_000 + (count if number >= first else 0)

    naming = Naming(iterations_later=1_000, inserted=(first, first + count))
    assert naming.old_window((new(begin), new(past - 1) + 1)) == (begin, past)


def lose_the_fault(recording: Recording, given: Given) -> Changed:
    recording = recording.with_rows("commops", recording.tables["commops"]["iteration"] < 55)
    return Changed(recording.with_rows("iterations", recording.tables["iterations"]["iteration"] < 55))


def test_a_verdict_that_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check(recorded("gloo-slow-link"), JudgeSettings())
    monkeypatch.setitem(CHANGES, "row-loss", Change("the fault is lost", lose_the_fault))  # type: ignore[arg-type]
    same, lost, unfit = check.run(["shift", "row-loss", "replica"])
    assert (same.does_apply, same.is_changed) == (True, False)
    assert (lost.gone, lost.new) == ([SLOW_LINK], [])
    assert (unfit.does_apply, unfit.is_changed) == (False, False)


def test_a_stream_gives_the_verdicts_of_the_file() -> None:
    whole = judge(Changed(recorded("gloo-slow-nic")), JudgeSettings())
    streamed = judge(Changed(recorded("gloo-slow-nic"), delivery=Delivery(100, 0.5)), JudgeSettings())
    assert streamed == whole
    assert len(whole) == 1


@pytest.mark.parametrize("name", ["gloo-slow-nic", "torch-slow-rank"])
def test_a_recording_is_what_its_files_hold(name: str) -> None:
    assert_same(recorded(name).to_trace(), read_trace(RECORDINGS / name))
