"""The files with which Irregulars is installed elsewhere, out of an installed wheel as they lie in a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from irregulars.errors import InputError

# Below ``infra``. The Dockerfile and ``locked_install.py`` are not among them: they build from a checkout.
FOLDERS: Final = ("kit/kubernetes", "kit/systemd", "node", "prometheus", "grafana")

_OF_PYTHON: Final = (".py", ".pyc", "__pycache__")


def shipped_files() -> dict[str, Traversable]:
    """Return the files of the kit by their paths below a checkout, ``infra/node/agent.toml`` for example.

    Raises `InputError` if they were left out, as our container images do.
    """
    infra = files("irregulars.infra")
    found: dict[str, Traversable] = {}
    for folder in FOLDERS:
        place = infra.joinpath(*folder.split("/"))
        if not place.is_dir():
            raise InputError(f"infra/{folder} must be in the installed package; images leave it out. Ask a wheel")
        found |= {f"infra/{folder}/{path}": file for path, file in _below(place)}
    return dict(sorted(found.items()))


def write_kit(directory: Path) -> list[Path]:
    """Write the kit into a directory that is new or empty; return the paths.

    Raises `InputError` if something is there already, or it can't be written.
    """
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise InputError(f"directory must be new or empty: what you changed there stays yours; got {directory}")
        written = []
        for path, file in shipped_files().items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
            written.append(target)
        return written
    except OSError as error:
        raise InputError(f"directory must be one that we may write to; got {error}") from error


def _below(place: Traversable) -> Iterator[tuple[str, Traversable]]:
    for one in place.iterdir():
        if one.name.endswith(_OF_PYTHON):
            continue
        if one.is_dir():
            yield from ((f"{one.name}/{path}", file) for path, file in _below(one))
        else:
            yield one.name, one
