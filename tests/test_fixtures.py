"""What fixtures give: whole recordings, and a database without its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import RECORDINGS, clickhouse_address

GLOO = {"gloo-clean", "gloo-slow-rank", "gloo-slow-compute", "gloo-slow-nic", "gloo-slow-link"}
LIVE = "torch-slow-rank"
BENCH = "bench"  # many more; tests/benchmarks/recordings has their tests
NUMERICS = "numerics"  # tests/benchmarks/numerics/test_committed.py
CAUSES = "causes"  # tests/infra/runs/test_causes.py
GPU = "gpu"  # on NCCL; tests/producers/torch_hook/test_gpu_recordings.py


def test_the_recordings_are_whole(recordings: Path) -> None:
    assert recordings == RECORDINGS
    found = {path.name for path in recordings.iterdir() if path.is_dir()}
    assert found == GLOO | {LIVE, BENCH, CAUSES, GPU, NUMERICS}
    files = {"job.json", "label.json", "commops.parquet", "iterations.parquet"}
    assert {path.name for path in (recordings / LIVE).iterdir()} == files
    files |= {"bandwidth.parquet"}
    assert all({path.name for path in (recordings / name).iterdir()} == files for name in GLOO)


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
