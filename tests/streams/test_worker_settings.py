from __future__ import annotations

from typing import Any

import pytest

from irregulars.errors import InputError
from irregulars.messages.judgements import Verdict
from irregulars.streams.worker.monitors import make_monitors, worker_monitor_settings
from irregulars.streams.worker_settings import WorkerSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("snapshot_s", 0.0), ("session_s", -1.0), ("grace_s", -0.1), ("log_level", "loud"), ("web_port", 70_000),
        ("alert_least_severity", "panic"),
    ],
)  # fmt: skip
def test_a_value_that_makes_no_sense_is_named(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} must be .*; got {value!r}"):
        WorkerSettings("127.0.0.1:9092", **{name: value})


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(WorkerSettings("127.0.0.1:9092", security={"sasl.password": "secret"}))


def test_judgement_settings_reach_the_monitors() -> None:
    settings = WorkerSettings("127.0.0.1:9092", grace_s=7.0, judgement={"delta": 1.3, "window": 20})
    found = worker_monitor_settings(settings)
    assert (found.delta, found.window, found.grace_s) == (1.3, 20, 7.0)


def test_an_unknown_judgement_setting_is_named() -> None:
    with pytest.raises(InputError, match="got gamma"):
        worker_monitor_settings(WorkerSettings("127.0.0.1:9092", judgement={"gamma": 1.0}))


@pytest.mark.parametrize(("least", "is_alerted"), [("note", True), ("ticket", True), ("page", False)])
def test_the_least_severity_reaches_the_alerts(least: str, is_alerted: bool) -> None:
    monitors = make_monitors(WorkerSettings("127.0.0.1:9092", alert_least_severity=least))
    verdict = Verdict("v", 1, "open", "j", "hang", (0, 1), 1.0, 0.0, None, (), "", severity="ticket")
    assert (monitors.alert_of(verdict) is not None) == is_alerted
