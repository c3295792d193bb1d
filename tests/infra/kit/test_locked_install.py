from __future__ import annotations

import re
from pathlib import Path

import pytest

from irregulars.infra.kit import locked_install
from irregulars.infra.kit.locked_install import chosen_lock, constraints, install, lock_blocks, main

ROOT = Path(__file__).resolve().parents[3]
LOCK = (ROOT / "requirements.lock").read_text()


def test_every_entry_of_the_lock_is_read() -> None:
    assert len(lock_blocks(LOCK)) == len(re.findall(r"^[\w.-]+==", LOCK, re.MULTILINE))
    assert "".join(block for _, block in lock_blocks(LOCK)) == re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE)


def test_what_is_chosen_keeps_its_hashes_and_all_its_markers() -> None:
    chosen = chosen_lock(LOCK, ["NumPy", "faust_streaming"])
    assert set(re.findall(r"^([\w.-]+)==", chosen, re.MULTILINE)) == {"numpy", "faust-streaming"}
    assert "python_full_version < '3.12'" in chosen
    assert chosen.count("--hash=sha256:") > 20


def test_what_the_lock_does_not_name_is_refused() -> None:
    with pytest.raises(
        SystemExit, match=r"requirements\.lock must name what is installed; got left-pad besides\. Run: make lock"
    ):
        chosen_lock(LOCK, ["numpy", "left-pad"])


def test_constraints_have_a_line_each_and_no_hashes() -> None:
    lines = constraints(LOCK).splitlines()
    assert len(lines) == len(lock_blocks(LOCK))
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+]+(?: ; .+)?", line)] == []


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="the folder must be new"):
        main([str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_fails_ends_it_and_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_install.sys, "executable", "/bin/false")
    with pytest.raises(SystemExit, match=r"status 0; got 1 of: /bin/false -m venv"):
        install(tmp_path / "new", ["worker"])
