"""What is inside: ``python -m tests.supply_chain licences`` or ``sbom``, of what is installed and what is locked."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "requirements.lock"
_LINE: Final = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)(?: ; (?P<marker>[^\\]+?))?\s*\\?$")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Locked:
    """One distribution of the lock file; `hashes` are those of its wheels and sources."""

    name: str
    version: str
    hashes: tuple[str, ...]


def locked(text: str) -> Iterator[Locked]:
    """Read a lock file of uv or pip."""
    blocks = re.split(r"\n(?=[\w])", text)
    for block in blocks:
        found = _LINE.match(block.splitlines()[0]) if block else None
        if found:
            yield Locked(found["name"], found["version"], tuple(_HASH.findall(block)))


def licence_of(one: Distribution) -> str:
    """Return the licence that a distribution states: its expression, else its classifiers, else a short text."""
    metadata = one.metadata
    if metadata.get("License-Expression"):
        return str(metadata["License-Expression"])
    classified = [
        text.split(" :: ")[-1] for text in metadata.get_all("Classifier") or () if text.startswith("License")
    ]
    if classified and classified != ["OSI Approved"]:
        return ", ".join(classified)
    stated = str(metadata.get("License") or "").strip()
    return stated.splitlines()[0] if stated else "not stated"


def licences() -> dict[str, tuple[str, str]]:
    """Return version and licence of each installed distribution, by name."""
    found = {str(one.metadata["Name"]): (one.version, licence_of(one)) for one in distributions()}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def sbom() -> dict[str, Any]:
    """Return the bill of materials of the lock file, CycloneDX 1.6."""
    from irregulars import __version__

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "irregulars", "version": __version__,
                                   "licenses": [{"expression": "Apache-2.0"}]}},
        "components": [_component(one) for one in locked(LOCK.read_text("utf-8"))],
    }  # fmt: skip


def _component(one: Locked) -> dict[str, Any]:
    # CycloneDX lets a component have one hash of each kind; a lock has one for each file, so they go as properties.
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{one.name}@{one.version}",
        "name": one.name,
        "version": one.version,
        "purl": f"pkg:pypi/{one.name}@{one.version}",
        "properties": [{"name": "irregulars:sha256", "value": text} for text in one.hashes],
    }
    with contextlib.suppress(PackageNotFoundError):  # one for another system or another Python
        component["licenses"] = [{"license": {"name": licence_of(distribution(one.name))}}]
    return component


def main(arguments: list[str]) -> int:
    """Print the one or the other; status 2 for anything else."""
    if arguments == ["licences"]:
        for name, (version, licence) in licences().items():
            print(f"{name:<28} {version:<16} {licence}")
        return 0
    if arguments == ["sbom"]:
        print(json.dumps(sbom(), indent=2))
        return 0
    print(f"argument must be licences or sbom; got {arguments}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
