"""Vendored JavaScript is what its manifest says, with its licence beside it, and nothing else lies there."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.console_vendor import VENDOR, differences, manifest, sha256


def test_each_file_has_the_hash_of_its_version_a_licence_and_nothing_else_lies_there() -> None:
    for package, known in manifest().items():
        for name, file in known["files"].items():
            assert sha256((VENDOR / package / name).read_bytes()) == file["sha256"], f"{package}/{name}"
    for package, known in manifest().items():
        assert known["license"] in (VENDOR / package / "LICENSE.txt").read_text()
    named = {f"{package}/{name}" for package, known in manifest().items() for name in known["files"]} | {
        "vendor.json"
    }
    assert {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()} == named


def test_npm_has_the_same_files() -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm must be installed to compare with its registry; it is not")
    for package, known in manifest().items():
        try:
            assert differences(package, known) == []
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"npm's registry must answer; got {error}")
