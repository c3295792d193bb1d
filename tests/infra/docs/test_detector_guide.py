"""The guide for those who write detectors, run as it is written: each block, in its order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from irregulars.detectors.plugins import protocol

ROOT = Path(__file__).resolve().parents[3]
PAGE = (
    (ROOT / "infra" / "docs" / "detectors.md").read_text().split("## From nothing to a custom")[1].split("\n## ")[0]
)
BLOCKS = re.findall(r"^```(\w+(?: \w+)?)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
CAN_ALERT = hasattr(protocol, "opens_verdicts")


class Reader:
    """Somebody who types the guide: keeps the folder that ``cd`` went to, and what was printed."""

    def __init__(self, folder: Path) -> None:
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        command = bin_folder / "irregulars"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m irregulars "$@"\n')
        command.chmod(0o755)
        self.folder = folder
        self.bin = bin_folder
        self.printed = ""

    def type(self, block: str) -> None:
        """Run a block of the shell; each command must succeed."""
        environment: Mapping[str, str] = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        script = block.replace("export PYTHONPATH=$PWD", f"export PYTHONPATH=$PWD:{ROOT}") + '\npwd > "$TYPED_IN"\n'
        place = self.bin / "pwd"
        done = subprocess.run(
            ["sh", "-e", "-c", script], cwd=self.folder, env={**environment, "TYPED_IN": str(place)},
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.printed += done.stdout
        self.folder = Path(place.read_text().strip())

    def edit(self, block: str) -> None:
        """Change the lines of the detector as a diff says: each that goes is there once."""
        file = self.folder / "quiet_loss.py"
        text = file.read_text()
        for old, new in re.findall(r"^-(.*)\n\+(.*)$", block, flags=re.MULTILINE):
            assert text.count(f"{old}\n") == 1, old
            text = text.replace(f"{old}\n", f"{new}\n")
        file.write_text(text)

    def has_seen(self, block: str) -> None:
        """Find each line of a block among what was printed; … stands for anything."""
        for line in block.splitlines():
            pattern = re.escape(line).replace(re.escape("…"), ".*")
            pattern = re.sub(r"(\\ )+", r"\\s+", pattern)
            assert re.search(rf"^{pattern}\s*$", self.printed, flags=re.MULTILINE), f"{line!r} in\n{self.printed}"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Somebody who has followed the guide up to its last step."""
    reader = Reader(tmp_path_factory.mktemp("guide"))
    for kind, text in BLOCKS:
        if kind == "bash":
            reader.type(text)
        elif kind == "diff":
            reader.edit(text)
        elif kind == "text":
            reader.has_seen(text)
    return reader


def test_the_guide_works_as_written_and_prints_what_it_shows(reader: Reader) -> None:
    assert "quiet_loss:QuietLoss       1.00" in reader.printed
    assert (reader.folder / "quiet_loss.svg").read_text().startswith("<svg")
    assert [kind for kind, _ in BLOCKS].count("bash") == 4


@pytest.mark.skipif(
    not CAN_ALERT, reason="detectors must be able to open verdicts; the protocol has no opens_verdicts"
)
def test_its_last_step_alerts(reader: Reader) -> None:
    (block,) = (text for kind, text in BLOCKS if kind == "bash alert")
    (shown,) = (text for kind, text in BLOCKS if kind == "text alert")
    reader.type(block)
    reader.has_seen(shown)
