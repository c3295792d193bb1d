from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.infra.conftest import Run, refused

EXAMPLE = ROOT / "infra" / "node" / "agent.toml"


def test_a_file_can_be_checked_without_starting_anything_and_flags_are_stronger(run: Run) -> None:
    told = f"{EXAMPLE}: 1 source, 0 ranks; nothing is wrong with it\n"
    assert run("agent", "--check", str(EXAMPLE)) == (0, told, "")
    flags = ("agent", "--check", "--bootstrap", "nowhere", str(EXAMPLE))
    assert "kafka_bootstrap must be host:port" in refused(run, *flags)


@pytest.mark.parametrize(("text", "complaint"), [
    ("[nicks]", "setting must be a known one; got 'nicks' (agent.toml, key nicks)"),
    ("[[sources]]\nkind = 'kineto'\njob = 'j'", "key directory must be there; got none (agent.toml, sources 1)"),
    ("[[sources]]\nkind = 'kinetto'", "kind must be one of replay, torch, nccl-ras, kineto, "),
    ("[[sources]]\nkind = 'torch'\nmode = '0660'", "got '0660' (agent.toml, sources 1, key mode)"),
    ("[[sources]]\nkind = 'torch'\nmode = 0o70", "mode must be permissions, 0o600 to 0o777; got 0o70 (socket "),
    ("[[sources]]\nkind = 'torch'\n[[sources]]\nkind = 'torch'\npath = 'other'",
     "name must be another than those before; got 'torch' (agent.toml, sources 2, key name)"),
])  # fmt: skip
def test_checking_looks_at_settings_and_sources(run: Run, text: str, complaint: str) -> None:
    Path("agent.toml").write_text(text)  # `run` has changed into an empty directory
    assert complaint in refused(run, "agent", "--check", "agent.toml")


def test_a_spool_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('[spool]\ndirectory = "agent.toml/spool"\n')
    command = [sys.executable, "-m", "irregulars", "agent", "agent.toml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    rule = "spool directory must be one that we can write"
    assert (done.returncode, done.stderr) == (2, f"irregulars: {rule}; got Not a directory (agent.toml/spool)\n")
