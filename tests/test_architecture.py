"""The house stays as the table in infra/docs/architecture.md draws it: rooms, the direction of imports, the wheel."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from irregulars.infra.kit.shipped_files import shipped_files

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("detectors", "infra", "producers", "sinks", "streams")
PAGE = ROOT / "infra" / "docs" / "architecture.md"
ROOMS = re.findall(r"^\| `([a-z_/]+)` \| (\d+) \|", PAGE.read_text(), flags=re.MULTILINE)
"""Rooms in the order of the page's table, each with its floor: what it imports lies on lower floors."""

FLOOR = {room.replace("/", "."): int(floor) for room, floor in ROOMS}
MAY_IMPORT = {
    "detectors": {"detectors", "streams.messages"},
    "infra": {*PACKAGES},
    "producers": {"producers", "streams.messages", "streams.kafka"},
    "sinks": {"sinks", "streams.messages", "streams.kafka"},
    "streams": {"streams", "detectors", "sinks"},
}
FAUST_ROOMS = ("streams/worker/", "streams/faust_client/")
MOST_FILES = 16
MOST_COMMANDS = 21  # a file each, as the command line lists them
GENERATED = {"build", "dist", "target", "__pycache__"}
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
DATA_SUFFIXES = {".c", ".cpp", ".json", ".sql", ".xml", ".yaml", ".properties", ".md", ".toml", ".service", ".typed"}


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
    return [found for found in imported_modules(source) if not _is_allowed(found, path)]


def _is_allowed(found: str, path: str) -> bool:
    top, own = found.split(".", 1)[0], room_of(path.removesuffix(".py").replace("/", "."))
    if top in ("", "tests", *PACKAGES):  # a relative import hides where it goes; the packages are in irregulars
        return False
    if top == "faust":
        return path.startswith(FAUST_ROOMS)
    inside = found.removeprefix("irregulars.")
    if top != "irregulars" or inside.split(".")[0] not in PACKAGES:
        return True
    room = room_of(inside)
    if room == own or is_package(inside):
        return True
    may = MAY_IMPORT[own.split(".")[0]]
    return FLOOR[room] < FLOOR[own] and any(room == one or room.startswith(f"{one}.") for one in may)


def room_of(module: str) -> str:
    """The room that a module stands in: the longest one of the table that it begins with."""
    parts = module.split(".")
    return next(room for end in range(len(parts), 0, -1) if (room := ".".join(parts[:end])) in FLOOR)


def is_package(dotted: str) -> bool:
    return (ROOT / dotted.replace(".", "/") / "__init__.py").exists()


def test_imports_follow_the_arrows() -> None:
    found = {path: wrong_arrows(path.relative_to(ROOT).as_posix(), path.read_text()) for path in SOURCES}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}, (
        "see the table in infra/docs/architecture.md"
    )


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("detectors/blame/a.py", "from irregulars.streams.rank_hop.rank_monitor import RankMonitor"),
        ("detectors/path/a.py", "from irregulars.detectors.blame.causes import Cause"),
        ("detectors/path/a.py", "from irregulars.detectors.blame import causes"),
        ("producers/node/a.py", "import irregulars.detectors.plugins.checks"),
        ("producers/node/a.py", "from irregulars.producers.trace.rows import Rows"),
        ("sinks/a.py", "def f():\n    import irregulars.producers.publishing.agent"),
        ("streams/messages/records.py", "import irregulars.detectors.plugins.protocol"),
        ("streams/rank_hop/a.py", "from irregulars.infra.configuration.settings import Settings"),
        ("streams/rank_hop/a.py", "from irregulars.streams.job_hop.job_monitor import JobMonitor"),
        ("streams/rank_hop/rank_monitor.py", "import faust"),
        ("infra/runs/a.py", "import tests.recordings"),
        ("infra/runs/a.py", "from streams.messages.records import UNKNOWN"),
        ("sinks/a.py", "from . import alerts"),
    ],
)
def test_a_wrong_arrow_is_seen(path: str, source: str) -> None:
    assert wrong_arrows(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("detectors/job/a.py", "from irregulars.streams.messages.records import UNKNOWN"),
        ("detectors/job/a.py", "from irregulars.streams.messages import records"),
        ("detectors/job/a.py", "from irregulars.errors import InputError"),
        ("streams/worker/app.py", "import faust\nfrom irregulars.sinks.alerts import render"),
        ("infra/commands/a.py", "from irregulars.producers.publishing.agent import Agent"),
    ],
)
def test_a_right_arrow_passes(path: str, source: str) -> None:
    assert wrong_arrows(path, source) == []


def test_the_table_has_every_room() -> None:
    found = {path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in SOURCES}
    with_files = {room for room in found if any(p.name != "__init__.py" for p in folder(room).glob("*.py"))}
    assert set(FLOOR) - {*PACKAGES} <= with_files | {room for room in FLOOR if list(folder(room).iterdir())}
    assert with_files <= set(FLOOR)


def folder(room: str) -> Path:
    return ROOT / room.replace(".", "/")


def test_a_room_is_read_at_a_glance() -> None:
    """A docstring says what it is for and where to start, and nothing else stands in ``__init__.py``."""
    for room in FLOOR:
        (only,) = ast.parse((folder(room) / "__init__.py").read_text()).body
        assert isinstance(only, ast.Expr), room
        assert isinstance(only.value, ast.Constant), room
        assert re.search("[Ss]tart|`", str(only.value.value)), room
        most = MOST_COMMANDS if room == "infra.commands" else MOST_FILES
        assert len([path for path in folder(room).glob("*.py") if path.name != "__init__.py"]) <= most, room


def test_what_a_docstring_of_a_room_names_is_there() -> None:
    for room in FLOOR:
        named = re.findall(r"`([a-z_/]+\.py)`", (folder(room) / "__init__.py").read_text())
        assert [name for name in named if not (folder(room) / name).exists()] == [], room


def test_no_folder_stands_beside_the_agreed_ones() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    others = {name for name in folders - GENERATED if not name.endswith(".egg-info")}
    assert others == {*PACKAGES, "irregulars", "tests"}


def test_the_import_name_links_to_the_folders() -> None:
    assert {path.name for path in (ROOT / "irregulars").iterdir() if path.is_symlink()} == set(PACKAGES)
    assert all((ROOT / "irregulars" / name).resolve() == ROOT / name for name in PACKAGES)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built offline of a copy: a build leaves a folder behind."""
    place = tmp_path_factory.mktemp("wheel")
    checkout = place / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in (*PACKAGES, "irregulars", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "target")
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(place), str(checkout)], check=True, timeout=120)
    (made,) = place.glob("*.whl")
    return made


def test_the_wheel_holds_one_package_and_nothing_else(wheel: Path) -> None:
    tops = {name.split("/", 1)[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"irregulars"}


def test_the_wheel_holds_every_source_and_data_file(wheel: Path) -> None:
    data = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in DATA_SUFFIXES}
    wanted = {path.relative_to(ROOT).as_posix() for path in {*SOURCES, *data} if "target" not in path.parts}
    wanted |= {path.name for path in (ROOT / "irregulars").glob("*.py")}
    assert {f"irregulars/{name}" for name in wanted} <= set(zipfile.ZipFile(wheel).namelist())


def test_of_an_installed_wheel_the_whole_kit_can_be_had(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    command = [sys.executable, "-m", "irregulars", "kit", "mine"]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(site)}, capture_output=True, text=True,
                          check=False, timeout=60)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    mine = tmp_path / "mine"
    written = {path.relative_to(mine).as_posix() for path in mine.rglob("*") if path.is_file()}
    assert written == set(shipped_files())


def test_folders_of_a_training_repository_are_in_nobodys_way(wheel: Path, tmp_path: Path) -> None:
    """The wheel beside folders that have the names of ours, and say so when they are imported."""
    site, repository = tmp_path / "site", tmp_path / "training"
    zipfile.ZipFile(wheel).extractall(site)
    for name in (*PACKAGES, "tests"):
        (repository / name).mkdir(parents=True)
        (repository / name / "__init__.py").write_text("raise RuntimeError('a stranger was imported')\n")
    script = repository / "train.py"
    script.write_text(
        "import irregulars\nfrom irregulars import analyze, check_detector, read_trace, torch_comms\n"
        f"print(irregulars.__file__.startswith({str(site)!r}), irregulars.__version__, torch_comms.lost_rows())\n"
        "print(len(read_trace('trace').announcements), analyze.__name__, check_detector.__name__)\n"
    )
    shutil.copytree(ROOT / "tests" / "recordings" / "gloo-clean", repository / "trace")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=repository, env={"PYTHONPATH": str(site)}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True 0.1.0 0\n4 analyze check_detector\n", "")
