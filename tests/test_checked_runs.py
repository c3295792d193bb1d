"""A run of tests keeps within its time, shows failures at once, and knows which tests failed before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run_checks import FAULTY, SINGLE

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_no_test_begins_after_the_limit_and_a_failure_is_shown_before_the_run_ends(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_three="from tests import time_limit\n"
        "def test_wrong():\n    found = 41\n    assert found == 42\n"
        "def test_slow(): time_limit._STARTED_S -= 3600\n"
        "def test_late(): assert False"
    )
    plugins = ("-p", "tests.time_limit", "-p", "tests.failures", "--numprocesses=1", "--dist=loadfile")
    done = pytester.runpytest_subprocess(*plugins, "--within-s=3600", "-rs")
    done.assert_outcomes(passed=1, failed=1, skipped=1)
    done.stdout.fnmatch_lines(["SKIPPED*tests must begin within 3600 s; no time was left for this one"])
    shown = done.stdout.str().split("= FAILURES =")[0]
    assert "test_three.py::test_wrong (call, 0 s)" in shown
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


def test_what_runs_with_the_faults_alone_is_there() -> None:
    assert [path for path in FAULTY if not (ROOT / path).exists()] == []
    named = [one.split("::") for one in SINGLE]
    assert [name for path, name in named if f"\ndef {name}(" not in (ROOT / path).read_text()] == []
