"""The direction of imports, the folders, and the wheel."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from irregulars.infra.shipped_files import shipped_files
from irregulars.messages.kinds import DEVICE_KINDS

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("detectors", "infra", "producers", "sinks", "streams")
GENERATED = {"build", "dist", "target", "__pycache__"}
SOURCES = sorted(
    {path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    | {path for package in ("", "messages", "kafka") for path in (ROOT / "irregulars" / package).glob("*.py")}
)
DATA_SUFFIXES = {".c", ".cpp", ".json", ".sql", ".xml", ".yaml", ".properties", ".md", ".toml", ".service", ".typed"}


def test_imports_keep_to_the_contracts() -> None:
    """The contracts stand at the end of ``pyproject.toml``; `lint-imports` prints the import that breaks one."""
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--cache-dir", "build/imports"], cwd=ROOT, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_no_import_is_relative_or_by_a_folders_name() -> None:
    """A relative import hides where it goes; the folders are in `irregulars`."""
    ours = "|".join((*PACKAGES, "tests"))
    wrong = re.compile(rf"^ *(?:from (?:\.|(?:{ours})(?:\.\w+)* import)|import (?:{ours})\b)", re.MULTILINE)
    assert [(path.name, found) for path in SOURCES for found in wrong.findall(path.read_text())] == []


# The table, and the devices of a rank in a job and in a simulated cluster
NAMES_KINDS = {"irregulars/messages/kinds.py", "detectors/job/topology.py", "producers/simulator/topology.py"}


def kinds_in(node: ast.AST | None) -> set[str]:
    """Kinds of devices that an expression names: itself, or all parts of it."""
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    values = {one.value if isinstance(one, ast.Constant) else None for one in parts}
    return values if values <= DEVICE_KINDS.keys() else set()


def devices_by_name(source: str) -> set[int]:
    """Lines that ask a device for its kind by name, make one, or list kinds, in place of asking the table."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                # A lane has a kind too.
                is_found = any(map(kinds_in, sides)) and any(
                    re.search(r"(?<!lane\.)\b(\w*kind|device)\W*$", ast.unparse(one)) for one in sides
                )
            case ast.Match():
                is_found = any(kinds_in(one.value) for case in node.cases for one in ast.walk(case.pattern)
                               if isinstance(one, ast.MatchValue))  # fmt: skip
            case ast.Call(func=ast.Name(id="Device" | "Suspect")):
                is_found = any(kinds_in(one) for one in node.args[:1])
            case ast.Tuple() | ast.List() | ast.Set():
                is_found = len(kinds_in(node)) > 1
            case ast.Dict():
                is_found = len(kinds_in(ast.List(node.keys))) > 1
            case _:
                continue
        found |= {node.lineno} if is_found else set()
    return found


def test_kinds_of_devices_are_named_in_their_table_alone() -> None:
    """A new kind is found, shown and stored by what the table says of it: no other place needs a case for it."""
    for asking in ('d.kind == "nic"', 'kind in ("gpu", "host")', 'Device("link", r)', '{"gpu": 1, "nic": 2}'):
        assert devices_by_name(asking) == {1}, asking
    is_named = re.compile(rf"""["'](?:{"|".join(DEVICE_KINDS)})["']""")
    naming = ((path, text) for path in SOURCES if is_named.search(text := path.read_text()))
    found = {path.relative_to(ROOT).as_posix(): devices_by_name(text) for path, text in naming}
    assert {name: lines for name, lines in found.items() if lines and name not in NAMES_KINDS} == {}
    by_name = re.compile(rf"\bdevice\w*\s*(?:[!=]=*|\b(?:NOT )?IN\b)\s*[(\[]*{is_named.pattern}")
    texts = (path for package in PACKAGES for path in (ROOT / package).rglob("*")
             if path.suffix in {".sql", ".js", ".html"} and "vendor" not in path.parts)  # fmt: skip
    assert [str(path) for path in texts if by_name.search(path.read_text())] == []


def test_files_that_docstrings_of_rooms_name_exist() -> None:
    for room in (path for path in SOURCES if path.name == "__init__.py"):
        named = re.findall(r"`([a-z_/]+\.py)`", ast.get_docstring(ast.parse(room.read_text())) or "")
        assert [name for name in named if not (room.parent / name).exists()] == [], room


def test_the_import_name_links_to_the_folders_and_none_stands_beside_the_agreed_ones() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    others = {name for name in folders - GENERATED if not name.endswith(".egg-info")}
    assert others == {*PACKAGES, "irregulars", "tests"}
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
    ground = ROOT / "irregulars"
    wanted = {path.removeprefix("irregulars/") for path in wanted} | {
        path.relative_to(ground).as_posix()
        for room in ("messages", "kafka")
        for path in (ground / room).rglob("*")
        if path.suffix in {*DATA_SUFFIXES, ".py"}
    }
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
