"""Show each failure when it happens: a run that is cut off at a limit of time has then said what it found."""

from __future__ import annotations

import pytest


class FailuresAtOnce:
    """Writes failed reports to the terminal of the process that collects them."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write what failed, whole; pytest's own summary repeats it at the end."""
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.write_sep("=", f"{report.nodeid} ({report.when}, {report.duration:.0f} s)", red=True)
            self._terminal.write_line(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take part in the process alone that has the terminal, not in those of pytest-xdist."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(terminal))
