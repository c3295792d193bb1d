from __future__ import annotations

from pathlib import Path

import pytest

from irregulars.producers.importers import following


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder of files that are followed."""
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.fixture(autouse=True)
def announced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of followed logs do not wait for communicators of later lines."""
    monkeypatch.setattr(following, "ANNOUNCE_S", 0.0)
