from __future__ import annotations

import threading
from pathlib import Path

import pytest

from irregulars.errors import InputError, ServiceUnavailable
from tests.apache_kafka.jars import POM, find_jars, find_java, kafka_version


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what the test puts there, and a shell's builtins."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("line", "found"), [('openjdk version "11.0.2" 2019-01-15', "11"), ("no such thing", "none")]
)
def test_an_old_java_is_one_clear_line(bin_folder: Path, line: str, found: str) -> None:
    program(bin_folder, "java", f"echo '{line}' >&2")
    with pytest.raises(InputError, match=rf"^Java must be 17 or newer for Apache Kafka; got {found} \(PATH\)"):
        find_java()


def test_no_java_is_one_clear_line(bin_folder: Path) -> None:
    with pytest.raises(InputError, match=r"^Java must be 17 or newer for Apache Kafka; got none \(PATH\)\. Install"):
        find_java()


def test_no_maven_is_one_clear_line(bin_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^Maven must be installed: it fetches Apache Kafka; got none\. Install it"):
        find_jars(tmp_path / "cache")


def test_what_maven_says_is_passed_on_and_nothing_half_done_stays(bin_folder: Path, tmp_path: Path) -> None:
    program(bin_folder, "mvn", "echo '[INFO] x'; echo '[ERROR] Could not transfer kafka -> [Help 1]'; exit 1")
    with pytest.raises(ServiceUnavailable, match=r"^Maven must fetch Apache Kafka [\d.]+; got Could not transfer"):
        find_jars(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"kafka-{kafka_version()}.lock"]


def test_maven_runs_once_for_all_who_ask_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, runs = tmp_path / "cache", tmp_path / "runs"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program(tmp_path, "mvn", f"echo run >> {runs}; sleep 0.3")
    threads = [threading.Thread(target=find_jars, args=(cache,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert runs.read_text() == "run\n"
    assert (find_jars(cache) / "pom.xml").read_bytes() == POM.read_bytes()
