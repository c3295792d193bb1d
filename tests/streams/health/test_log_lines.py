"""Lines of the log about jobs and verdicts: one each, whatever a job is called."""

from __future__ import annotations

import logging
import logging.config
from dataclasses import replace

import pytest

from irregulars.messages.judgements import Suspect, Verdict
from irregulars.streams.health.log_lines import (
    LEVELS,
    SparingFilter,
    log_job,
    log_verdict,
    logging_config,
    utc_formatter,
)

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
    assert [line.split()[0] for line in caplog.messages] == ["event=verdict_opened", "event=verdict_closed"]


def test_a_name_of_any_length_is_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    log_job("appeared", "a\nlevel=ERROR " + 400_000 * "x", partition=3)
    log_verdict(replace(OPENED, job=400_000 * "y", suspects=(replace(NIC, host=400_000 * "z"),)))
    assert len(caplog.messages) == 2
    for line in caplog.messages:
        assert "\n" not in line
        assert len(line) < 1500


def record(name: str, text: str, at_s: float) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.ERROR, __file__, 1, text, ("node", 1), None)
    made.created = at_s
    return made


def test_others_repeat_themselves_once_in_ten_seconds() -> None:
    sparing = SparingFilter()
    shown = [at_s for at_s in range(25) if sparing.filter(record("faust", "no %s %d", 100.0 + at_s))]
    assert shown == [0, 10, 20]


def test_texts_that_are_ever_new_are_not_all_remembered() -> None:
    sparing = SparingFilter()
    assert all(sparing.filter(record("faust", f"no {number}", 100.0)) for number in range(3_000))
    assert len(sparing._shown_s) <= 1_000


def test_our_own_lines_always_show() -> None:
    sparing = SparingFilter()
    assert all(sparing.filter(record("irregulars.worker", "event=%s %d", 100.0)) for _ in range(5))


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_is_a_configuration_that_logging_takes(level: str) -> None:
    config = logging_config(level)
    logging.config.DictConfigurator(config)
    assert config["root"]["level"] == ("INFO" if level == "debug" else "WARNING")


def test_a_name_that_holds_line_feeds_begins_no_line() -> None:
    record = logging.LogRecord("irregulars", logging.ERROR, "x", 1, "device=%s", ("a\nevent=made_up\x1b[31m",), None)
    assert utc_formatter("%(message)s").format(record) == "device=a\\x0aevent=made_up\\x1b[31m"
