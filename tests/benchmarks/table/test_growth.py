"""What the plot of growth is drawn from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.benchmarks.table.growth import DOCS, PANELS, PICTURE, SIZES, draw, taken_in, values


def test_sizes_that_were_measured_anew_replace_older_ones() -> None:
    old = [{"ranks": 128, "run": 1}, {"ranks": 8192, "run": 1}]
    new = [{"ranks": 8192, "run": 2}, {"ranks": 1024, "run": 2}]
    assert [(one["ranks"], one["run"]) for one in taken_in(old, new)] == [(128, 1), (1024, 2), (8192, 2)]


def test_all_lines_of_the_committed_sizes_can_be_drawn_on_logarithmic_axes() -> None:
    sizes = json.loads(SIZES.read_text())
    assert [one["ranks"] for one in sizes] == sorted({one["ranks"] for one in sizes})
    assert all(min(heights) > 0 for panel in PANELS for heights in values(panel, sizes).values())


def test_the_page_shows_the_picture() -> None:
    assert PICTURE.read_bytes().startswith(b"\x89PNG")
    assert re.search(rf"!\[[^\]]+\]\({PICTURE.name}\)", (DOCS / "benchmarks.md").read_text())


def test_the_picture_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(json.loads(SIZES.read_text()), tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
