"""That every producer of ours sends in the same way."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("producers", "streams", "detectors", "sinks", "infra")
SOURCES = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py"))]
MAKERS = [path for path in SOURCES if "new_producer(" in path.read_text() and path.name != "login_password.py"]
BY_THEMSELVES = {"login_password.py", "kafka_answers.py", "local_services.py"}
"""Who makes clients of the library itself; the last two ask a broker of ours on this machine, without a login."""


def names(path: Path) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}


def test_some_files_make_a_producer() -> None:
    assert len(MAKERS) >= 3


@pytest.mark.parametrize("path", MAKERS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_who_makes_a_producer_gives_it_our_way_of_sending(path: Path) -> None:
    """`tests/faults/test_refused_first_request.py` shows what is lost otherwise."""
    assert "SENDING" in names(path)


def test_all_clients_are_made_where_they_take_a_new_password() -> None:
    made = re.compile(r"[^_\w](Producer|Consumer|AdminClient)\(")
    found = {path.name for path in SOURCES if any(made.search(line) for line in code_lines(path))}
    assert found - BY_THEMSELVES - {"broker.py"} == set()
    assert "AdminClient(current(config))" in (ROOT / "streams" / "kafka" / "broker.py").read_text()


def code_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("class ")]
