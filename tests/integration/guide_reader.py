"""Somebody who types a guide: each block of its page, in their order, in one shell, and looks for what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.worker_runs import ROOT

_BLOCK = re.compile(r"^```(\w+(?: \w+)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_YOURS = re.compile(r"^export (\w+)=.*$", re.MULTILINE)
_BLOCK_S = 600
# What a shell knows goes on to the next block: its variables, functions, mask, and where it stands.
_REMEMBER = (
    'status=$?; { export -p; declare -f; echo "cd $(printf %q "$PWD"); umask $(umask)"; } > "$TYPED_IN"; exit $status'
)


def blocks_of(page: str, section: str = "") -> list[tuple[str, str]]:
    """Kind and text of each fenced block of a page of the docs, or of one section of it."""
    text = (ROOT / "infra" / "docs" / page).read_text("utf-8")
    return _BLOCK.findall(text.split(f"\n## {section}\n")[1].split("\n## ")[0] if section else text)


def with_own(block: str, own: Mapping[str, str]) -> str:
    """Return a block of ``export NAME=…`` with other values; `own` must name the same variables."""
    names = _YOURS.findall(block)
    assert names == list(own), f"the guide asks for {names}"
    return _YOURS.sub(lambda found: f"export {found[1]}='{own[found[1]]}'", block)


@dataclass
class Reader:
    """One shell.

    `folder`: where it starts; it gets a folder of programs and a file of what the shell remembers there.
    `environment`: beside that of this process.
    """

    folder: Path
    environment: Mapping[str, str]
    took_s: list[float] = field(default_factory=list)
    printed: str = ""

    def __post_init__(self) -> None:
        self.bin.mkdir()
        self._memory.write_text(f"cd '{self.folder}'\n")
        self.add_program("irregulars", f'exec "{sys.executable}" -P -m irregulars "$@"')

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def _memory(self) -> Path:
        return self.folder / "memory"

    def add_program(self, name: str, script: str) -> None:
        """Put a program on the path."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def type(self, block: str, then: Callable[[], None] = lambda: None) -> None:
        """Run a block; each command must succeed. `then` is part of the time that it took."""
        began_s = time.monotonic()
        script = f". \"$TYPED_IN\"\nset -e -o pipefail\ntrap '{_REMEMBER}' EXIT\n{block}"
        environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
                       "TYPED_IN": str(self._memory), "COLUMNS": "200", **self.environment}  # fmt: skip
        output = self.folder / "output"  # no pipe: what a block leaves in the background would hold it open
        with output.open("w") as file:
            done = subprocess.run(["bash", "-c", script], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=file, stderr=subprocess.STDOUT, check=False, timeout=_BLOCK_S)  # fmt: skip
        said = output.read_text()
        assert done.returncode == 0, f"{block}\n{said}"
        self.printed += said
        then()
        self.took_s.append(time.monotonic() - began_s)

    def has_seen(self, block: str) -> None:
        """Find each line of a block among what was printed, in any order; … stands for anything."""
        for line in block.splitlines():
            parts = [r"\s+".join(map(re.escape, part.split())) for part in line.split("…")]
            pattern = rf"^\s*{'.*'.join(parts)}\s*$"
            assert re.search(pattern, self.printed, flags=re.MULTILINE), f"{line!r} in\n{self.printed}"
