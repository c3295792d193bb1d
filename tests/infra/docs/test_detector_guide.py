"""The guide for those who write detectors, run as it is written: each block, in its order, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from irregulars.detectors.plugins import protocol
from tests.conftest import ROOT
from tests.integration.guide_reader import Reader, blocks_of

(HEADING,) = re.findall(r"^## (From nothing to a custom.*)$", (ROOT / "infra/docs/detectors.md").read_text(), re.M)
PATH = "export PYTHONPATH=$PWD"
BLOCKS = [(kind, text.replace(PATH, f"{PATH}:{ROOT}")) for kind, text in blocks_of("detectors.md", HEADING)]
CAN_ALERT = hasattr(protocol, "opens_verdicts")


def edit(file: Path, block: str) -> None:
    """Change the lines of a file as a diff says: each that goes is there once."""
    text = file.read_text()
    for old, new in re.findall(r"^-(.*)\n\+(.*)$", block, flags=re.MULTILINE):
        assert text.count(f"{old}\n") == 1, old
        text = text.replace(f"{old}\n", f"{new}\n")
    file.write_text(text)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """Somebody who has followed the guide up to its last step."""
    reader = Reader(tmp_path_factory.mktemp("guide"), {})
    for kind, text in BLOCKS:
        if kind == "bash":
            reader.type(text)
        elif kind == "diff":
            edit(next(reader.folder.rglob("quiet_loss.py")), text)
        elif kind == "text":
            reader.has_seen(text)
    return reader


def test_the_guide_works_as_written_and_prints_what_it_shows(reader: Reader) -> None:
    assert "quiet_loss:QuietLoss       1.00" in reader.printed
    assert next(reader.folder.rglob("quiet_loss.svg")).read_text().startswith("<svg")
    assert [kind for kind, _ in BLOCKS].count("bash") == 4


@pytest.mark.skipif(
    not CAN_ALERT, reason="detectors must be able to open verdicts; the protocol has no opens_verdicts"
)
def test_its_last_step_alerts(reader: Reader) -> None:
    (block,) = (text for kind, text in BLOCKS if kind == "bash alert")
    (shown,) = (text for kind, text in BLOCKS if kind == "text alert")
    reader.type(block)
    reader.has_seen(shown)
