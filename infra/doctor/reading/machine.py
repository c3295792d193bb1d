"""What is read of this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from irregulars.infra.configuration.lenient import LenientSettings
from irregulars.infra.configuration.settings import FIELDS, Settings
from irregulars.infra.doctor.checks.facts import MachineFacts, SecretFile
from irregulars.version import VERSION

_WORKER: Final = ("faust", "clickhouse_connect", "river")
SECRETS: Final = (
    "kafka_password_file", "kafka_key_file", "kafka_token_file", "clickhouse_password_file",
    "clickhouse_reader_password_file", "console_token_file", "console_key_file",
    "console_proxy_secret_file",
)  # fmt: skip
"""Settings that name a file which nobody else should read."""


def read_machine(found: LenientSettings) -> MachineFacts:
    """Look at the settings' files, what is installed, and the disk."""
    settings = found.settings
    directory = None if settings is None else settings.data_dir
    return MachineFacts(
        VERSION,
        None if found.file is None else str(found.file),
        found.refused,
        tuple(_secrets(settings, found)),
        all(_is_installed(name) for name in _WORKER),
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


def _is_installed(name: str) -> bool:
    """Tell whether a package can be imported. Faust, once imported, has no specification any more."""
    return name in sys.modules or find_spec(name) is not None
