"""The reasons that verdicts carry, on recorded jobs: small, finite, and about the device that is accused."""

from __future__ import annotations

from functools import cache

import pytest

from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.messages.reasons import MOST_STEPS, Reasons, encode_reasons
from irregulars.producers.trace.directory import read_trace
from tests.sinks.recorded_jobs import RECORDINGS

MOST_BYTES = 8192
NAMES = ("gloo-slow-rank", "gloo-slow-nic", "gloo-slow-link", "torch-slow-rank", "bench/ddp8-hang-before")


@cache
def first_verdict(name: str) -> Verdict:
    return analyze(read_trace(RECORDINGS / name)).verdicts[0]


def reasons_in(name: str) -> Reasons:
    reasons = first_verdict(name).explanation
    assert reasons is not None
    return reasons


@pytest.mark.parametrize("name", NAMES)
def test_reasons_lead_to_the_accused_and_are_small(name: str) -> None:
    reasons, verdict = reasons_in(name), first_verdict(name)
    assert verdict.iterations[0] <= reasons.iteration < verdict.iterations[1]
    assert 0 < len(reasons.path) <= MOST_STEPS
    assert reasons.path[-1].is_accused
    assert reasons.delta == 1.1
    assert len((encode_reasons(reasons) or "").encode()) <= MOST_BYTES


@pytest.mark.parametrize(
    ("name", "ruled_out"),
    [
        ("gloo-slow-rank", {"its_transfers", "everybody"}),
        ("gloo-slow-nic", {"own_work", "one_link", "everybody"}),
        ("gloo-slow-link", {"own_work", "whole_nic", "everybody"}),
        ("torch-slow-rank", {"its_transfers", "everybody"}),
    ],
)
def test_what_it_is_not_is_ruled_out(name: str, ruled_out: set[str]) -> None:
    assert {one.what for one in reasons_in(name).considered if one.is_ruled_out} == ruled_out


def test_reasons() -> None:
    # A rank that works long is waited for
    cause = reasons_in("gloo-slow-rank").path[-1]
    assert (cause.what, cause.rank, cause.waited_rank is not None) == ("work", 2, True)
    assert (cause.waited_ns or 0) > 20e6
    # Of a hang it is known who is missing and how many wait
    (step,) = reasons_in("bench/ddp8-hang-before").path
    assert (step.what, step.rank, step.waiting, step.elapsed_ns) == ("absence", 5, 7, None)
