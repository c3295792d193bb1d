from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder of files that are followed."""
    made = tmp_path / "in"
    made.mkdir()
    return made
