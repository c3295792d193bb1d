"""Units of systemd, read as far as tests need it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "infra" / "kit" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
INSTANCES = {"irregulars-worker@.service": ("9465",), "irregulars-act@.service": ("slurm", "kubernetes")}
PROGRAM = "/opt/irregulars/current/bin/irregulars"


class Unit:
    """One file and its drop-ins, as an instance of it: ``%i``, ``%p`` and ``%d`` are replaced."""

    def __init__(self, path: Path, instance: str = "", *drop_ins: Path) -> None:
        self.path, self.instance = path, instance
        self.name = path.name.replace("@.", f"@{instance}.")
        self.credentials = f"/run/credentials/{self.name}"
        text = "\n".join(one.read_text() for one in (path, *drop_ins))
        self.entries = [
            (key, self._replaced(value)) for key, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)
        ]

    def _replaced(self, value: str) -> str:
        prefix = re.split(r"[@.]", self.path.name)[0]
        for sign, text in (("%i", self.instance), ("%p", prefix), ("%d", self.credentials)):
            value = value.replace(sign, text)
        return value

    def all(self, key: str) -> list[str]:
        return [value for name, value in self.entries if name == key]

    def one(self, key: str) -> str:
        return self.all(key)[-1]

    @property
    def command(self) -> list[str]:
        return shlex.split(self.one("ExecStart"))

    @property
    def environment(self) -> Mapping[str, str]:
        return dict(part.split("=", 1) for line in self.all("Environment") for part in shlex.split(line))

    @property
    def loaded(self) -> dict[str, str]:
        """Credentials and the files that they are copies of."""
        return dict(line.split(":", 1) for line in self.all("LoadCredential"))


def instances() -> list[Unit]:
    """Every unit, as each of its instances that are tried."""
    return [Unit(path, instance) for path in UNITS for instance in INSTANCES.get(path.name, ("",))]
