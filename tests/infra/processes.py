"""What tests need to see of processes: whether one lives, and a way to run a parent of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def is_alive(pid: int) -> bool:
    """Whether `pid` is a process that has not ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def run_parent(script: str) -> subprocess.Popen[str]:
    """Run Python code in a process of its own, in a session of its own, its output in a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def first_line(parent: subprocess.Popen[str]) -> str:
    """Wait for the first line that a parent prints; its end is an empty line."""
    assert parent.stdout is not None
    return parent.stdout.readline().strip()
