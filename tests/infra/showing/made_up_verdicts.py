"""Verdicts and rows for tests of the screen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from irregulars.infra.runs.analysis import analysis_of, judge_trace
from irregulars.infra.showing.found import Found, Iteration
from irregulars.infra.showing.from_database import found_in_recording
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.producers.trace.directory import read_trace
from tests.conftest import RECORDINGS

HOSTILE = "<script>alert('x')</script>\x1b[31m\n"


@cache
def found_in(name: str) -> Found:
    """Return what is known of the costliest verdict of a recording in tests/recordings."""
    trace = read_trace(RECORDINGS / name)
    judgements, refused_rows = judge_trace(trace)
    verdict = analysis_of(trace, judgements, refused_rows).verdicts[0]
    return found_in_recording(name, trace, judgements, verdict)


def verdict_of(**changes: Any) -> Verdict:
    """Return an open verdict on a NIC."""
    suspect = Suspect("nic", 1, (1,), 0.9, host="node-0", nic="mlx5_0")
    values: dict[str, Any] = {
        "verdict_id": "job:0:60:0", "revision": 1, "state": "open", "job": "job", "kind": "slow_nic",
        "iterations": (60, 81), "delta": 2.0, "lost_s": 1.0, "communicator": None, "suspects": (suspect,),
        "evidence": "seen", "world_size": 4, "severity": "ticket",
    }  # fmt: skip
    return Verdict(**{**values, **changes})


def iterations_of(times_ms: Sequence[float], first_irregular: int) -> list[Iteration]:
    """Return iterations from 0 on, irregular with the cause from one on."""
    return [
        Iteration(at, at * 10**9, round(ms * 1e6), None, at >= first_irregular, at >= first_irregular)
        for at, ms in enumerate(times_ms)
    ]
