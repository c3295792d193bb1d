"""Which test files took longest: a table at the end of a run, with seconds waited and seconds of CPU.

The CPU seconds count what the file's own process and its ended children used, so they are the same on a busy machine.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterable
from typing import NamedTuple

import pytest

SHOWN = 15
_CPU_S = "cpu_s"


class FileTime(NamedTuple):
    """Seconds that the tests of one file took together, set-up included."""

    path: str
    waited_s: float
    cpu_s: float


class PhaseClock:
    """CPU seconds from one report to the next in one process of tests."""

    def __init__(self) -> None:
        self._last_s = _cpu_s()

    def lap_s(self) -> float:
        """Return the CPU seconds used since the last call."""
        before_s, self._last_s = self._last_s, _cpu_s()
        return self._last_s - before_s


def longest(reports: Iterable[pytest.TestReport]) -> list[FileTime]:
    """Sum the reports by file, the longest first."""
    waited_s: defaultdict[str, float] = defaultdict(float)
    cpu_s: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        path = report.nodeid.partition("::")[0]
        waited_s[path] += report.duration
        cpu_s[path] += sum(float(str(value)) for name, value in report.user_properties if name == _CPU_S)
    files = [FileTime(path, waited, cpu_s[path]) for path, waited in waited_s.items()]
    return sorted(files, key=lambda one: one.waited_s, reverse=True)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


_CLOCK = PhaseClock()


def pytest_runtest_logstart() -> None:
    """Leave out what lies between two tests, such as the collection before the first."""
    _CLOCK.lap_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the CPU seconds of a phase of a test (set-up, call, tear-down) into its report."""
    report = yield
    report.user_properties = [*report.user_properties, (_CPU_S, _CLOCK.lap_s())]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, also under pytest-xdist: the reports of all its processes come together here."""
    reports = [one for kind in terminalreporter.stats.values() for one in kind if isinstance(one, pytest.TestReport)]
    found = longest(reports)
    terminalreporter.section(f"{min(SHOWN, len(found))} longest of {len(found)} files")
    for one in found[:SHOWN]:
        terminalreporter.write_line(f"{one.waited_s:8.1f} s  {one.cpu_s:7.1f} s CPU  {one.path}")
    total = FileTime("all files", sum(one.waited_s for one in found), sum(one.cpu_s for one in found))
    terminalreporter.write_line(f"{total.waited_s:8.1f} s  {total.cpu_s:7.1f} s CPU  {total.path}")
