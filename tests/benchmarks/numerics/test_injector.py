"""The injector's faults, and how its recording is cut into trials."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.records import OPERATOR_CODES, RECV, SEND, UNKNOWN, Batch, Header, iteration_columns
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.writer import write_trace
from tests.benchmarks.numerics.faults import BEFORE, PLACES, draw_corruption, draw_spike
from tests.benchmarks.numerics.traces import Trial, cut_into_trials
from tests.gloo_ranks import needs_torch
from tests.producers.torch_hook.processes import run_python

START_NS = 1_800_000_000_000_000_000
STEP_NS = 1_000_000


@pytest.mark.parametrize("bits", [16, 32])
def test_draws_cover_all_places_and_flips(bits: int) -> None:
    random = np.random.default_rng(1)
    faults = [draw_corruption(random, 9, 4, bits) for _ in range(400)]
    seen = Counter((fault.place, fault.flip) for fault in faults)
    assert {place for place, _ in seen} == set(PLACES)
    assert {flip for _, flip in seen} == {"mantissa", "exponent", "sign", "bits", "lane"}
    assert all(0 < fault.mask < 1 << bits for fault in faults)
    assert {fault.mask for fault in faults if fault.flip == "sign"} == {1 << (bits - 1)}
    exponents = {fault.mask for fault in faults if fault.flip == "exponent"}
    assert exponents == {1 << bit for bit in range(bits - 9, bits - 1)}
    assert all(fault.repeats == (fault.flip == "lane") for fault in faults if fault.place not in BEFORE)
    assert {fault.rate for fault in faults if fault.repeats} == {0.1, 1.0}
    assert {fault.rank for fault in faults} == set(range(4))
    once, again = (next(one for one in faults if one.repeats == repeats) for repeats in (False, True))
    assert [once.is_due(number) for number in (8, 9, 10)] == [False, True, False]
    assert [again.is_due(number) for number in (8, 9, 10)] == [False, True, True]


def test_a_spike_accuses_a_rank_only_where_its_own_data_are_bad() -> None:
    random = np.random.default_rng(1)
    faults = [draw_spike(random, 9, 4) for _ in range(60)]
    assert {fault.place for fault in faults} == {"batch_of_one", "batch_of_all", "learning_rate"}
    assert all((fault.rank is not None) == (fault.place == "batch_of_one") for fault in faults)
    json.dumps([fault.label() for fault in faults])


def record(directory: Path, iterations: int) -> None:
    """Write a recording of two ranks: in each iteration an all_reduce, and a send from the one to the other."""
    world = Communicator("world", "world", (0, 1))
    announcements, batches = [], []
    numbers = np.arange(iterations)
    for rank in (0, 1):
        announcements.append(
            Announcement(
                job="all", attempt=0, rank=rank, world_size=2, logged_ranks=2, communicators=(world,), clock="shared",
                sources=("commops", "iterations"), lost_rows=0, recorded_until_ns=START_NS + iterations * STEP_NS,
                replicas=(0, 1),
            )
        )  # fmt: skip
        both = np.repeat(numbers, 2)
        kinds = np.tile([OPERATOR_CODES["all_reduce"], SEND if rank == 0 else RECV], iterations)
        columns = {
            "communicator": np.zeros(len(both), np.uint16), "operator": kinds.astype(np.uint8), "sequence": both + 1,
            "peer": np.where(kinds >= SEND, 1 - rank, UNKNOWN), "start_ns": START_NS + both * STEP_NS,
            "elapsed_ns": np.full(len(both), 1000.0), "size_bytes": np.full(len(both), 8.0), "iteration": both,
        }  # fmt: skip
        batches.append(Batch(Header("commops", "all", 0, rank, names=("world",)), columns))
        times_ns = START_NS + numbers * STEP_NS, np.full(iterations, STEP_NS - 1.0)
        own = iteration_columns(numbers, *times_ns, np.zeros(iterations, np.uint8)) | {"loss": numbers.astype(float)}
        batches.append(Batch(Header("iterations", "all", 0, rank), own))
    write_trace(directory, announcements, batches)


def test_a_trial_is_a_run_of_its_own_whatever_was_recorded_between_its_stretches(tmp_path: Path) -> None:
    record(tmp_path / "recording", 10)
    trials = [Trial("one", [(0, 4), (7, 9)], {"kind": "none"}), Trial("two", [(2, 5)], {"kind": "corruption"})]
    cut_into_trials(tmp_path / "recording", trials, tmp_path, "job")
    trace = read_trace(tmp_path / "one")
    assert (trace.job, trace.rejected.count, trace.copies) == ("job-one", 0, 0)
    assert [one.replicas for one in trace.announcements] == [(0, 1)] * 2
    for rank in (0, 1):
        columns = trace.iterations[rank].columns
        assert columns["iteration"].tolist() == list(range(6))
        assert columns["loss"].tolist() == [0, 1, 2, 3, 7, 8]
        assert np.diff(columns["start_ns"]).tolist() == [STEP_NS] * 3 + [STEP_NS - 1, STEP_NS]
        operators = trace.commops[rank].columns
        for kind in (OPERATOR_CODES["all_reduce"], SEND if rank == 0 else RECV):
            is_own = operators["operator"] == kind
            assert operators["sequence"][is_own].tolist() == list(range(1, 7))
            assert operators["iteration"][is_own].tolist() == list(range(6))
    assert read_trace(tmp_path / "two").iterations[0].columns["loss"].tolist() == [2, 3, 4]
    assert json.loads((tmp_path / "two" / "label.json").read_text()) == {"kind": "corruption"}


HITS = """
import torch
from tests.benchmarks.numerics.faults import Fault, Injector
for dtype, kind, bits in ((torch.float32, torch.int32, 32), (torch.bfloat16, torch.int16, 16)):
    for mask in (1, 5, 1 << (bits - 1)):
        one = torch.randn(8, 200).to(dtype)
        before = one.view(kind).clone()
        Injector(Fault("corruption", 0, 0, "weight", mask=mask, seed=3)).hit(one)
        changed = (one.view(kind) ^ before).view(-1)
        assert (changed != 0).sum() == 1
        assert int(changed.sum()) % (1 << bits) == mask
    one = torch.zeros(100 * 32, dtype=dtype)
    stuck = Injector(Fault("corruption", 0, 0, "weight", mask=6, lane=5, rate=0.5, seed=3))
    stuck.hit(one)
    places = one.view(kind).nonzero().view(-1)
    assert 30 <= len(places) <= 70 and stuck.changed == len(places)
    assert set((places % 32).tolist()) == {5}
    assert set(one.view(kind)[places].tolist()) == {6}
    full = Injector(Fault("corruption", 0, 0, "weight", mask=6, lane=5, seed=3))
    full.hit(one)
    full.hit(one)  # bits that are stuck at one already do not change
    assert full.changed == 100 - len(places)
"""


@pytest.mark.torch
@needs_torch
def test_a_fault_hits_the_bits_and_elements_that_it_names(tmp_path: Path) -> None:
    done = run_python("-c", HITS, directory=tmp_path)
    assert done.returncode == 0, done.stderr
