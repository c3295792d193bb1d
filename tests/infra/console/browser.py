"""A headless Chromium, the one that the machine has: nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATIENCE_MS = 120_000  # what a page waits for has come by then, also on a busy machine


def chromium_path() -> str | None:
    """Return where Chromium is: what ``CHROMIUM`` names, else Debian's; None: this machine has none."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


needs_browser = pytest.mark.skipif(
    chromium_path() is None or find_spec("playwright") is None,
    reason="chromium (apt-get install) and playwright (pip install) must be installed; one of them is not",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start it, and close it at the end."""
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    assert path is not None, "chromium must be installed (Debian: apt-get install chromium)"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"], timeout=PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()
