"""A run of tests keeps within its time, shows failures at once, and knows which tests failed before."""

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
    pytester.makepyfile(
        test_two="from tests import time_limit\ndef test_slow(): time_limit._STARTED_S -= 3600\n"
        "def test_late(): assert False"
    )
    done = pytester.runpytest_subprocess("-p", "tests.time_limit", "--within-s=3600", "-rs", *processes)
    done.assert_outcomes(passed=1, skipped=1)
    done.stdout.fnmatch_lines(["SKIPPED*tests must begin within 3600 s; no time was left for this one"])


def test_without_a_limit_all_tests_begin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_one="def test_one(): pass")
    pytester.runpytest_subprocess("-p", "tests.time_limit").assert_outcomes(passed=1)


@pytest.mark.parametrize("processes", PROCESSES)
def test_a_failure_is_shown_before_the_run_ends(pytester: pytest.Pytester, processes: tuple[str, ...]) -> None:
    pytester.makepyfile(test_one="def test_wrong():\n    found = 41\n    assert found == 42\ndef test_right(): pass")
    done = pytester.runpytest_subprocess("-p", "tests.failures", *processes)
    shown = done.stdout.str().split("= FAILURES =")[0]
    assert "test_one.py::test_wrong (call, 0 s)" in shown
    assert "assert 41 == 42" in shown


def test_a_test_that_failed_in_an_earlier_run_is_named_with_how_often(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_one="import pathlib\ndef test_right(): pass\n"
        "def test_now_and_then(): assert pathlib.Path('good').exists()"
    )
    for _ in range(2):
        pytester.runpytest_inprocess("-p", "tests.failures").assert_outcomes(passed=1, failed=1)
    (pytester.path / "good").touch()
    done = pytester.runpytest_inprocess("-p", "tests.failures")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["*tests that failed in the last 3 runs*", "*2 of 3  test_one.py::test_now_and_then*"])
    assert "test_right" not in done.stdout.str()
