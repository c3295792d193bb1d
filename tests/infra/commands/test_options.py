from __future__ import annotations

import sys
from pathlib import Path

import pytest

from irregulars.infra.commands.options import program


def test_commands_are_named_as_a_shell_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tmp_path / "my jobs" / ".venv" / "bin", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == "irregulars", "installed elsewhere: nothing better is known"
    for folder in (own, other):
        (folder / "irregulars").touch(0o755)
    monkeypatch.chdir(tmp_path / "my jobs")
    assert program() == ".venv/bin/irregulars"
    monkeypatch.chdir(own)
    assert program() == f"'{own}/irregulars'"
    monkeypatch.setenv("PATH", str(other))
    monkeypatch.chdir(tmp_path)
    assert program() == "'my jobs/.venv/bin/irregulars'"
    monkeypatch.setenv("PATH", str(own))
    assert program() == "irregulars"
