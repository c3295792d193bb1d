"""The manifests of the kit: as they stand in their files, and as kustomize puts them together."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.infra.kit.manifest_rules import Document

ROOT = Path(__file__).resolve().parents[3]
KUBERNETES = ROOT / "infra" / "kit" / "kubernetes"
OVERLAYS = ("small", "small/setup", "production", "production/setup")


def renderer() -> list[str]:
    """Return the command that puts a folder together; skip where there is none."""
    kustomize = os.environ.get("KUSTOMIZE") or shutil.which("kustomize")
    if kustomize is not None:
        return [kustomize, "build"]
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl or kustomize must be on the PATH, or KUSTOMIZE name one, to render manifests; none is")
    return ["kubectl", "kustomize"]


@functools.cache
def rendered(overlay: str) -> tuple[Document, ...]:
    """Return the documents of an overlay."""
    command = [*renderer(), str(KUBERNETES / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return tuple(yaml.safe_load_all(done.stdout))


def named(documents: tuple[Document, ...], kind: str, name: str) -> Document:
    """Return the one document of that kind and name; a generated name is known by its beginning."""
    (found,) = (
        one for one in documents
        if one["kind"] == kind and one["metadata"]["name"].startswith(name) and (
            kind == "ConfigMap" or one["metadata"]["name"] == name)
    )  # fmt: skip
    return found
