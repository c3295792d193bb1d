"""Jobs on NCCL, recorded on a real GPU (tests/recordings/gpu/README.md), and what is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from irregulars import analyze, read_trace
from irregulars.infra.cli import app
from irregulars.messages.judgements import Verdict
from tests.conftest import RECORDINGS

GPU = RECORDINGS / "gpu"


def verdicts(directory: Path) -> list[Verdict]:
    return list(analyze(read_trace(directory)).verdicts)


@pytest.mark.parametrize("name", ["slow-rank", "ahead-slow-rank"])
def test_a_rank_that_computes_more_is_named_whether_or_not_the_host_waits_for_the_gpu(name: str) -> None:
    first = verdicts(GPU / name)[0]
    assert (first.kind, first.suspects[0].device, first.suspects[0].rank) == ("slow_rank", "gpu", 2)
    assert first.iterations == (40, 60)


def test_a_slow_nic_is_seen_from_its_iteration_on_as_a_slow_nic() -> None:
    """Which of the four is not known from a ring's operators alone."""
    first = verdicts(GPU / "slow-nic")[0]
    assert (first.kind, first.iterations) == ("slow_nic", (119, 260))


def test_a_healthy_job_accuses_no_device_above_a_note() -> None:
    assert not [one for one in verdicts(GPU / "clean") if one.suspects and one.severity != "note"]


@pytest.mark.parametrize("kind", ["flight-recorder", "nccl-ras"])
def test_the_rank_that_hangs_is_named_from_what_nccl_itself_leaves(kind: str, tmp_path: Path) -> None:
    source = {"flight-recorder": GPU / "flight-recorder-hang", "nccl-ras": GPU / "ras-hang"}[kind]
    imported = CliRunner().invoke(app, ["import", kind, str(source), str(tmp_path / "job")])
    assert imported.exit_code == 0, imported.output
    first = verdicts(tmp_path / "job")[0]
    assert (first.kind, first.suspects[0].ranks) == ("hang", (1,))
