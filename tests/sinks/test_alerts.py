from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import RecordError
from irregulars.messages.judgements import SEVERITIES, Suspect, Verdict, decode_verdict
from irregulars.sinks.alerts import ALERTING_EVENTS, alert_line, alert_of, gpu_hours_lost, seen_ns, summarise
from tests.sinks.verdicts import verdicts

NIC = Suspect("nic", 26, (26,), 0.91, host="node-3", gpu=2, nic="mlx5_0")
OPENED = Verdict(
    "llama:0:60:0", 1, "open", "llama", "slow_nic", (60, 80), 2.4, 690.0, "dp0", (NIC,), "evidence", world_size=64,
    time_ns=1_795_234_590_000_000_000, severity="page",
)  # fmt: skip
ALERTED = (None, "ticket", "page")
CLOSED = replace(OPENED, revision=9, state="closed", event="closed", close_reason="recovered")


def message_of(verdict: Verdict) -> bytes:
    message = alert_of(verdict)
    assert message is not None
    return message


def test_more_of_the_same_and_notes_alert_nobody_and_what_an_older_worker_says_does() -> None:
    assert alert_of(replace(OPENED, event="continued")) is None
    for event in ALERTING_EVENTS:
        assert alert_of(replace(OPENED, event=event, severity="note")) is None
    assert message_of(replace(OPENED, severity=None))  # nobody said that it is a note


@pytest.mark.parametrize("least", SEVERITIES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_what_is_less_urgent_than_was_asked_for_gives_no_alert(severity: str, least: str) -> None:
    is_alerted = SEVERITIES.index(severity) >= SEVERITIES.index(least)
    assert (alert_of(replace(OPENED, severity=severity), least) is not None) == is_alerted


@given(verdicts(events=ALERTING_EVENTS, severities=ALERTED))
def test_every_other_revision_passes_with_the_verdict_inside_and_its_summary_first(verdict: Verdict) -> None:
    assert decode_verdict(message_of(verdict), "alerts") == verdict
    values = json.loads(message_of(verdict))
    assert next(iter(values)) == "summary"
    assert values["summary"].isprintable()
    assert ". Next: " in values["summary"]


def test_an_opening_and_a_closing_say_who_how_slow_what_it_cost_and_what_to_do() -> None:
    assert summarise(OPENED) == (
        "OPENED slow NIC in llama (page): NIC mlx5_0 on node-3 (GPU 2, rank 26), 91% sure; iterations take 2.4x the "
        "usual time since iteration 60; 37.3 GPU-hours an hour lost on 64 GPUs, 12.3 so far. Next: cordon node-3, "
        "drain it at the next checkpoint, then check port, optics and firmware of NIC mlx5_0."
    )
    assert summarise(CLOSED) == (
        "CLOSED slow NIC in llama (page, recovered): NIC mlx5_0 on node-3 (GPU 2, rank 26), 91% sure; iterations "
        "took 2.4x the usual time in iterations 60 to 79; 12.3 GPU-hours lost on 64 GPUs. Next: let node-3 take "
        "work again if it was cordoned for this, and test it when it is free."
    )


@pytest.mark.parametrize(("verdict", "text"), [
    (replace(OPENED, event="raised"), "RAISED slow NIC in llama (now a page): "),
    (replace(OPENED, severity=None), "OPENED slow NIC in llama: "),
    (replace(OPENED, recovers_ratio=0.874), "on 64 GPUs, 12.3 so far, 87% of it through that device. Next"),
    (replace(OPENED, recovers_ratio=0.5, suspects=()), "on 64 GPUs, 12.3 so far. Next"),
    (replace(OPENED, delta=float("nan")), "; 12.3 GPU-hours lost so far on 64 GPUs. Next"),
    (replace(OPENED, kind="hang"), "iteration 79 does not end"),
    (replace(OPENED, kind="hang"), "64 GPUs, at least 12.3 so far"),
    (replace(CLOSED, kind="hang"), "iteration 79 had not ended"),
    (replace(OPENED, kind="imbalance", suspects=()), "no device is at fault"),
    (replace(OPENED, kind="slow_communicator", suspects=()), "communicator dp0 is slow as a whole"),
    (replace(OPENED, kind="slow_rank", suspects=()), "no device is named, communicator dp0"),
    (replace(OPENED, delta=float("nan")), "seen since iteration 60"),
    (replace(OPENED, world_size=0), "690 s lost so far"),
    (replace(OPENED, suspects=(replace(NIC, probability=1.0),)), "99% sure"),
    (replace(OPENED, suspects=(NIC, Suspect("gpu", 3, (3,), 0.2))), "(or rank 3 (host not announced), 20%)"),
])  # fmt: skip
def test_the_summary_says_what_is_known_and_no_more(verdict: Verdict, text: str) -> None:
    assert text in summarise(verdict)


def test_a_standstill_that_is_made_up_to_last_for_ages_still_has_a_time() -> None:
    made_up_ns = seen_ns({"kind": "hang", "lost_s": 1e18, "time_ns": 1})
    assert made_up_ns is not None
    assert datetime.fromtimestamp(made_up_ns / 1e9, UTC).year == 2262


def test_a_hang_and_a_detector_do_not_say_that_nothing_was_lost() -> None:
    hang = summarise(replace(OPENED, kind="hang", lost_s=0.0))
    assert f"; all {OPENED.world_size:,} GPUs wait. Next: " in hang
    over = summarise(replace(CLOSED, kind="hang", lost_s=0.0))
    assert f"; all {OPENED.world_size:,} GPUs waited. Next: " in over
    assert "GPU-hours" not in summarise(replace(OPENED, kind="custom", detector="quiet_loss", lost_s=0.0))
    improbable = replace(OPENED, suspects=(NIC, Suspect("gpu", 3, (3,), 0.05)))
    assert "(or " not in summarise(improbable)


def test_gpu_hours_are_those_of_all_gpus_that_waited_and_null_if_they_are_not_known() -> None:
    assert gpu_hours_lost(OPENED) == pytest.approx(690 * 64 / 3600)
    assert gpu_hours_lost(replace(OPENED, world_size=0)) is None
    assert gpu_hours_lost(replace(OPENED, lost_s=float("nan"))) is None
    assert json.loads(message_of(replace(OPENED, delta=float("inf"))))["delta"] is None


def test_a_follower_s_line_has_the_event_time_and_the_verdict() -> None:
    message = message_of(OPENED)
    line = alert_line(message)
    assert line.startswith("2026-11-21 04:16:30Z  OPENED slow NIC in llama (page): ")
    assert line.endswith(". See: irregulars show llama:0:60:0")
    assert alert_line(json.loads(message)) == line
    assert alert_line(message_of(replace(OPENED, time_ns=None))).startswith("time not known  ")
    over = replace(CLOSED, kind="hang", time_ns=OPENED.time_ns, lost_s=720.0)  # it began then, and stood for 12 min
    assert alert_line(message_of(over)).startswith("2026-11-21 04:28:30Z  CLOSED hang ")


@given(st.text(), st.text())
def test_no_name_reaches_the_terminal_as_a_control_sequence(job: str, host: str) -> None:
    named = replace(OPENED, job=f"j{job}\x1b[2J\n", suspects=(replace(NIC, host=host + "\r"),))
    assert alert_line(message_of(named)).isprintable()


@pytest.mark.parametrize("message", [b"", b"[]", b"{}", b'{"schema":"alerts","version":1}', b"\xff"])
def test_a_message_of_another_form_is_a_record_error(message: bytes) -> None:
    with pytest.raises(RecordError):
        alert_line(message)
