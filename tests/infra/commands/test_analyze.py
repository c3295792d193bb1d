from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.infra.test_cli import Run, run

__all__ = ["run"]  # the fixture

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings"


def test_json_is_one_object_of_the_contract_and_nothing_else(run: Run) -> None:
    status, out, err = run("analyze", str(RECORDINGS / "gloo-slow-nic"), "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {"job", "iterations", "rejected_rows", "irregular_iterations", "verdicts"}
    assert found["job"] == "gloo-slow-nic"


def test_people_read_device_chance_and_evidence(run: Run) -> None:
    status, out, _ = run("analyze", str(RECORDINGS / "gloo-slow-nic"))
    assert status == 0
    assert "slow_nic in iterations 60 to" in out
    assert "eth0 on node-1" in out
    assert "%" in out


def test_nobody_is_blamed_in_words(run: Run) -> None:
    status, out, _ = run("analyze", str(RECORDINGS / "gloo-clean"))
    assert status == 0
    assert "Nobody to blame." in out


def test_a_plug_in_that_fails_is_one_line(run: Run) -> None:
    setting = "detectors=tests.detectors.bad_detectors:HalfPrecision"
    status, out, err = run("--set", setting, "analyze", str(RECORDINGS / "gloo-clean"))
    assert (status, out) == (2, "")
    assert "score must give one float64 per row; got float32" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": 3}'])
def test_a_malformed_job_file_is_one_line_that_names_it(run: Run, tmp_path: Path, text: str) -> None:
    shutil.copytree(RECORDINGS / "gloo-clean", tmp_path / "trace")
    (tmp_path / "trace" / "job.json").write_text(text)
    status, out, err = run("analyze", str(tmp_path / "trace"), "--json")
    assert (status, out) == (2, "")
    assert "job.json" in err
    assert len(err.splitlines()) == 1
