"""Checks of this machine: settings, files of secrets, what is installed, and the disk."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import Final

from irregulars.infra.doctor.checks.facts import MachineFacts, SecretFile
from irregulars.infra.doctor.checks.findings import Finding, finding, ok
from irregulars.infra.doctor.checks.words import count, size

GROUP: Final = "machine"
LEAST_FREE_BYTES: Final = 1 << 30
"""Of the disk of ``data_dir``: a worker keeps little there, an agent's spool 1 GiB by default."""


def check_machine(seen: MachineFacts, role: str | None = None) -> Iterator[Finding]:
    """Give what is found of this machine; for a role, of what it needs."""
    yield ok(GROUP, "release", f"irregulars {seen.release}")
    yield from _settings(seen)
    yield from _secrets(seen.secrets)
    if not seen.has_worker and role in (None, "worker"):
        yield finding("warning", GROUP, "packages", "what a worker needs is not installed here", "no_extra")
    yield from _disk(seen)


def _settings(seen: MachineFacts) -> Iterator[Finding]:
    for text in seen.refused:
        yield finding("problem", GROUP, "settings", text, "setting_refused")
    if seen.settings_file is None:
        yield ok(GROUP, "settings", "no settings file; defaults, environment and flags count")
    elif not seen.refused:
        yield ok(GROUP, "settings", f"read from {seen.settings_file}")


def _secrets(files: tuple[SecretFile, ...]) -> Iterator[Finding]:
    sound = 0
    for one in files:
        if one.mode is None:
            text = f"{one.setting} can't be read: {one.reason} ({one.path})"
            yield finding("problem", GROUP, "secrets", text, "secret_missing")
        elif one.mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
            text = f"others may read or change {one.path}, of {one.setting} (mode {one.mode:04o})"
            yield finding("problem", GROUP, "secrets", text, "secret_open", path=one.path)
        elif one.mode & stat.S_IRGRP:
            text = f"its group may read {one.path}, of {one.setting} (mode {one.mode:04o})"
            yield finding("warning", GROUP, "secrets", text, "secret_open", path=one.path)
        else:
            sound += 1
    if sound:
        yield ok(GROUP, "secrets", f"{count(sound, 'file')} that nobody else can read")


def _disk(seen: MachineFacts) -> Iterator[Finding]:
    if seen.free_bytes is None:
        return
    text = f"{size(seen.free_bytes)} free for data_dir ({seen.data_directory})"
    if seen.free_bytes < LEAST_FREE_BYTES:
        yield finding("warning", GROUP, "disk", text, "disk_small")
    else:
        yield ok(GROUP, "disk", text)
