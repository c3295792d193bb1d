"""Apache Kafka's programs: resolved by Maven once, into the user's cache.

They are for tests and benchmarks, on machines with Java and Maven. ``pom.xml`` beside this file names the version.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from irregulars.errors import InputError, ServiceUnavailable

POM: Final = Path(__file__).with_name("pom.xml")
OLDEST_JAVA: Final = 17
_RESOLVE_S: Final = 600
_POM_NAMESPACE: Final = "{http://maven.apache.org/POM/4.0.0}"


def kafka_version(pom: Path = POM) -> str:
    """Return the version of Apache Kafka that the POM names."""
    version = ElementTree.parse(pom).findtext(f"{_POM_NAMESPACE}properties/{_POM_NAMESPACE}kafka.version")
    if not version:
        raise InputError(f"POM must have a property kafka.version; got none ({pom})")
    return version


def find_java() -> str:
    """Return the path of a Java that can run Kafka: that of ``JAVA_HOME``, else the first on ``PATH``.

    Raises `InputError` if there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    version = _java_version(java) if java else None
    if java is None or version is None or version < OLDEST_JAVA:
        where = "JAVA_HOME" if home else "PATH"
        raise InputError(
            f"Java must be {OLDEST_JAVA} or newer for Apache Kafka; got {version or 'none'} ({where}). "
            f"Install a JDK or JRE {OLDEST_JAVA} (Debian: openjdk-17-jre-headless)"
        )
    return java


def find_jars(cache: Path | None = None) -> Path:
    """Return the folder with Kafka's jars, which the first call fills through Maven.

    `cache`: where it is kept; `None`: ``irregulars`` in ``XDG_CACHE_HOME``, else in ``~/.cache``.
    Raises `InputError` if Maven is needed and not installed, or the cache can't be written.
    Raises `ServiceUnavailable` if Maven can't fetch the jars.
    """
    folder = (cache or _default_cache()) / f"kafka-{kafka_version()}"
    if _is_complete(folder):
        return folder
    try:
        with _only_one(folder):
            if not _is_complete(folder):  # another process may have filled it while we waited
                _resolve(folder)
    except OSError as error:
        raise InputError(
            f"cache of Kafka's jars must be writable; got {error.strerror} ({folder.parent}). Set XDG_CACHE_HOME"
        ) from error
    return folder


def _java_version(java: str) -> int | None:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(found[1]) if found else None


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "irregulars"


def _is_complete(folder: Path) -> bool:
    """Whether the folder was filled from the POM, comments apart; the rename at the end makes it all or nothing."""
    try:
        return _without_comments(folder / "pom.xml") == _without_comments(POM)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _without_comments(pom: Path) -> str:
    return re.sub(r"<!--.*?-->", "", pom.read_text(encoding="utf-8"), flags=re.DOTALL)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold the cache's lock: Maven's own repository is not safe for two processes either."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolve(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as scratch:
        filling = Path(scratch) / "jars"
        filling.mkdir()
        shutil.copyfile(POM, filling / "pom.xml")
        _run_maven(filling)
        if folder.exists():
            folder.rename(Path(scratch) / "outdated")
        filling.rename(folder)


def _run_maven(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise InputError("Maven must be installed: it fetches Apache Kafka; got none. Install it (Debian: maven)")
    command = [maven, "-B", "-q", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}", "-Dstyle.color=never"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ServiceUnavailable(f"Maven must fetch Apache Kafka within {_RESOLVE_S} s; it did not") from error
    if done.returncode:
        raise ServiceUnavailable(f"Maven must fetch Apache Kafka {kafka_version()}; got {_first_error(done.stdout)}")


def _first_error(output: str) -> str:
    r"""Pick Maven's own reason.

    >>> _first_error("[INFO] x\n[ERROR] Could not resolve -> [Help 1]\n[ERROR] To see more")
    'Could not resolve'
    """
    errors = [line for line in output.splitlines() if line.startswith("[ERROR]")]
    line = (errors or output.splitlines() or ["no output"])[0]
    return line.removeprefix("[ERROR]").split(" -> [Help")[0].strip()[:400]
