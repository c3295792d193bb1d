from __future__ import annotations

from pathlib import Path

import pytest

from tests.slowest_files import FileTime, PhaseClock, longest

ROOT = Path(__file__).resolve().parent.parent
pytest_plugins = "pytester"
ONE_FILE = """
import time
import pytest

@pytest.fixture(scope="module")
def busy():
    until_s = time.process_time() + 0.2
    while time.process_time() < until_s:
        pass

def test_one(busy): pass
def test_two(busy): pass
"""


def report(nodeid: str, duration_s: float, cpu_s: float) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid, ("", 0, ""), {}, "passed", None, "call", duration=duration_s, user_properties=[("cpu_s", cpu_s)]
    )


def test_phases_of_a_file_are_summed_and_the_longest_comes_first() -> None:
    reports = [report("a.py::x", 1.0, 0.5), report("b.py::y", 5.0, 0.25), report("a.py::z[1]", 2.0, 1.0)]
    assert longest(reports) == [FileTime("b.py", 5.0, 0.25), FileTime("a.py", 3.0, 1.5)]


def test_the_clock_counts_what_this_process_used_since_the_last_lap() -> None:
    clock = PhaseClock()
    sum(range(3_000_000))
    assert clock.lap_s() > 0
    assert clock.lap_s() < 0.01  # of CPU: a busy machine can't stretch it


@pytest.mark.parametrize("processes", [(), ("--numprocesses=2", "--dist=loadfile")])
def test_a_run_ends_with_the_table(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, processes: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(test_busy=ONE_FILE, test_idle="def test_idle(): pass")
    done = pytester.runpytest_subprocess("-p", "tests.slowest_files", *processes)
    lines = [line for line in done.stdout.lines if line]
    start = next(number for number, line in enumerate(lines) if "2 longest of 2 files" in line)
    first, second, total = (line.split() for line in lines[start + 1 : start + 4])
    assert [first[-1], second[-1], total[-2:]] == ["test_busy.py", "test_idle.py", ["all", "files"]]
    assert float(first[2]) >= 0.2
