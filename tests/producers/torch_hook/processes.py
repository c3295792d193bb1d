"""Ranks with torch, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 600.0
NEEDS_TORCH = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("torch") is None, reason="torch must be installed for tests of the hook (make torch); it is not"
    ),
]


def run_python(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments], cwd=directory, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def run_ranks(arguments: Sequence[str], directory: Path, count: int) -> list[tuple[str, str]]:
    """Run all ranks of a job to their end; return the output and log of each. Any that fails fails the test."""
    common = {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", *arguments], cwd=directory, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]  # fmt: skip
    try:
        found = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * count, "\n".join(log for _, log in found)
    return found
