"""The JavaScript that we did not write: compare it with what npm has, or take another version.

    python -m tests.console_vendor            # fetch the versions that we have from npm and compare, byte by byte
    python -m tests.console_vendor uplot 1.6.33

The second form puts that version's files in place of ours and writes its hashes into ``vendor.json``; read its
changelog and run the browser's tests before you commit. npm checks the archive against the registry's hash, and we do
so again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
VENDOR: Final = ROOT / "infra" / "console" / "static" / "vendor"
MANIFEST: Final = VENDOR / "vendor.json"
_NPM_S: Final = 120


def manifest() -> dict[str, Any]:
    """Return what is vendored, by package: version, licence, the archive's hash, and whence each file is."""
    found: dict[str, Any] = json.loads(MANIFEST.read_text())
    return found


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def fetch(package: str, version: str) -> tuple[str, dict[str, bytes]]:
    """Fetch a package with npm; return its archive's integrity as the registry writes it, and its files."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--json", "--ignore-scripts", f"{package}@{version}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_NPM_S, check=True)
        [told] = json.loads(done.stdout)
        archive = Path(folder) / told["filename"]
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if told["integrity"] != integrity:
            raise SystemExit(f"{package} {version} must have integrity {told['integrity']}; got {integrity}")
        with tarfile.open(archive) as opened:
            bodies = ((one, opened.extractfile(one)) for one in opened.getmembers() if one.isfile())
            return integrity, {one.name.removeprefix("package/"): body.read() for one, body in bodies if body}


def differences(package: str, known: dict[str, Any]) -> list[str]:
    """Return in what our files differ from npm's; empty: in nothing."""
    integrity, files = fetch(package, known["version"])
    found = [] if integrity == known["integrity"] else [f"{package}: integrity is {integrity} on npm"]
    for name, file in known["files"].items():
        if (VENDOR / package / name).read_bytes() != files.get(file["from"]):
            found.append(f"{package}/{name} is not {file['from']} of version {known['version']}")
    return found


def renew(package: str, version: str) -> None:
    """Put another version's files in place of ours."""
    known = manifest()
    integrity, files = fetch(package, version)
    own = known[package]
    own.update(version=version, integrity=integrity)
    for name, file in own["files"].items():
        (VENDOR / package / name).write_bytes(files[file["from"]])
        file["sha256"] = sha256(files[file["from"]])
    MANIFEST.write_text(json.dumps(known, indent=2) + "\n")


def main(arguments: Sequence[str]) -> int:
    if arguments:
        package, version = arguments
        renew(package, version)
        return 0
    wrong = [text for package, known in manifest().items() for text in differences(package, known)]
    print("\n".join(wrong) or "all vendored files are npm's")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
