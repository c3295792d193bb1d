"""That every producer of ours sends in the same way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("producers", "streams", "detectors", "sinks", "infra")
MAKERS = [
    path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py")) if " Producer(" in path.read_text()
]
GIVEN = [ROOT / "sinks" / "notices" / "actions_channel.py"]
"""Who is given the whole configuration: `infra/configuration/notify_channels.py` puts it together."""


def names(path: Path) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}


def test_some_files_make_a_producer() -> None:
    assert len(MAKERS) >= 3


@pytest.mark.parametrize("path", MAKERS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_who_makes_a_producer_gives_it_our_way_of_sending(path: Path) -> None:
    """`tests/faults/test_refused_first_request.py` shows what is lost otherwise."""
    assert "SENDING" in names(path) or path in GIVEN
