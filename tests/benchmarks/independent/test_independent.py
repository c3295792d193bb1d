"""What the benchmark counts as right, as an accusation and as calibrated."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.independent.__main__ import Outcome, calibration, is_right, table

STAGE = {"device": "stage", "ranks": [0, 1], "probability": 0.9}
NIC = {"device": "nic", "ranks": [3], "probability": 0.8}


def verdict(kind: str, *suspects: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "suspects": list(suspects), "severity": "ticket", "iterations": [5, 9]}


def outcome(kind: str | None, *verdicts: dict[str, Any]) -> Outcome:
    label = {"kind": kind, "device": "nic", "ranks": [3], "hard": False, "what": "a test"}
    found = {"verdicts": list(verdicts), "iterations": 40}
    return Outcome("tidy", "tidy-1-0", label, found, is_right(label, found, set(range(8))))


@pytest.mark.parametrize("said", [verdict("slow_stage", STAGE), verdict("slow_nic", NIC)])
def test_whoever_is_accused_in_a_healthy_job_counts(said: dict[str, Any]) -> None:
    healthy = outcome(None, verdict("imbalance"), said)
    assert not healthy.is_right
    assert list(table([healthy]))[-1] == "| tidy | 0 | 0 | 0: 0 | 1 | 40 | 1 | 1 |"


def test_a_verdict_that_accuses_nobody_leaves_a_healthy_job_alone() -> None:
    assert outcome(None, verdict("imbalance")).is_right


def test_the_first_accusation_decides() -> None:
    assert outcome("slow_nic", verdict("imbalance"), verdict("slow_nic", NIC)).is_right
    assert not outcome("slow_nic", verdict("slow_stage", STAGE), verdict("slow_nic", NIC)).is_right


def test_calibration_is_of_all_first_suspects_also_where_nobody_is_to_blame() -> None:
    right = outcome("slow_nic", verdict("slow_nic", NIC))
    wrong = outcome(None, verdict("slow_nic", NIC))
    silent = outcome("slow_nic")
    # Two promised 0.8, and one of them came true.
    assert calibration([right, wrong, silent]) == "Calibration error of 2 first suspects: 0.300"
