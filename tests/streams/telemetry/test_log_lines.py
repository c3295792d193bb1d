"""Lines of the log about jobs and verdicts: one each, whatever a job is called."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from irregulars.messages.judgements import Suspect, Verdict
from irregulars.streams.telemetry.log_lines import log_job, log_verdict

NIC = Suspect("nic", 26, (26,), 0.91, host="node-3", gpu=2, nic="mlx5_0")
OPENED = Verdict(
    "llama:0:25:0", 1, "open", "llama", "slow_nic", (25, 27), 1.4, 36.0, "world", (NIC,), "", world_size=100,
    severity="ticket",
)  # fmt: skip


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "irregulars.worker")


def test_an_opening_says_job_kind_suspect_probability_and_cost(caplog: pytest.LogCaptureFixture) -> None:
    log_verdict(OPENED)
    (line,) = caplog.records
    assert line.levelname == "INFO"
    assert line.getMessage() == (
        "event=verdict_opened job='llama' kind=slow_nic suspect='NIC mlx5_0 on node-3 (GPU 2, rank 26)' "
        "probability=0.91 severity=ticket lost_s=36 gpu_hours_lost=1 iterations=25-26 close_reason=none "
        "verdict_id='llama:0:25:0' revision=1"
    )


def test_of_a_verdict_s_life_only_opening_and_closing_have_a_line(caplog: pytest.LogCaptureFixture) -> None:
    for event in ("opened", "changed", "raised", "continued", "closed"):
        log_verdict(replace(OPENED, event=event))
    assert [line.split()[0] for line in caplog.messages] == [
        "event=verdict_opened",
        "event=verdict_closed",
    ]


def test_a_name_of_any_length_is_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    log_job("appeared", "a\nlevel=ERROR " + 400_000 * "x", partition=3)
    log_verdict(replace(OPENED, job=400_000 * "y", suspects=(replace(NIC, host=400_000 * "z"),)))
    assert len(caplog.messages) == 2
    for line in caplog.messages:
        assert "\n" not in line
        assert len(line) < 1500
