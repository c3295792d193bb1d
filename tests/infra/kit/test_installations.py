"""What is installed is enough for each program that is started from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.infra.kit.installations import documented_extras, image_extras, install_extras
from tests.infra.kit.test_dockerfile import stage

PAGE = (Path(__file__).resolve().parents[3] / "infra" / "docs" / "deploying.md").read_text()


def started(program: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False,
                          cwd=program.parent, env={})  # fmt: skip
    return done.returncode, done.stderr


def test_images_and_machines_get_the_same() -> None:
    extras = documented_extras(PAGE, "Machines with systemd")
    assert set(extras) == {"worker", "console"}
    for image in ("worker", "console"):
        assert image_extras(stage(image)) == extras
    assert image_extras(stage("agent")) == documented_extras(PAGE, "Agents") == ()


def test_the_console_does_not_start_from_what_a_worker_needs(tmp_path: Path) -> None:
    """That it starts from what is documented: tests/integration/test_installed_programs.py."""
    program = install_extras(tmp_path / "new", ["worker"])
    status, said = started(program, "console", "--listen", "127.0.0.1:0", "--no-kafka")
    assert (status, said.split(";")[0]) == (2, "irregulars: package starlette must be installed")
    assert started(program, "topics", "--help") == (0, "")
