"""What keeps a run of tests within its time, and says what it found when it is cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = [(), ("--numprocesses=2", "--dist=loadfile")]


@pytest.fixture(autouse=True)
def checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize("processes", PROCESSES)
def test_no_test_begins_after_the_limit_and_the_summary_says_so(
    pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_two="import time\ndef test_slow(): time.sleep(4)\ndef test_late(): assert False")
    done = pytester.runpytest_subprocess("-p", "tests.time_limit", "--within-s=3.5", "-rs", *processes)
    done.assert_outcomes(passed=1, skipped=1)
    done.stdout.fnmatch_lines(["SKIPPED*tests must begin within 3.5 s; no time was left for this one"])


def test_without_a_limit_all_tests_begin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_one="def test_one(): pass")
    pytester.runpytest_subprocess("-p", "tests.time_limit").assert_outcomes(passed=1)


@pytest.mark.parametrize("processes", PROCESSES)
def test_a_failure_is_shown_before_the_run_ends(pytester: pytest.Pytester, processes: tuple[str, ...]) -> None:
    pytester.makepyfile(test_one="def test_wrong():\n    found = 41\n    assert found == 42\ndef test_right(): pass")
    done = pytester.runpytest_subprocess("-p", "tests.failures_at_once", *processes)
    shown = done.stdout.str().split("= FAILURES =")[0]
    assert "test_one.py::test_wrong (call, 0 s)" in shown
    assert "assert 41 == 42" in shown
