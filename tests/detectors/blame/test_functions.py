"""The function in which an accused rank spends more of its time than its peers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from irregulars.detectors.blame.reported import EventLog, score_metrics, spent_apart, with_events
from irregulars.detectors.job.topology import Topology
from irregulars.messages.device_events import DeviceEvent
from irregulars.messages.judgements import Suspect, Verdict
from tests.present import present

VERDICT = Verdict(
    "llm:0:30:0", 2, "open", "llm", "slow_rank", (30, 60), 1.4, 60.0, None,
    (Suspect("gpu", 5, (5,), 0.9, host="node-0", gpu=5),), "rank 5 is late", world_size=8, time_ns=10**18,
)  # fmt: skip


def shares(rank: int, *found: tuple[str, int], time_ns: int = 10**18 + 10**9) -> list[DeviceEvent]:
    return [
        DeviceEvent(time_ns + at, rank, "function", "node-0", "MainThread", code, name)
        for at, (name, code) in enumerate(found)
    ]


PEERS = [*shares(6, ("wait", 900), ("decode_jpeg", 30)), *shares(7, ("wait", 940), ("decode_jpeg", 30))]


def test_the_function_that_stands_out_is_named_with_that_of_its_peers() -> None:
    own = shares(5, ("wait", 500), ("decode_jpeg", 410))
    text = "; rank 5 spends 41% of its time in decode_jpeg, ranks 6-7 3%"
    assert spent_apart(VERDICT, own + PEERS) == text
    weighed = with_events(VERDICT, own + PEERS)
    assert weighed.evidence == VERDICT.evidence + text
    assert weighed.suspects == VERDICT.suspects, "a look at a process is no report against its GPU"
    assert weighed.explanation is None


def test_a_function_that_all_spend_long_in_hides_no_other_one() -> None:
    own = shares(5, ("forward", 700), ("decode_jpeg", 230))
    peers = [one for rank in (6, 7) for one in shares(rank, ("forward", 450), ("decode_jpeg", 30))]
    assert spent_apart(VERDICT, own + peers) == "; rank 5 spends 23% of its time in decode_jpeg, ranks 6-7 3%"


def test_functions_and_the_operators_below_them_are_compared_apart() -> None:
    def operators(rank: int, *found: tuple[str, int]) -> list[DeviceEvent]:
        later = shares(rank, *found, time_ns=10**18 + 10**9 + 100_000)
        return [replace(one, device="CPU operators") for one in later]

    own = [*shares(5, ("decode_jpeg", 410)), *operators(5, ("aten::sort", 550), ("aten::mm", 90))]
    told = spent_apart(VERDICT, [*own, *PEERS, *operators(7, ("aten::mm", 60))])
    assert told == (
        "; rank 5 spends 41% of its time in decode_jpeg, ranks 6-7 3%"
        "; rank 5 spends 55% of its time in aten::sort, rank 7 0%"
    )
    # A later look at its functions alone, for another verdict of the job, which is profiled once in ten minutes
    later = shares(5, ("decode_jpeg", 410), time_ns=10**18 + 10**10)
    assert spent_apart(VERDICT, [*own, *later, *PEERS, *operators(7, ("aten::mm", 60))]) == told


@pytest.mark.parametrize("events", [
    shares(5, ("wait", 860), ("decode_jpeg", 140)) + PEERS,  # within the chance of 250 samples
    shares(5, ("wait", 1000)) + shares(6, ("wait", 800)) + shares(7, ("wait", 810)),  # near to typical workers
    shares(5, ("decode_jpeg", 1000)),  # no peer
    PEERS,
    [DeviceEvent(10**18, 5, "function", "node-0", "", None, "not taken: permission"), *PEERS],
    [*shares(5, ("decode_jpeg", 990), time_ns=10**18), *shares(5, ("wait", 900), time_ns=10**18 + 10**10), *PEERS],
])  # fmt: skip
def test_a_difference_that_may_be_chance_is_none(events: list[DeviceEvent]) -> None:
    assert spent_apart(VERDICT, events) == ""


def metrics(rank: int, time_ns: int, **values: float) -> list[DeviceEvent]:
    return [
        DeviceEvent(
            time_ns, rank, "metric", device=name.replace("__", "."), code=1, detail=f"50 50{f' {value:.4g}' * 12}"
        )
        for name, value in values.items()
    ]


HEALTHY = {"issue_latency_ns": 7e7, "flops_per_s__mm": 3e14, "kernel_ns__gemm": 1e5, "void_between_steps_ratio": 0.01}
LATE_NS = 10**18 + 10**9


@pytest.mark.parametrize(
    ("own", "text", "layer"),
    [
        (
            {"issue_latency_ns": 1.3e4},
            "issue latency of rank 5 is 13 µs, that of its peers 70 ms: its CPU does not run ahead of its GPU",
            "unknown",
        ),
        ({"kernel_ns__gemm": 1.41e5}, "gemm kernels of rank 5 are 41% longer: time of each 141 µs", "unknown"),
        ({"flops_per_s__mm": 2e14}, "rate of mm of rank 5 is 200 TFLOP/s, that of its peers 300 TFLOP/s", "hardware"),
        (
            {"void_between_steps_ratio": 0.3},
            "void between steps of rank 5 is 30.0%, that of its peers 1.0%",
            "unknown",
        ),
    ],
)
def test_a_metric_that_stands_apart_is_named_beside_that_of_peers_or_else_of_the_past(
    own: dict[str, float], text: str, layer: str
) -> None:
    late = metrics(5, LATE_NS, **(HEALTHY | own))
    peers = [one for rank in (0, 1, 2, 6) for one in metrics(rank, LATE_NS, **HEALTHY)]
    told = with_events(VERDICT, late + peers, LATE_NS)
    assert (text in told.evidence, told.layer) == (True, layer)
    assert told.evidence.count(";") == 1
    before = [one for at in range(1, 5) for one in metrics(5, LATE_NS - 10**8 * at, **HEALTHY)]
    alone = with_events(VERDICT, late + before, LATE_NS)
    assert (text.replace("its peers", "its windows before") in alone.evidence, alone.layer) == (True, layer)
    others = [*metrics(5, LATE_NS, **HEALTHY), *metrics(1, LATE_NS, **(HEALTHY | own)), *peers]
    assert with_events(VERDICT, others, LATE_NS).evidence == VERDICT.evidence, "of who is accused alone"
    assert with_events(VERDICT, late, LATE_NS).evidence == VERDICT.evidence, "nothing to hold it against"


def test_metrics_are_scored_beside_peers_or_else_the_past_where_they_tell_of_a_gpu_that_is_slow_or_waits() -> None:
    ranks, topology = np.arange(5), Topology(5, {}, {0: tuple(range(5))})
    healthy = [one for rank in range(4) for one in metrics(rank, LATE_NS, **HEALTHY)]
    odd = metrics(2, LATE_NS, **(HEALTHY | {"issue_latency_ns": 1.3e4}))
    new = [one for one in healthy if one.rank != 2] + odd
    assert score_metrics(new, new, ranks, topology) == pytest.approx([0, 0, 12.4, 0, np.nan], abs=0.1, nan_ok=True)
    assert score_metrics(odd[:0], new, ranks, topology) is None
    past = [one for at in (1, 2, 3) for rank in range(4) for one in metrics(rank, LATE_NS - 10**8 * at, **HEALTHY)]

    def of_all(**own: float) -> np.ndarray:
        now = [one for rank in range(4) for one in metrics(rank, LATE_NS, **(HEALTHY | own))]
        return present(score_metrics(now, past + now, ranks, topology))[:4]

    assert (of_all(void_between_steps_ratio=0.3) > 1).all()
    for quiet in ({"kernel_ns__gemm": 2e5}, {"issue_latency_ns": 7e8}, {"flops_per_s__mm": 4e14}, {}):
        assert (of_all(**quiet) == 0).all(), "more to do, a longer queue, a quicker GPU"


@pytest.mark.parametrize("detail", ["", "50 50 1e5", "x" + " 1" * 13, "50 nan" + " 1" * 12, "0 1" + " 1" * 12])
def test_a_metric_that_is_none_is_passed_over(detail: str) -> None:
    events = [
        DeviceEvent(LATE_NS, rank, "metric", device="kernel_ns.gemm", code=1, detail=detail) for rank in (1, 2, 5)
    ]
    assert with_events(VERDICT, events, LATE_NS) == VERDICT


def test_frames_of_stacks_are_not_kept_for_judgement() -> None:
    log = EventLog()
    log.add([DeviceEvent(1, 5, "stack", "node-0", "MainThread", 0, "f (a.py:1)"), *shares(5, ("f", 900), time_ns=2)])
    assert [one.kind for one in log.until(math.inf)] == ["function"]


def test_it_is_of_who_is_accused_after_reports_were_weighed_and_no_suspect_is_a_peer() -> None:
    others = (Suspect("gpu", 5, (5,), 0.5, gpu=5), Suspect("gpu", 6, (6,), 0.4, gpu=6))
    verdict = replace(VERDICT, suspects=others)
    events = [*shares(5, ("decode_jpeg", 900)), *shares(6, ("wait", 900)), *shares(7, ("wait", 900), ("g", 90))]
    xid = DeviceEvent(10**18 - 10**9, 6, "xid", "node-0", "gpu6", 79)
    told = with_events(verdict, [*events, xid])
    assert told.suspects[0].rank == 6
    assert "decode_jpeg" not in told.evidence
    assert "rank 5 spends 90% of its time in decode_jpeg, rank 7 0%" in with_events(verdict, events).evidence
    assert "spends" not in with_events(replace(verdict, kind="slow_nic"), events).evidence
