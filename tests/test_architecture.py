"""The house stays as infra/docs/architecture.md draws it: folders, the direction of imports, the wheel."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("detectors", "infra", "producers", "sinks", "streams")
LEAVES = {
    "streams.records",
    "streams.announcements",
    "streams.topics",
    "streams.errors",
    "streams.judgements",
    "streams.json_fields",
}
"""What travels on the bus, and the errors: everybody may import them, and they import one another alone."""

MAY_IMPORT = {
    "detectors": {"detectors"},
    "infra": set(PACKAGES),
    "producers": {"producers"},
    "sinks": {"sinks"},
    "streams": {"streams", "detectors", "sinks"},
}
FAUST_FILES = {"streams/app.py", "streams/agents.py"}
GENERATED = {"build", "dist", "target", "__pycache__"}
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
DATA_SUFFIXES = {".cpp", ".json", ".sql", ".xml", ".yaml", ".properties", ".md", ".toml", ".service", ".typed"}


def imported_modules(source: str) -> Iterator[str]:
    """Every module that a file imports, also inside functions; of ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")
            yield from (f"{node.module}.{alias.name}" for alias in node.names if not node.level)


def wrong_arrows(path: str, source: str) -> list[str]:
    """Imports of the file at `path` (relative to the root) that the architecture forbids."""
    package = path.split("/", 1)[0]
    module = path.removesuffix(".py").replace("/", ".")
    return [found for found in imported_modules(source) if not _is_allowed(found, package, module)]


def _is_allowed(found: str, package: str, module: str) -> bool:
    top = found.split(".", 1)[0]
    if top == "":  # a relative import stays inside its package, but hides where it goes
        return False
    if top == "tests":
        return False
    if top == "faust":
        return module.replace(".", "/") + ".py" in FAUST_FILES
    if top not in PACKAGES or _is_leaf(found):
        return True
    return module not in LEAVES and top in MAY_IMPORT[package]


def _is_leaf(found: str) -> bool:
    return found == "streams" or ".".join(found.split(".")[:2]) in LEAVES


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_follow_the_arrows(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    assert wrong_arrows(name, path.read_text()) == [], f"{name}: see the table in infra/docs/architecture.md"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("detectors/a.py", "from streams.rank_monitor import RankMonitor"),
        ("detectors/a.py", "from streams import rank_monitor"),
        ("producers/a.py", "import detectors.checks"),
        ("sinks/a.py", "def f():\n    import producers.agent"),
        ("streams/records.py", "import detectors.protocol"),
        ("streams/rank_monitor.py", "from infra.settings import Settings"),
        ("streams/rank_monitor.py", "import faust"),
        ("infra/a.py", "import tests.recordings"),
        ("sinks/a.py", "from . import alerts"),
    ],
)
def test_a_wrong_arrow_is_seen(path: str, source: str) -> None:
    assert wrong_arrows(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("detectors/a.py", "from streams.records import UNKNOWN"),
        ("detectors/a.py", "from streams import records"),
        ("streams/app.py", "import faust\nfrom sinks.alerts import render"),
        ("streams/judgements.py", "from streams.records import VERSION"),
        ("infra/commands/a.py", "from producers.agent import Agent"),
    ],
)
def test_a_right_arrow_passes(path: str, source: str) -> None:
    assert wrong_arrows(path, source) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_init_files_import_nothing(package: str) -> None:
    for path in (ROOT / package).rglob("__init__.py"):
        assert list(imported_modules(path.read_text())) == [], path.relative_to(ROOT).as_posix()


def test_no_folder_stands_beside_the_agreed_ones() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    others = {name for name in folders - GENERATED if not name.endswith(".egg-info")}
    assert others == {*PACKAGES, "tests"}


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in the wheel, built offline of a copy: a build leaves a folder behind."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "target"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(checkout)], check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_five_packages_and_nothing_else(wheel_names: set[str]) -> None:
    tops = {name.split("/", 1)[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_holds_every_source_and_data_file(wheel_names: set[str]) -> None:
    data = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in DATA_SUFFIXES}
    wanted = {path.relative_to(ROOT).as_posix() for path in {*SOURCES, *data} if "target" not in path.parts}
    assert wanted <= wheel_names
