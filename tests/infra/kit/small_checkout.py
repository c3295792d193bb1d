"""A checkout as git has just made it, small enough that a test can install it: it needs two packages at most."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from irregulars.infra.locked_install import SOURCES, chosen_lock

ROOT = Path(__file__).resolve().parents[3]
# What its extras need: one small package each, without dependencies
PACKAGES = {"worker": "mdurl", "console": "iniconfig"}


def small_checkout(folder: Path) -> Path:
    """Write it: our own loops in C, build settings and lock; nobody has compiled anything there."""
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
