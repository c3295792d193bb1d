"""Show each failure when it happens, and at the end how often each test has failed in the runs that were kept.

A run that is cut off at a limit of time has shown its failures by then, and a test that fails now and then is seen.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

KEPT = 50


class Failures:
    """Writes failed reports to the terminal of the process that collects them, and keeps a record of the run."""

    def __init__(self, terminal: pytest.TerminalReporter, config: pytest.Config) -> None:
        self._terminal, self._record = terminal, config.rootpath / "build" / "test-runs.jsonl"
        self._suite, self._load = " ".join([*config.args, config.option.markexpr]), os.getloadavg()[0]
        self._run, self._failed = set[str](), set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write what failed, whole; pytest's own summary repeats it at the end."""
        self._run.add(report.nodeid)
        if report.failed:
            self._failed.add(report.nodeid)
            self._terminal.ensure_newline()
            self._terminal.write_sep("=", f"{report.nodeid} ({report.when}, {report.duration:.0f} s)", red=True)
            self._terminal.write_line(report.longreprtext)

    def pytest_terminal_summary(self, config: pytest.Config) -> None:
        """Keep this run, and print a table of the tests that failed in it or in those before."""
        run = {
            "time": f"{datetime.now().astimezone():%F %R}", "commit": _commit(config.rootpath), "suite": self._suite,
            "load": [round(load, 1) for load in (self._load, os.getloadavg()[0])], "tests": len(self._run),
            "failed": sorted(self._failed),
        }  # fmt: skip
        runs = [*_read(self._record), run][-KEPT:]
        self._record.parent.mkdir(exist_ok=True)
        self._record.write_text("".join(f"{json.dumps(one)}\n" for one in runs))
        alike = [one for one in runs if one["suite"] == self._suite]
        counts = Counter(name for one in alike for name in one["failed"])
        if counts:
            self._terminal.section(f"tests that failed in the last {len(alike)} runs")
        for name, count in counts.most_common():
            last = next(one for one in reversed(alike) if name in one["failed"])
            place = f"last {last['time']}, {last['commit']}, load {last['load'][0]:g} to {last['load'][1]:g}"
            self._terminal.write_line(f"{count:4} of {len(alike)}  {name}  ({place})")


def _read(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def _commit(folder: Path) -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take part in the process alone that has the terminal, not in those of pytest-xdist."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(terminal, config))
