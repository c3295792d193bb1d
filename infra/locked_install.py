"""Install Irregulars of a checkout with just the versions and hashes of ``requirements.lock``.

``python3 infra/locked_install.py /opt/irregulars --extra worker`` makes a virtual environment there. The
Dockerfile calls it, and so do administrators of bare metal. It needs nothing but Python, pip and a C compiler.

The lock file holds everything, tests and demo too. So pip is asked which of it the wheel needs (it may choose no
other versions than those of the lock), and then installs these files by their hashes and nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
# Files and folders of which the wheel is made
SOURCES: Final = (
    "pyproject.toml", "README.md", "LICENSE", "irregulars", "detectors", "infra", "producers", "sinks", "streams",
)  # fmt: skip

# Taken out again when all is installed: an environment in production is replaced, and never changed
LATER: Final = ("pip", "setuptools")

_HASH: Final = re.compile(r"--hash=\S+")


def canonical(name: str) -> str:
    """Return the one spelling of a distribution's name.

    >>> canonical("Faust_Streaming")
    'faust-streaming'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def lock_blocks(lock: str) -> list[tuple[str, str]]:
    r"""Return name and text of each entry of a lock file.

    >>> lock_blocks("# made\na==1 \\\n    --hash=sha256:0\nb==2 ; sys_platform == 'win32'\n")[0]
    ('a', 'a==1 \\\n    --hash=sha256:0\n')
    """
    blocks = re.findall(r"^[A-Za-z0-9][^\n]*\n(?:[ \t]+[^\n]*\n)*", lock, re.MULTILINE)
    return [(canonical(block.split("==")[0]), block) for block in blocks]


def chosen_lock(lock: str, names: Collection[str]) -> str:
    """Return the entries of `lock` for distributions called `names`, with their hashes.

    Raises `SystemExit` if one is not in the lock: then the dependencies were changed without `make lock`.
    """
    wanted = {canonical(name) for name in names}
    missing = wanted - {name for name, _ in lock_blocks(lock)}
    if missing:
        raise SystemExit(f"requirements.lock must name what is installed; got {', '.join(sorted(missing))} besides. "
                         "Run: make lock")  # fmt: skip
    return "".join(block for name, block in lock_blocks(lock) if name in wanted)


def constraints(lock: str) -> str:
    r"""Return the versions of a lock without their hashes, which pip does not take in constraints.

    >>> constraints("a==1 \\\n    --hash=sha256:0 \\\n    --hash=sha256:1\n")
    'a==1\n'
    """
    bare = (_HASH.sub("", block).replace("\\\n", " ") for _, block in lock_blocks(lock))
    return "".join(" ".join(one.split()) + "\n" for one in bare)


def install(into: Path, extras: Sequence[str], checkout: Path = ROOT) -> None:
    """Make the virtual environment `into`, which must not be there yet; where a step fails, nothing of it stays."""
    if into.exists():
        raise SystemExit(f"the folder must be new; got {str(into)!r}. Install beside it, and change the link then")
    try:
        lock = (checkout / "requirements.lock").read_text("utf-8")
        _run(sys.executable, "-I", "-m", "venv", str(into))
        python = str(into / "bin" / "python")
        with tempfile.TemporaryDirectory(prefix="irregulars-install-") as scratch:
            wheel = _wheel(Path(scratch), python, lock, checkout)
            _install_locked(
                Path(scratch), python, chosen_lock(lock, _needed(Path(scratch), python, wheel, extras, lock))
            )
            _pip(python, "install", "--no-deps", "--no-index", str(wheel))
        _pip(python, "check")
        check_compiled(python)
        _pip(python, "uninstall", "--yes", *LATER)
    except BaseException:  # Ctrl-C too: a half-made environment would block the next try
        shutil.rmtree(into, ignore_errors=True)
        raise


def check_compiled(python: str) -> None:
    """Raise `SystemExit` if the loops in C are not installed: without a compiler the wheel would be there, and slow.

    Isolated (``-I``): else Python looks in the working directory first, and finds the checkout's own ``irregulars``,
    in which nothing is compiled.
    """
    _run(python, "-I", "-c", "import irregulars._kernel")


def _wheel(scratch: Path, python: str, lock: str, checkout: Path) -> Path:
    """Build the wheel in a copy: setuptools leaves its folders beside the sources."""
    for name in SOURCES:
        source = checkout / name
        target = scratch / "source" / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            # Builds of the checkout stay out of the wheel, which compiles anew; links in irregulars/ stay links.
            ignored = shutil.ignore_patterns("__pycache__", "*.so", "target", "*.egg-info")
            shutil.copytree(source, target, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, target)
    _install_locked(scratch, python, chosen_lock(lock, ["setuptools"]))
    made = ("--wheel-dir", str(scratch / "wheel"), str(scratch / "source"))
    _pip(python, "wheel", "--no-deps", "--no-build-isolation", "--no-index", *made)
    (wheel,) = (scratch / "wheel").glob("*.whl")
    return wheel


def _needed(scratch: Path, python: str, wheel: Path, extras: Sequence[str], lock: str) -> list[str]:
    """Ask pip which distributions the wheel needs here, of the versions of the lock."""
    report, pins = scratch / "report.json", scratch / "constraints.txt"
    pins.write_text(constraints(lock), "utf-8")
    wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    dry = ("--dry-run", "--ignore-installed", "--only-binary", ":all:")
    _pip(python, "install", *dry, "--constraint", str(pins), "--report", str(report), wanted)
    found = [one["metadata"]["name"] for one in json.loads(report.read_text("utf-8"))["install"]]
    return [name for name in found if canonical(name) != "irregulars"]


def _install_locked(scratch: Path, python: str, lock: str) -> None:
    chosen = scratch / "chosen.lock"
    chosen.write_text(lock, "utf-8")
    exact = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
    _pip(python, "install", *exact, "--requirement", str(chosen))


def _pip(python: str, *arguments: str) -> None:
    _run(python, "-I", "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        raise SystemExit(f"each step must end with status 0; got {done.returncode} of: {' '.join(command)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, and install."""
    parser = argparse.ArgumentParser(description="Install Irregulars with the versions and hashes of its lock file.")
    parser.add_argument("into", type=Path, help="Folder of the virtual environment; it must not be there yet.")
    parser.add_argument("--extra", action="append", default=[], help="Extra of pyproject.toml: worker, for example.")
    given = parser.parse_args(arguments)
    install(given.into.absolute(), given.extra)
    print(f"installed into {given.into}")


if __name__ == "__main__":
    main()
