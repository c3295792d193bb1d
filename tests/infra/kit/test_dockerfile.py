"""The Dockerfile: hadolint accepts it, it keeps our rules, and what it copies and runs is there."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from irregulars import __version__
from irregulars.infra.locked_install import SOURCES
from irregulars.infra.settings import load_settings
from tests.infra.kit.command_lines import parse

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "infra" / "kit" / "Dockerfile"
IMAGES = ("agent", "console", "worker")


def steps(text: str) -> list[tuple[str, str]]:
    """Instruction and arguments of each step, continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines()]


STEPS = steps(DOCKERFILE.read_text())


def stage(name: str) -> list[tuple[str, str]]:
    """The steps of one stage and of those that it stands on."""
    begins = [place for place, (word, _) in enumerate(STEPS) if word == "FROM"]
    for begin, end in zip(begins, [*begins[1:], len(STEPS)], strict=True):
        base, _, own = STEPS[begin][1].partition(" AS ")
        if own == name:
            return [*(stage(base) if not base.startswith("$") else []), *STEPS[begin:end]]
    raise AssertionError(f"stage must be one of the Dockerfile; got {name!r}")


def last(name: str, word: str) -> str:
    return [text for one, text in stage(name) if one == word][-1]


def test_hadolint_accepts_it() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        reason = "hadolint must be on the PATH to lint the Dockerfile; it is not"
        pytest.skip(f"{reason} (its licence keeps it out of the lock file)")
    done = subprocess.run(
        [hadolint, "--no-color", str(DOCKERFILE)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    bad = subprocess.run(
        [hadolint, "-"], input="FROM debian:latest\nRUN cd /tmp\n", capture_output=True, text=True, check=False
    )
    assert bad.returncode != 0


def test_the_base_has_a_whole_version_and_labels_are_those_of_the_release() -> None:
    (base,) = [text for word, text in STEPS if word == "ARG" and text.startswith("PYTHON_IMAGE=")]
    assert re.fullmatch(r"PYTHON_IMAGE=docker\.io/library/python:3\.11\.\d+-slim-bookworm", base)
    assert {text.split(" AS ")[0] for word, text in STEPS if word == "FROM"} >= {"${PYTHON_IMAGE}"}
    assert "@sha256:" in DOCKERFILE.read_text()
    labels = last("worker", "LABEL")
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels
    assert ("ARG", f"VERSION={__version__}") in STEPS


@pytest.mark.parametrize("image", IMAGES)
def test_each_image_has_nothing_to_build_with_and_runs_a_command_of_ours_without_a_shell(image: str) -> None:
    words = [word for word, _ in stage(image)]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last(image, "USER"))
    assert words.index("USER") < words.index("CMD")
    copies = [text for word, text in stage(image) if word == "COPY"]
    assert [text.split()[1:] for text in copies] == [["/opt/irregulars", "/opt/irregulars"]]
    assert all(text.startswith("[") for word, text in stage(image) if word == "RUN")
    assert not any("apt-get" in text for word, text in stage(image) if word == "RUN")
    health = last(image, "HEALTHCHECK").split(" CMD ", 1)[1]
    assert json.loads(health)[0] == "python"
    compile(json.loads(health)[2], "health", "exec")
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", health)
    assert port in last(image, "EXPOSE").split()
    assert json.loads(last(image, "CMD"))[0] == "irregulars"
    parse(json.loads(last(image, "CMD")))
    assert "ENTRYPOINT" not in words  # `args` of the manifests take the place of CMD


def test_the_variables_of_the_image_are_settings() -> None:
    variables = dict(re.findall(r"(\w+)=(\S+)", last("worker", "ENV")))
    own = {name: value for name, value in variables.items() if name.startswith("IRREGULARS_")}
    made = [text for word, text in stage("worker") if word == "RUN"]
    assert load_settings(environment=own, config=Path("/dev/null")).data_dir == Path("/var/lib/irregulars")
    assert json.loads(made[-1])[-1] == variables["IRREGULARS_DATA_DIR"] == last("worker", "WORKDIR")


def sent(path: str) -> bool:
    """Whether .dockerignore lets the builder have a path: the last pattern for it, or a folder above, decides."""
    is_sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        above = [path, *(str(parent) for parent in Path(path).parents)]
        names = [one for one in above if fnmatch.fnmatch(one, pattern.removeprefix("**/"))]
        names += [one for one in above if pattern.startswith("**/") and fnmatch.fnmatch(one, pattern)]
        if line and not line.startswith("#") and names:
            is_sent = line.startswith("!")
    return is_sent


def test_the_builder_gets_what_the_wheel_is_made_of_and_nothing_else() -> None:
    assert all(
        sent(name) for name in (*SOURCES, "requirements.lock", "infra/locked_install.py", "irregulars/_kernel.c")
    )
    others = (".git/config", ".venv/bin/python", "tests/conftest.py", "shared/traces", ".env", "build/sbom.json")
    assert [name for name in (*others, "irregulars/_kernel.abi3.so", "sinks/__pycache__/a.pyc") if sent(name)] == []
