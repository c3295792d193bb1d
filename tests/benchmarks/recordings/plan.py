"""The recordings of the set: which job, where it runs, what is done to it, and when.

Kinds are spread over the jobs, so that no kind is told by its job. Rates are chosen so that most faults make an
iteration 1.3 to 3 times as long; some are so small that the run's own noise hides them.
"""

from __future__ import annotations

from typing import Final

from tests.benchmarks.recordings.faults import (
    Benign,
    CpuQuota,
    Fault,
    Hang,
    Imbalance,
    Pauses,
    SlowLeaf,
    SlowLink,
    SlowNic,
    SlowSpine,
    SlowStage,
    SlowWork,
    Span,
)
from tests.benchmarks.recordings.job_shape import JobShape
from tests.benchmarks.recordings.layout import Layout
from tests.benchmarks.recordings.recording import ITERATIONS, Recording

PAIRS: Final = Layout(8, ranks_per_host=2, hosts_per_leaf=2)
SINGLES: Final = Layout(8, ranks_per_host=1, hosts_per_leaf=2)
PAIRS_16: Final = Layout(16, ranks_per_host=2, hosts_per_leaf=2)
QUADS_16: Final = Layout(16, ranks_per_host=4, hosts_per_leaf=1)
RAILS_16: Final = Layout(16, ranks_per_host=4, hosts_per_leaf=0)

DDP_8: Final = JobShape("ddp", dp=8)
DDP_16: Final = JobShape("ddp", dp=16, layers=5, burns=3)
ZERO_8: Final = JobShape("sharded", dp=8, shard=8, layers=2, device_ms=5.0)
HSDP_8: Final = JobShape("sharded", dp=8, shard=4, layers=2, device_ms=4.0)
HSDP_16: Final = JobShape("sharded", dp=16, shard=4, layers=2, rows=32, width=128, device_ms=4.0, burns=2)
TP_PP_DP_8: Final = JobShape("pipeline", dp=2, tp=2, pp=2, layers=2, microbatches=4)
TP_PP_DP_16: Final = JobShape("pipeline", dp=2, tp=2, pp=4, layers=1, microbatches=4, burns=3)
PP_DP_8: Final = JobShape("pipeline", dp=2, pp=4, layers=2, microbatches=6)

EARLY: Final[tuple[Span, ...]] = ((25, 45),)
MIDDLE: Final[tuple[Span, ...]] = ((35, 57),)
LATE: Final[tuple[Span, ...]] = ((45, ITERATIONS),)
ALWAYS: Final[tuple[Span, ...]] = ((0, ITERATIONS),)
SHORT: Final[tuple[Span, ...]] = ((40, 48),)
SPIKE: Final[tuple[Span, ...]] = ((42, 43),)
SPIKES: Final[tuple[Span, ...]] = ((28, 30), (39, 40), (51, 53))
HUNG: Final[tuple[Span, ...]] = ((40, ITERATIONS),)


def plan() -> list[Recording]:
    """All recordings, in the order in which they are made."""
    return [Recording(name, shape, layout, (fault,)) for name, shape, layout, fault in _drawn()]


def _drawn() -> list[tuple[str, JobShape, Layout, Fault]]:
    return [*_samples(), *_slow_ranks(), *_slow_hosts(), *_slow_network(), *_blameless(), *_hangs(), *_healthy()]


def _samples() -> list[tuple[str, JobShape, Layout, Fault]]:
    """One of each kind: the first dozen."""
    return [
        ("ddp8-nic-send", DDP_8, PAIRS, SlowNic(MIDDLE, rank=3, direction="send", mbit=120)),
        ("tp2pp2dp2-link-one-way", TP_PP_DP_8, PAIRS, SlowLink(MIDDLE, rank=3, peer=7, mbit=8)),
        ("zero8-cpu-quota", ZERO_8, PAIRS, CpuQuota(EARLY, ranks=(6,), cores=0.08)),
        ("tp2pp2dp2-host-cpu-quota", TP_PP_DP_8, PAIRS, CpuQuota(MIDDLE, ranks=(2, 3), cores=0.25)),
        ("hsdp16-leaf-uplink", HSDP_16, PAIRS_16, SlowLeaf(MIDDLE, leaf=2, mbit=15, is_uplink=True)),
        ("tp2pp4dp2-clean", TP_PP_DP_16, PAIRS_16, Fault()),
        ("ddp8-clean", DDP_8, PAIRS, Fault()),
        ("ddp8-loader", DDP_8, PAIRS, SlowWork(MIDDLE, ranks=(5,), load_s=0.06)),
        ("pp4dp2-stage-from-start", PP_DP_8, SINGLES, SlowStage(ALWAYS, ranks=PP_DP_8.stage_ranks(2), factor=2.2)),
        ("zero8-imbalance", ZERO_8, PAIRS, Imbalance(MIDDLE, factor=3.0, seed=3)),
        ("ddp8-hang-before", DDP_8, PAIRS, Hang(HUNG, rank=5)),
        ("ddp8-longer-batches", DDP_8, PAIRS, Benign(((35, ITERATIONS),), factor=3.5)),
    ]


def _slow_ranks() -> list[tuple[str, JobShape, Layout, Fault]]:
    return [
        ("ddp8-compute", DDP_8, SINGLES, SlowWork(EARLY, ranks=(2,), factor=2.5)),
        ("ddp16-cpu-quota", DDP_16, PAIRS_16, CpuQuota(MIDDLE, ranks=(11,), cores=0.06)),
        ("hsdp16-compute", HSDP_16, QUADS_16, SlowWork(LATE, ranks=(9,), factor=5.0)),
        ("tp2pp2dp2-cpu-quota", TP_PP_DP_8, PAIRS, CpuQuota(LATE, ranks=(3,), cores=0.12)),
        ("tp2pp2dp2-loader", TP_PP_DP_8, SINGLES, SlowWork(MIDDLE, ranks=(1,), load_s=0.2)),
        ("pp4dp2-compute", PP_DP_8, SINGLES, SlowWork(MIDDLE, ranks=(4,), factor=2.5)),
        ("tp2pp4dp2-compute", TP_PP_DP_16, PAIRS_16, SlowWork(EARLY, ranks=(10,), factor=14.0)),
        ("ddp8-loader-spike", DDP_8, PAIRS, SlowWork(SPIKE, ranks=(3,), load_s=0.2)),
        ("tp2pp2dp2-compute-spikes", TP_PP_DP_8, PAIRS, SlowWork(SPIKES, ranks=(5,), factor=4.0)),
        ("zero8-compute-from-start", ZERO_8, PAIRS, SlowWork(ALWAYS, ranks=(2,), factor=3.0)),
        ("pp4dp2-compute-from-start", PP_DP_8, SINGLES, SlowWork(ALWAYS, ranks=(5,), factor=2.2)),
        ("ddp8-compute-small", DDP_8, PAIRS, SlowWork(MIDDLE, ranks=(6,), factor=1.12)),
        ("hsdp8-loader-short", HSDP_8, PAIRS, SlowWork(SHORT, ranks=(0,), load_s=0.08)),
    ]


def _slow_hosts() -> list[tuple[str, JobShape, Layout, Fault]]:
    return [
        ("ddp8-host-cpu-quota", DDP_8, PAIRS, CpuQuota(EARLY, ranks=(4, 5), cores=0.25)),
        ("ddp16-host-loader", DDP_16, PAIRS_16, SlowWork(MIDDLE, ranks=(6, 7), load_s=0.18)),
        ("hsdp8-host-compute", HSDP_8, PAIRS, SlowWork(LATE, ranks=(6, 7), factor=3.5)),
        ("hsdp16-host-cpu-quota", HSDP_16, QUADS_16, CpuQuota(MIDDLE, ranks=(8, 9, 10, 11), cores=0.25)),
        ("tp2pp4dp2-host-compute", TP_PP_DP_16, PAIRS_16, SlowWork(MIDDLE, ranks=(10, 11), factor=14.0)),
    ]


def _slow_network() -> list[tuple[str, JobShape, Layout, Fault]]:
    return [
        ("ddp8-nic-receive", DDP_8, SINGLES, SlowNic(EARLY, rank=6, direction="receive", mbit=100)),
        ("ddp16-nic-both", DDP_16, PAIRS_16, SlowNic(MIDDLE, rank=9, direction="both", mbit=50)),
        ("zero8-nic-send", ZERO_8, PAIRS, SlowNic(LATE, rank=1, direction="send", mbit=60)),
        ("hsdp8-nic-receive", HSDP_8, PAIRS, SlowNic(MIDDLE, rank=5, direction="receive", mbit=60)),
        ("hsdp16-nic-both", HSDP_16, QUADS_16, SlowNic(EARLY, rank=14, direction="both", mbit=20)),
        ("tp2pp2dp2-nic-send", TP_PP_DP_8, PAIRS, SlowNic(MIDDLE, rank=1, direction="send", mbit=40)),
        ("tp2pp2dp2-nic-receive", TP_PP_DP_8, SINGLES, SlowNic(LATE, rank=6, direction="receive", mbit=50)),
        ("tp2pp4dp2-nic-both", TP_PP_DP_16, PAIRS_16, SlowNic(MIDDLE, rank=5, direction="both", mbit=20)),
        ("pp4dp2-nic-from-start", PP_DP_8, SINGLES, SlowNic(ALWAYS, rank=3, direction="both", mbit=40)),
        ("tp2pp2dp2-nic-spikes", TP_PP_DP_8, PAIRS, SlowNic(SPIKES, rank=4, direction="both", mbit=40)),
        ("pp4dp2-link-both-ways", PP_DP_8, SINGLES, SlowLink(MIDDLE, rank=2, peer=4, is_both=True, mbit=8)),
        ("tp2pp4dp2-link-one-way", TP_PP_DP_16, PAIRS_16, SlowLink(EARLY, rank=5, peer=9, mbit=6)),
        ("pp4dp2-link-from-start", PP_DP_8, SINGLES, SlowLink(ALWAYS, rank=6, peer=4, mbit=8)),
        ("tp2pp2dp2-link-of-parts", TP_PP_DP_8, SINGLES, SlowLink(EARLY, rank=4, peer=5, is_both=True, mbit=50)),
        ("hsdp8-link-of-shards", HSDP_8, SINGLES, SlowLink(LATE, rank=1, peer=2, mbit=50)),
        ("ddp8-leaf-ports", DDP_8, SINGLES, SlowLeaf(MIDDLE, leaf=1, mbit=100)),
        ("tp2pp4dp2-leaf-rail", TP_PP_DP_16, RAILS_16, SlowLeaf(MIDDLE, leaf=2, mbit=40)),
        ("pp4dp2-leaf-ports", PP_DP_8, SINGLES, SlowLeaf(LATE, leaf=2, mbit=40)),
        ("hsdp16-spine", HSDP_16, QUADS_16, SlowSpine(MIDDLE, mbit=12)),
        ("tp2pp2dp2-spine", TP_PP_DP_8, Layout(8, 2, 1), SlowSpine(EARLY, mbit=40)),
    ]


def _blameless() -> list[tuple[str, JobShape, Layout, Fault]]:
    return [
        ("tp2pp4dp2-stage-from-start", TP_PP_DP_16, QUADS_16,
         SlowStage(ALWAYS, ranks=TP_PP_DP_16.stage_ranks(1), factor=4.0)),
        ("tp2pp2dp2-stage", TP_PP_DP_8, PAIRS, SlowStage(LATE, ranks=TP_PP_DP_8.stage_ranks(1), factor=2.5)),
        ("ddp8-imbalance", DDP_8, PAIRS, Imbalance(EARLY, factor=3.0, seed=1)),
        ("tp2pp2dp2-imbalance", TP_PP_DP_8, PAIRS, Imbalance(MIDDLE, factor=4.0, seed=2)),
    ]  # fmt: skip


def _hangs() -> list[tuple[str, JobShape, Layout, Fault]]:
    return [
        ("tp2pp2dp2-hang-before", TP_PP_DP_8, PAIRS, Hang(HUNG, rank=6)),
        ("hsdp8-hang-before", HSDP_8, PAIRS, Hang(HUNG, rank=2)),
        ("pp4dp2-hang-inside", PP_DP_8, SINGLES, Hang(HUNG, rank=3, is_inside=True)),
        ("tp2pp4dp2-hang-before", TP_PP_DP_16, PAIRS_16, Hang(HUNG, rank=13)),
    ]


def _healthy() -> list[tuple[str, JobShape, Layout, Fault]]:
    return [
        ("ddp16-clean", DDP_16, PAIRS_16, Fault()),
        ("zero8-clean", ZERO_8, PAIRS, Fault()),
        ("tp2pp2dp2-clean", TP_PP_DP_8, PAIRS, Fault()),
        ("tp2pp2dp2-longer-batches", TP_PP_DP_8, SINGLES, Benign(((40, ITERATIONS),), factor=4.5)),
        ("hsdp16-shorter-batches", HSDP_16, QUADS_16, Benign(((0, 30),), factor=5.0)),
        ("ddp8-evaluation", DDP_8, PAIRS, Benign(((20, 26), (46, 52)), 0.05, 2.0, "eval", is_forward_alone=True)),
        ("pp4dp2-evaluation-unmarked", PP_DP_8, SINGLES, Benign(((30, 34), (60, 64)), is_forward_alone=True)),
        ("hsdp8-checkpoints", HSDP_8, PAIRS, Benign(((19, 20), (39, 40), (59, 60)), load_s=0.25, phase="checkpoint")),
        ("tp2pp2dp2-checkpoints-unmarked", TP_PP_DP_8, PAIRS, Benign(((19, 20), (39, 40), (59, 60)), load_s=0.2)),
        ("ddp8-pauses", DDP_8, SINGLES, Pauses(ALWAYS, load_s=0.08, every=8, seed=4)),
        ("tp2pp4dp2-pauses", TP_PP_DP_16, QUADS_16, Pauses(ALWAYS, load_s=0.1, every=6, seed=5)),
    ]
