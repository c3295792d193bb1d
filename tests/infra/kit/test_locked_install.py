from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from irregulars.infra import locked_install
from irregulars.infra.locked_install import SOURCES, chosen_lock, constraints, install, lock_blocks, main

ROOT = Path(__file__).resolve().parents[3]
LOCK = (ROOT / "requirements.lock").read_text()

# What its extras need: one small package each, without dependencies
PACKAGES = {"worker": "mdurl", "console": "iniconfig"}


def small_checkout(folder: Path) -> Path:
    """Write a checkout as git has just made it, small enough to install: nobody has compiled anything there."""
    for name in SOURCES:
        if "." not in name and name != "LICENSE":
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").write_text('"""Nothing."""\n__version__ = "0.1.0"\n')
    for name in ("README.md", "LICENSE", "requirements.lock", "irregulars/_kernel.c", "irregulars/version.py"):
        shutil.copy(ROOT / name, folder / name)
    project = (ROOT / "pyproject.toml").read_text()
    extras = "".join(f'{extra} = ["{package}"]\n' for extra, package in PACKAGES.items())
    project = re.sub(r"^dependencies = \[.*?^\]", "dependencies = []", project, flags=re.MULTILINE | re.DOTALL)
    project = re.sub(r"(?<=^\[project\.optional-dependencies\]\n).*?(?=^\[)", extras + "\n", project,
                     flags=re.MULTILINE | re.DOTALL)  # fmt: skip
    (folder / "pyproject.toml").write_text(project)
    return folder


def fetch_packages(folder: Path) -> None:
    """Fetch what its installation needs from the index; skip where that can't be reached."""
    chosen = folder / "chosen.lock"
    folder.mkdir()
    chosen.write_text(chosen_lock((ROOT / "requirements.lock").read_text(), ["setuptools", *PACKAGES.values()]))
    pip = [sys.executable, "-m", "pip", "--quiet", "download", "--require-hashes", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*pip, "--dest", str(folder), "--requirement", str(chosen)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"packages must be had from the index to install a checkout; got {done.stderr.strip()[-300:]}")


def test_every_entry_of_the_lock_is_read_and_constrains() -> None:
    assert len(lock_blocks(LOCK)) == len(re.findall(r"^[\w.-]+==", LOCK, re.MULTILINE))
    assert "".join(block for _, block in lock_blocks(LOCK)) == re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE)
    lines = constraints(LOCK).splitlines()
    assert len(lines) == len(lock_blocks(LOCK))
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+]+(?: ; .+)?", line)] == []


def test_what_is_chosen_keeps_its_hashes_and_all_its_markers_or_is_refused() -> None:
    chosen = chosen_lock(LOCK, ["NumPy", "faust_streaming"])
    assert set(re.findall(r"^([\w.-]+)==", chosen, re.MULTILINE)) == {"numpy", "faust-streaming"}
    assert "python_full_version < '3.12'" in chosen
    assert chosen.count("--hash=sha256:") > 20
    with pytest.raises(
        SystemExit, match=r"requirements\.lock must name what is installed; got left-pad besides\. Run: make lock"
    ):
        chosen_lock(LOCK, ["numpy", "left-pad"])


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="the folder must be new"):
        main([str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages") / "fetched"
    fetch_packages(folder)
    return folder


@pytest.fixture
def checkout(tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a fresh checkout that is the working directory, as the documentation has it."""
    checkout = small_checkout(tmp_path / "checkout")
    monkeypatch.chdir(checkout)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(packages)), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)
    return checkout


def test_a_fresh_checkout_is_installed_with_each_extra_that_is_named(tmp_path: Path, checkout: Path) -> None:
    into = tmp_path / "opt" / "irregulars" / "0.1.0"
    install(into, list(PACKAGES), checkout)
    assert list((checkout / "irregulars").glob("*.so")) == []
    needed = ", ".join(["irregulars._kernel", *PACKAGES.values()])
    done = subprocess.run([into / "bin" / "python", "-I", "-c", f"import {needed}"], check=False)
    assert done.returncode == 0
    left = {path.name.split("-")[0] for path in into.glob("lib/python*/site-packages/*.dist-info")}
    assert left == {"irregulars", *PACKAGES.values()}


def test_of_a_failed_installation_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = tmp_path / "python"
    begun.write_text('#!/bin/sh\nmkdir "$4" && touch "$4/half" && exit 3\n')
    begun.chmod(0o755)
    monkeypatch.setattr(locked_install.sys, "executable", str(begun))
    for _ in ("first", "and again"):
        with pytest.raises(SystemExit, match=r"status 0; got 3 of: .* -I -m venv"):
            install(tmp_path / "new", ["worker"])
        assert not (tmp_path / "new").exists()


def test_where_the_loops_were_not_compiled_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small_checkout(tmp_path / "checkout"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "new")], check=True)
    with pytest.raises(SystemExit, match=r"status 0; got 1 of: .* -c import irregulars\._kernel"):
        locked_install.check_compiled(str(tmp_path / "new" / "bin" / "python"))
