"""The fixtures themselves: what they take from the environment, and how they fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from irregulars.errors import InputError
from tests.conftest import RECORDINGS, clickhouse_address, failing_in_one_line

GLOO = {"gloo-clean", "gloo-slow-rank", "gloo-slow-compute", "gloo-slow-nic", "gloo-slow-link"}
LIVE = "torch-slow-rank"
BENCH = "bench"  # many more; tests/benchmarks/recordings has their tests
GPU = "gpu"  # on NCCL; tests/producers/torch_hook/test_gpu_recordings.py


def test_the_recordings_are_whole(recordings: Path) -> None:
    assert recordings == RECORDINGS
    found = {path.name for path in recordings.iterdir() if path.is_dir()}
    assert found == GLOO | {LIVE, BENCH, GPU}
    files = {"job.json", "label.json", "commops.parquet", "iterations.parquet"}
    assert {path.name for path in (recordings / LIVE).iterdir()} == files
    files |= {"bandwidth.parquet"}
    assert all({path.name for path in (recordings / name).iterdir()} == files for name in GLOO)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARED_TRACES", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_a_shared_trace_is_found_by_name(shared: Path, shared_trace: Callable[[str], Path]) -> None:
    (shared / "some").mkdir()
    assert shared_trace("some") == shared / "some"


def test_a_missing_shared_trace_skips_with_the_reason(shared: Path, shared_trace: Callable[[str], Path]) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"^shared trace some must be in SHARED_TRACES or "):
        shared_trace("some")


@pytest.mark.usefixtures("shared")
def test_a_missing_shared_trace_fails_in_ci(
    shared_trace: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"^shared trace some must be in "):
        shared_trace("some")


def test_the_database_of_the_environment_is_taken_apart_and_its_password_not_shown() -> None:
    address = clickhouse_address("https://a%40b:p%2Fw@db:8443/tests")
    assert (address.url, address.database) == ("https://db:8443", "tests")
    assert (address.user, address.password) == ("a@b", "p/w")
    assert "p/w" not in repr(address)


@pytest.mark.parametrize(
    "text", ["db:8123", "http://db:8123/tests", "http://a:secret@db:8123", "ftp://a:secret@db/x"]
)
def test_a_wrong_address_of_the_database_fails_without_its_password(text: str) -> None:
    with pytest.raises(pytest.fail.Exception) as caught:
        clickhouse_address(text)
    assert str(caught.value).startswith("CLICKHOUSE_URL must be http://user:password@host:port/database")
    assert "secret" not in str(caught.value)


def test_what_keeps_a_service_from_starting_is_one_line() -> None:
    with pytest.raises(pytest.fail.Exception) as caught, failing_in_one_line():
        raise InputError("Java must be 17 or newer")
    assert str(caught.value) == "Java must be 17 or newer"
    assert not caught.value.pytrace
