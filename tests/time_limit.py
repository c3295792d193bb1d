"""Begin no test after a limit of time: what was not tried is skipped, and the summary says so."""

from __future__ import annotations

import time

import pytest

_STARTED_S = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the limit."""
    parser.addoption("--within-s", type=float, help="skip the tests that have not begun after so many seconds")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what comes too late, before its fixtures start anything."""
    limit_s: float | None = item.config.getoption("--within-s")
    if limit_s is not None and time.monotonic() - _STARTED_S > limit_s:
        pytest.skip(f"tests must begin within {limit_s:g} s; no time was left for this one")
