from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.localization.report import write_report


def case(number: int, *, is_right: bool, excess: float = 0.2, **more: Any) -> dict[str, Any]:
    suspects = [{"device": "gpu", "ranks": [7], "rank": 7, "probability": 0.9}]
    return {
        "case": f"test/2048/{number}", "ranks": 2048, "dimensions": 6, "kind": "slow_rank", "shape": "lasting",
        "excess": excess, "clock": "shared", "is_top1": is_right, "is_top2": is_right, "is_device": is_right,
        "is_nobody": False, "promises": [[0.9, is_right]], "further": 0,
        "iterations_to_verdict": 4 if is_right else None,
        "verdicts": [{"kind": "slow_rank", "iterations": [20, 30], "suspects": suspects}],
        "truth": {"kind": "slow_rank", "culprits": [["gpu", 3]]}, "iterations": 48, "operators": 2048 * 48 * 60,
        "reduced_s": 2.0, "judged_s": 3.0, "reads": 4,
        "irregular_iterations": [20, 21], "log_bytes": 1000.0, "evidence_bytes": 10, "read_bytes": 20.0,
        **more,
    }  # fmt: skip


def found(cases: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "command": "python -m x", "split": "test", "first_seed": 500, "deltas": [1.1, 1.5], "machine": "2 cores",
        "processes": 2, "commit": "abc", "took_s": 60.0, "is_complete": True, "cases": cases, "further": [],
        "blameless": [], "bytes": None, **more,
    }  # fmt: skip


def test_shares_count_excesses_of_10_percent_and_more() -> None:
    cases = [case(n, is_right=n > 0) for n in range(4)] + [case(9, is_right=False, excess=0.05)]
    report = write_report(found(cases))
    assert "| top-1, 2,048 GPUs | ≥ 99% | 75.0% (30.1% to 95.4%, 3 of 4) | 97.2% |" in report
    assert "| 5% | 0.0% |" in report
    assert "## Wrong: 2 of 5" in report
    assert "| test/2048/0 | slow_rank | lasting | 20% | shared | gpu 3 | slow_rank [20, 30]: gpu 7 0.90 |" in report


def test_calibration_bytes_and_time_stand_in_the_report() -> None:
    report = write_report(found([case(n, is_right=n > 0) for n in range(10)]))
    assert "10 accusations. Expected calibration error 0.000" in report
    assert "| 2,048 GPUs of the suite | 60 | 1.00% | 2.00% | 3.00% |" in report
    assert "| 2,048 | 4 | 4 |" in report


def test_delta_is_compared_on_the_cases_that_tried_it() -> None:
    other = {"is_top1": False, "is_nobody": True}
    cases = [case(n, is_right=True, by_delta={"1.5": other}) for n in range(3)]
    report = write_report(found(cases))
    assert "| 1.1 | 100.0% | 43.9% to 100.0% | 0 | 100% |" in report
    assert "| 1.5 | 0.0% | 0.0% to 56.1% | 3 | 0% |" in report


def test_accusations_of_blameless_jobs_are_per_1000_iterations() -> None:
    row = {"kind": "healthy", "iterations": 500, "devices_accused": 1, "blameless_verdicts": 2, "ranks": 64,
           "irregular_iterations": [1, 2], "promises": [[0.6, False]], "case": "test/healthy/0"}  # fmt: skip
    report = write_report(found([case(0, is_right=True)], blameless=[row]))
    assert "| healthy | 500 | 2.00 | 11.2 | 4.00 | 2 |" in report


@pytest.mark.parametrize("cases", [[], [case(0, is_right=False)]])
def test_a_report_of_little_is_written_and_says_that_it_was_stopped(cases: list[dict[str, Any]]) -> None:
    report = write_report(found(cases, is_complete=False))
    assert "Stopped before its end" in report
    assert "none measured" in report
