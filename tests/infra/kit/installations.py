"""Installations that hold no more packages than the extras need that somebody installs: links to our own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path

from packaging.requirements import Requirement

from irregulars.infra.locked_install import canonical
from tests.infra.kit.test_dockerfile import stage

ROOT = Path(__file__).resolve().parents[3]
_INSTALLER = "infra/locked_install.py"


def install_extras(folder: Path, extras: Iterable[str]) -> Path:
    """Make the virtual environment `folder` as ``locked_install.py --extra …`` would; return its ``irregulars``.

    Its packages are links to ours, so that it takes no time; what the extras do not need is not there.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in {"irregulars", *needed_distributions(extras)}:
        # Link the packages and modules of a distribution; files that only pip or a shell reads are left out.
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            place = packages / top
            if not top.endswith(".pth") and not top.startswith("__editable__") and not place.exists():
                place.symlink_to(Path(str(found.locate_file(top))))
    link = packages / "irregulars"
    link.unlink(missing_ok=True)
    link.symlink_to(ROOT / "irregulars")  # ours is an editable installation, which has none
    program = folder / "bin" / "irregulars"
    program.write_text(
        f"#!{folder}/bin/python -I\nimport sys\nfrom irregulars.infra.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    return program


def needed_distributions(extras: Iterable[str]) -> set[str]:
    """Return what `irregulars` with `extras` needs here, and what that needs, by names."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [("irregulars", frozenset(extras))]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += _required(*one)
    return {name for name, _ in found} - {"irregulars"}


def _required(name: str, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    wanted = [Requirement(text) for text in distribution(name).requires or ()]
    asked = [{"extra": extra} for extra in ("", *extras)]
    return [
        (canonical(one.name), frozenset(one.extras)) for one in wanted
        if one.marker is None or any(one.marker.evaluate(environment) for environment in asked)
    ]  # fmt: skip


def extras_of(words: Iterable[str]) -> tuple[str, ...]:
    """Return the extras that a call of the installer names.

    >>> extras_of(["python3", "infra/locked_install.py", "/opt/x", "--extra", "worker", "--extra", "console"])
    ('worker', 'console')
    """
    words = list(words)
    return tuple(after for word, after in pairwise(words) if word == "--extra")


def documented_extras(page: str, section: str) -> tuple[str, ...]:
    """Return the extras of the first installation below a heading of a page."""
    text = page.split(f"# {section}\n", 1)[1]
    call = re.search(rf"^ {{4}}(python3 {_INSTALLER} .*)$", text, re.MULTILINE)
    assert call is not None, section
    return extras_of(shlex.split(call[1]))


def image_extras(steps: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the extras of the installation that an image copies."""
    (source,) = (re.findall(r"--from=(\S+)", text)[0] for word, text in steps if word == "COPY")
    (call,) = (json.loads(text) for word, text in stage(source) if word == "RUN" and _INSTALLER in text)
    return extras_of(call)
