"""That every producer of ours sends in the same way."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("producers", "streams", "detectors", "sinks", "infra", "irregulars/messages", "irregulars/kafka")
SOURCES = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py"))]
BY_THEMSELVES = {"login_password.py", "demo_broker.py", "local_services.py"}
"""Who makes clients of the library itself; the last two ask a broker of ours on this machine, without a login."""


def test_every_producer_outlasts_its_fatal_errors_and_sends_in_our_way() -> None:
    """`tests/faults/test_lost_tail.py` and `test_refused_first_request.py` show what is lost otherwise."""
    makers = {path.name for path in SOURCES if "new_producer(" in path.read_text()}
    assert makers == {"login_password.py", "lasting_producer.py"}


def test_all_clients_are_made_where_they_take_a_new_password() -> None:
    made = re.compile(r"[^_\w](Producer|Consumer|AdminClient)\(")
    found = {path.name for path in SOURCES if any(made.search(line) for line in code_lines(path))}
    assert found - BY_THEMSELVES - {"broker.py"} == set()
    assert "AdminClient(current(config))" in (ROOT / "irregulars" / "kafka" / "broker.py").read_text()


def code_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("class ")]
