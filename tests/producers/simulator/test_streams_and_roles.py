"""Second streams, rooted operators, waits that nobody logged, and ranks that stop: who waits, and who does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from irregulars.messages.records import OPERATOR_CODES, Batch
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import SimulatorSource
from tests.producers.simulator.conftest import Tidy, faulty, record


def test_buckets_overlap_the_backward_and_shorten_the_iteration(tidy: Tidy) -> None:
    base = tidy(iterations=2, gradient_buckets=4, gradient_bytes=1 << 31, pp=1, dp=8, tp=8)
    plain, overlapped = record(base), record(replace(base, is_gradient_overlapped=True))
    _, names, start, end = overlapped.operators(3, 1)
    is_bucket = np.char.startswith(names, "dp")
    buckets, others = np.flatnonzero(is_bucket)[:4], np.flatnonzero(~is_bucket)
    overlaps = [(start[others] < end[b]) & (end[others] > start[b]) for b in buckets]
    assert sum(found.any() for found in overlaps) >= 1
    assert np.all(start[buckets][1:] >= end[buckets][:-1])  # the stream is a queue
    assert overlapped.iteration_s()[1] < plain.iteration_s()[1]


def test_the_optimizer_waits_for_the_last_bucket(tidy: Tidy) -> None:
    job = record(tidy(iterations=2, gradient_buckets=4, gradient_bytes=1 << 31, is_gradient_overlapped=True))
    for rank in (0, 17, 63):
        _, names, start, end = job.operators(rank, 1)
        own = np.flatnonzero(np.char.startswith(names, "dp"))
        assert start[own[4:]].min() >= end[own[:4]].max() + 5_000_000


def test_only_the_leader_loads_data_and_the_others_wait_for_its_broadcast(tidy: Tidy) -> None:
    job = record(tidy(iterations=2, has_data_broadcast=True, data_loading_ms=30.0))
    columns = job.commops
    own = (columns["operator"] == OPERATOR_CODES["broadcast"]) & (columns["iteration"] == 1)
    elapsed_ms = columns["elapsed_ns"][own] / 1e6
    is_leader = columns["rank"][own] % 4 == 0
    assert elapsed_ms[is_leader].max() < 1
    assert elapsed_ms[~is_leader].min() > 29


def test_a_root_does_not_wait_for_those_it_broadcasts_to(tidy: Tidy) -> None:
    base = tidy(iterations=2, has_data_broadcast=True)
    slow = record(faulty(base, "slow_rank:rank=0,from=1,factor=10"))
    usual = record(base)
    columns = usual.commops
    own = (columns["operator"] == OPERATOR_CODES["broadcast"]) & (columns["iteration"] == 1)
    added_ms = (slow.commops["elapsed_ns"] - columns["elapsed_ns"])[own] / 1e6
    ranks = columns["rank"][own]
    assert added_ms[ranks == 0] == pytest.approx(0, abs=0.01)
    assert added_ms[np.isin(ranks, (1, 2, 3))] == pytest.approx(27, abs=0.1)  # ten times 3 ms of loading
    assert np.abs(added_ms[ranks > 3]).max() < 0.1


def test_in_a_reduction_the_root_alone_waits(tidy: Tidy) -> None:
    base = tidy(iterations=2, has_loss_reduction=True, gradient_sync="all_reduce")
    usual, slow = record(base), record(faulty(base, "slow_host:host=3,from=1,factor=3"))
    columns = usual.commops
    own = (columns["operator"] == OPERATOR_CODES["reduce"]) & (columns["iteration"] == 1)
    added_ms = (slow.commops["elapsed_ns"] - columns["elapsed_ns"])[own] / 1e6
    ranks = columns["rank"][own]
    roots = np.isin(ranks, (16, 17, 18, 19))  # of the groups in which ranks 24 to 31, host 3, are
    assert added_ms[roots] == pytest.approx(10, abs=0.1)  # three times 5 ms of the optimizer
    assert np.abs(added_ms[~roots]).max() < 0.1


def test_a_wait_that_nobody_logged_looks_like_a_gap(tidy: Tidy) -> None:
    base = tidy(iterations=2, dp=4, pp=1, tp=2, hidden=("tp",), gpus_per_host=2)
    slow = record(faulty(base, "slow_rank:rank=2,from=1,add_ms=50"))
    assert not np.char.startswith(slow.commops["communicator"], "tp").any()
    *_, begins, _ = slow.operators(3, 1)
    *_, usual, _ = record(base).operators(3, 1)
    assert (begins[0] - usual[0]) / 1e6 == pytest.approx(50, abs=0.1)  # the innocent peer is as late as the culprit


def test_a_hidden_barrier_makes_all_late_together(tidy: Tidy) -> None:
    base = tidy(iterations=2, pp=1, dp=8, tp=8, hidden=("barrier",), gradient_sync="all_reduce")
    slow, usual = (record(job) for job in (faulty(base, "slow_rank:rank=9,from=1,add_ms=50"), base))
    assert set(usual.commops["operator"]) == {OPERATOR_CODES["all_reduce"]}
    late_ms = [(slow.operators(rank, 1)[2][-1] - usual.operators(rank, 1)[2][-1]) / 1e6 for rank in (9, 40)]
    assert late_ms == pytest.approx([50, 50], abs=0.1)


class TestHang:
    BASE = SimulatorSettings(iterations=6, dp=2, pp=2, tp=2, gpus_per_host=2, micro_batches=4)

    def test_a_rank_that_never_arrives_leaves_its_peers_inside(self) -> None:
        job = record(faulty(self.BASE, "hang:rank=5,from=3"))
        columns = job.commops
        assert columns["iteration"].max() == 3
        assert set(job.iterations["iteration"]) == {0, 1, 2}
        stuck = columns["rank"][np.isnan(columns["elapsed_ns"])]
        assert 4 in stuck
        assert 5 not in stuck
        for rank in set(stuck.tolist()):  # in its last call; a batched send and recv have a row each
            own = columns["rank"] == rank
            open_ns = columns["start_ns"][own & np.isnan(columns["elapsed_ns"])]
            assert set(open_ns.tolist()) == {columns["start_ns"][own].max()}
        counts = np.bincount(columns["rank"][columns["iteration"] == 3], minlength=8)
        assert counts[5] < counts[4]

    def test_a_rank_that_stops_inside_has_the_first_row_without_end(self) -> None:
        columns = record(faulty(self.BASE, "hang:rank=5,from=3,inside=yes")).commops
        is_open = np.isnan(columns["elapsed_ns"])
        first = np.argmin(np.where(is_open, columns["start_ns"], np.iinfo(np.int64).max))
        assert columns["rank"][first] == 5
        same = (columns["communicator"] == columns["communicator"][first]) & (
            columns["sequence"] == columns["sequence"][first]
        )
        assert not is_open[same & (columns["rank"] != 5)].any()

    def test_at_real_pace_the_job_stays_silent_before_it_ends(self) -> None:
        start_ns = now_ns = 1_900_000_000_000_000_000
        settings = replace(faulty(self.BASE, "hang:rank=5,from=3"), recorded_after_hang_s=30.0)
        source = SimulatorSource(settings, start_ns=start_ns, now_ns=lambda: now_ns)
        now_ns += 10_000_000_000
        rows = [batch for batch in source.poll(1_000_000) if isinstance(batch, Batch)]
        assert rows
        assert source.poll(1_000_000) == ()
        assert not source.is_exhausted
        now_ns += 30_000_000_000
        assert source.is_exhausted

    def test_counters_show_no_transfer_that_never_began(self) -> None:
        job = record(replace(faulty(self.BASE, "hang:rank=5,from=3,at=0"), bandwidth_period_ms=10.0))
        assert np.isfinite(job.bandwidth["tx_bytes_per_s"]).all()
        assert job.bandwidth["tx_bytes_per_s"].max() > 0
