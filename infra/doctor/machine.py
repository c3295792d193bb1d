"""The machine itself: settings, files of secrets, packages and the disk."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from irregulars.infra.configuration.lenient import LenientSettings
from irregulars.infra.configuration.settings import FIELDS, Settings
from irregulars.infra.doctor.findings import Finding, count, finding, ok, size
from irregulars.version import VERSION

_WORKER: Final = ("faust", "clickhouse_connect", "river")
SECRETS: Final = (
    "kafka_password_file", "kafka_key_file", "kafka_token_file", "clickhouse_password_file",
    "clickhouse_reader_password_file", "console_token_file", "console_key_file",
    "console_proxy_secret_file",
)  # fmt: skip
"""Settings that name a file which other users must not read."""


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file that a setting names and that others must not read; `mode` is None where it can't be looked at."""

    setting: str
    path: str
    mode: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The machine and its settings."""

    release: str
    settings_file: str | None = None  # None: there is none
    refused: tuple[str, ...] = ()  # a text for each setting that can't be used
    secrets: tuple[SecretFile, ...] = ()
    has_worker: bool = True  # the packages of a worker are installed
    data_directory: str = ""
    free_bytes: int | None = None  # of the disk of ``data_dir``


def read_machine(found: LenientSettings) -> MachineFacts:
    """Read the settings' files, the installed packages and the free disk."""
    settings = found.settings
    directory = None if settings is None else settings.data_dir
    return MachineFacts(
        VERSION,
        None if found.file is None else str(found.file),
        found.refused,
        tuple(_secrets(settings, found)),
        # Faust, once imported, has no specification any more.
        all(name in sys.modules or find_spec(name) is not None for name in _WORKER),
        "" if directory is None else str(directory),
        None if directory is None else _free_bytes(directory),
    )


def _secrets(settings: Settings | None, found: LenientSettings) -> Iterator[SecretFile]:
    if found.file is not None and any(FIELDS[name].metadata["is_secret"] for name in found.names if name in FIELDS):
        yield _look("a settings file with a password", found.file)
    for name in SECRETS if settings is not None else ():
        path: Path | None = getattr(settings, name)
        if path is not None:
            yield _look(name, path)


def _look(setting: str, path: Path) -> SecretFile:
    try:
        with path.open("rb"):
            return SecretFile(setting, str(path), path.stat().st_mode & 0o7777)
    except OSError as error:
        return SecretFile(setting, str(path), None, error.strerror or type(error).__name__)


def _free_bytes(directory: Path) -> int | None:
    for path in (directory.absolute(), *directory.absolute().parents):
        if os.path.isdir(path):
            return shutil.disk_usage(path).free
    return None


GROUP: Final = "machine"
LEAST_FREE_BYTES: Final = 1 << 30
"""Of the disk of ``data_dir``: a worker keeps little there, an agent's spool 1 GiB by default."""


def check_machine(seen: MachineFacts, role: str | None = None) -> Iterator[Finding]:
    """Yield the findings on this machine; for a role, on its needs."""
    yield ok(GROUP, "release", f"irregulars {seen.release}")
    for text in seen.refused:
        yield finding("problem", GROUP, "settings", text, "setting_refused")
    if seen.settings_file is None:
        yield ok(GROUP, "settings", "no settings file; defaults, environment and flags count")
    elif not seen.refused:
        yield ok(GROUP, "settings", f"read from {seen.settings_file}")
    yield from _check_secrets(seen.secrets)
    if not seen.has_worker and role in (None, "worker"):
        yield finding("warning", GROUP, "packages", "what a worker needs is not installed here", "no_extra")
    if seen.free_bytes is not None:
        text = f"{size(seen.free_bytes)} free for data_dir ({seen.data_directory})"
        is_small = seen.free_bytes < LEAST_FREE_BYTES
        yield finding("warning", GROUP, "disk", text, "disk_small") if is_small else ok(GROUP, "disk", text)


def _check_secrets(files: tuple[SecretFile, ...]) -> Iterator[Finding]:
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
