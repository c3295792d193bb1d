"""The pages as a site: built strictly, every page behind one of four doors, and nothing fetched from outside."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "infra" / "docs"
CONFIG = ROOT / "infra" / "docs_site" / "mkdocs.yml"
NAV = CONFIG.read_text().split("\nnav:\n")[1]
DOORS = ("3 a.m.", "Operate", "Integrate", "Extend")
LOADED = re.compile(r"""<(script|img|iframe|source|link)\b[^>]*\b(src|href)=["']?(https?:)?//""")
CSS_LOADED = re.compile(r"""url\(["']?(?:https?:)?//|@import ["'](?:https?:)?//""")

is_installed = all(importlib.util.find_spec(name) for name in ("mkdocs", "material"))
needs_mkdocs = pytest.mark.skipif(
    not is_installed, reason="mkdocs must be installed (pip install '.[docs]'); it is not"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(CONFIG, folder)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    return folder


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """As `make site` does it; with --quiet there would be no warnings that --strict could count."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(folder)]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True,
                          text=True, check=False, timeout=300)  # fmt: skip


def test_there_are_four_doors_and_every_page_is_behind_one() -> None:
    assert tuple(re.findall(r"^  - ([^:]+):$", NAV, re.MULTILINE)) == DOORS
    behind = re.findall(r"^      - .*: ([\w-]+\.md)$", NAV, re.MULTILINE)
    assert sorted([*behind, "commands.md", "index.md"]) == sorted(path.name for path in DOCS.glob("*.md"))


@needs_mkdocs
def test_the_site_has_every_page_and_fetches_nothing_from_outside(site: Path) -> None:
    pages = {path.parent.name for path in site.glob("*/index.html")}
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} <= pages
    assert [path.name for path in site.rglob("*.html") if LOADED.search(path.read_text())] == []
    assert [path.name for path in site.rglob("*.css") if CSS_LOADED.search(path.read_text())] == []


@needs_mkdocs
def test_links_between_pages_and_to_headings_are_those_of_the_repository(site: Path) -> None:
    home = (site / "index.html").read_text()
    assert 'href="judgement/#how-urgent-is-it"' in home
    assert 'id="slow_nic"' in (site / "runbook" / "index.html").read_text()
    guide = (site / "install" / "index.html").read_text()
    assert "../../tests/" not in guide
    written = (DOCS / "install.md").read_text()
    assert guide.count('<div class="language-bash') == len(re.findall(r"^```bash", written, re.MULTILINE))


@needs_mkdocs
def test_links_to_nowhere_end_the_build_and_each_is_named(tmp_path: Path) -> None:
    links = ("access.md#nope", "nowhere.md", "console/nothing.png")
    copy = tmp_path / "repository" / "infra"
    shutil.copytree(DOCS, copy / "docs")
    shutil.copytree(CONFIG.parent, copy / "docs_site")
    with (copy / "docs" / "doctor.md").open("a") as page:
        page.write("".join(f"\nSee [there]({link}).\n" for link in links))
    done = build(copy / "docs_site" / CONFIG.name, tmp_path / "site")
    assert done.returncode == 1
    assert [link for link in links if link.partition("#")[0] not in done.stderr] == []


def test_each_page_says_in_its_first_lines_for_whom_it_is() -> None:
    first = {path.name: path.read_text().split("\n\n")[1] for path in DOCS.glob("*.md")}
    assert [name for name, text in first.items() if not text.startswith("For ")] == []
