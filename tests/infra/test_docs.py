"""The documentation says what the code says."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from irregulars.detectors.plugins.checks import CHECKS
from irregulars.detectors.plugins.protocol import COLUMNS
from irregulars.infra.docs_site.made_parts import fill
from irregulars.producers.simulator.settings import PRESETS, SHAPES, SimulatorSettings

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "infra" / "docs"
PACKAGES = ("detectors", "infra", "producers", "sinks", "streams")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]


def dependencies(*left_out: str) -> set[str]:
    """Names of what the base install and the extras need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [texts for name, texts in project["optional-dependencies"].items() if name not in left_out]
    return {re.split(r"[\[<>=]", text)[0] for texts in [project["dependencies"], *extras] for text in texts} - {
        "irregulars"
    }


def test_every_dependency_has_its_reason_and_scikit_learn_its_one_user() -> None:
    explained = set(re.findall(r"^\| `([\w.-]+)` \|", (DOCS / "dependencies.md").read_text(), re.MULTILINE))
    assert explained == dependencies()
    sources = [path for top in PACKAGES for path in (ROOT / top).rglob("*.py")]
    users = [path.relative_to(ROOT).as_posix() for path in sources if "from sklearn" in path.read_text()]
    assert sorted(users) == ["detectors/plugins/adapters/naming.py"]
    assert [user for user in users if f"`{user}`" not in (DOCS / "dependencies.md").read_text()] == []


def test_the_lock_file_names_every_dependency_with_hashes_no_host_and_a_harmless_pynvml() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert dependencies("torch") <= set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)), "run: make lock"
    assert "://" not in lock
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", lock)) > 500
    # From 13 on the package puts a finder into every process of its environment, which warns at `import torch`.
    lock = (ROOT / "requirements.lock").read_text()
    (major,) = re.findall(r"^pynvml==(\d+)\.", lock, re.MULTILINE)
    assert int(major) < 13
    assert '"pynvml>=12,<13"' in (ROOT / "pyproject.toml").read_text()


def test_columns_of_both_levels_and_every_check_are_listed() -> None:
    page = fill((DOCS / "detectors.md").read_text())
    for columns in COLUMNS.values():
        for name, column in columns.items():
            assert f"| `{name}` | {column.dtype} | {column.about} |" in page
    page = fill((DOCS / "detectors.md").read_text())
    for name, check in CHECKS.items():
        assert f"| `{name}` | {check.__doc__} |" in page


def test_the_simulator_s_page_names_every_setting_shape_and_preset() -> None:
    page = fill((DOCS / "simulator.md").read_text())
    unnamed = [one.name for one in fields(SimulatorSettings) if f"`{one.name}=" not in page]
    assert unnamed == ["faults"], "these are given by --fault"
    assert [name for name in (*SHAPES, *PRESETS) if f"`{name}`" not in page] == []


def test_the_readme_is_short_and_begins_with_the_state_of_things_and_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    commands = [line.split("#")[0].strip() for line in lines if line.startswith("    make")]
    assert commands == ["make demo", "make test"]
    assert sum(line.startswith("> ") for line in lines[:20]) == 4
    assert len(lines) <= 120


def test_the_files_that_pages_name_are_there() -> None:
    """A path is one from the root, or, in a list of a folder's files, the name of a file somewhere below."""
    for page in (one for one in PAGES if one.name != "CHANGELOG.md"):
        names = re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|cpp|sql|svg|npz))(?:: \w+)?`", page.read_text())
        gone = [name for name in names if not (ROOT / name).exists() and not _is_a_file_s_name(name)]
        assert gone == [], page.name


def _is_a_file_s_name(name: str) -> bool:
    below = (next((ROOT / top).rglob(name), None) for top in (*PACKAGES, "tests"))
    return "/" not in name and ((ROOT / "irregulars" / name).exists() or any(below))


def test_every_page_is_behind_a_door_of_the_index_and_links_lead_somewhere() -> None:
    doors = (DOCS / "index.md").read_text()
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert [name for name in sorted(pages) if f"({name}" not in doors] == []
    for page in PAGES:
        links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text()) if "://" not in link]
        assert [link for link in links if link and not (page.parent / link).exists()] == [], page.name
