"""``irregulars demo --live``: four real processes train with torch and gloo, and the slow one is named."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from irregulars.infra.runs.published_run import LivePlan

pytestmark = [
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("torch") is None,
        reason="torch must be installed for the live demonstration (make torch); it is not",
    ),
]


def test_slow_rank_is_named(tmp_path: Path) -> None:  # a short name: it is part of the path of the agent's socket
    command = [sys.executable, "-P", "-m", "irregulars", "demo", "--live"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "Verdict   slow rank" in done.stdout
    assert f"rank {LivePlan().rank} on " in done.stdout.split("Verdict")[1].split("Evidence")[0]
    assert list(tmp_path.iterdir()) == []  # and nothing is left
