"""Everything that a platform team applies can be had from an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.shipped_files import FOLDERS, shipped_files, write_kit
from tests.infra.kit.manifests import rendered

ROOT = Path(__file__).resolve().parents[3]


def test_it_has_every_file_of_its_folders_that_is_not_python() -> None:
    there = {path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / "infra" / folder).rglob("*")
             if path.is_file() and path.suffix not in (".py", ".pyc")}  # fmt: skip
    assert shipped_files().keys() == there
    assert {"infra/kit/systemd/kafka-login.conf", "infra/node/agent.toml"} <= there


def test_what_is_written_is_byte_for_byte_the_same_and_its_overlays_can_be_rendered(tmp_path: Path) -> None:
    written = write_kit(tmp_path / "new")
    for path in written:
        assert path.read_bytes() == (ROOT / path.relative_to(tmp_path / "new")).read_bytes()
    for overlay in ("small", "production"):
        assert rendered(tmp_path / "new" / "infra" / "kit" / "kubernetes" / "overlays" / overlay)


def test_what_is_there_is_not_written_over_and_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.env").write_text("mine")
    with pytest.raises(InputError, match="must be new or empty"):
        write_kit(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["site.env"]
    monkeypatch.setattr("irregulars.infra.shipped_files.FOLDERS", ("kit/not-there",))
    with pytest.raises(InputError, match="infra/kit/not-there must be in the installed package"):
        write_kit(tmp_path / "new")
