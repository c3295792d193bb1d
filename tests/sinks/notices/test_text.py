"""Notices in words and as JSON."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from irregulars.sinks.alerts import ALERTING_EVENTS, alert_of
from irregulars.sinks.notices.notice import Notice, NoticeEvent
from irregulars.sinks.notices.text import encode_notice, notice_json, summary_of
from irregulars.streams.messages.judgements import Verdict
from tests.sinks.notices.alerts import alert
from tests.sinks.verdicts import verdicts

SCHEMA: dict[str, Any] = json.loads(files("irregulars.sinks").joinpath("notices", "notice.json").read_text("utf-8"))
EVENTS: st.SearchStrategy[NoticeEvent] = st.sampled_from(["opened", "updated", "resolved"])


@given(verdicts(events=ALERTING_EVENTS, severities=(None, "ticket", "page")), EVENTS, st.lists(st.text(), max_size=4))
def test_every_notice_follows_its_schema_and_fits_in_a_line(
    verdict: Verdict, event: NoticeEvent, earlier: list[str]
) -> None:
    value = alert_of(verdict)
    assert value is not None
    notice = Notice(event, json.loads(value), "ticket", tuple(earlier))
    said = json.loads(encode_notice(notice))
    jsonschema.validate(said, SCHEMA, jsonschema.Draft202012Validator)
    assert list(said) == list(SCHEMA["properties"])
    assert len(summary_of(notice, 40)) <= 40
    assert len(summary_of(notice).splitlines()) == 1


def test_the_line_says_what_is_told_and_not_what_the_verdict_would() -> None:
    held = Notice("opened", alert(event="raised", severity="page"), "ticket")
    assert summary_of(held).startswith("OPENED slow NIC in llama (ticket): NIC mlx5_1 on node-3")
    assert summary_of(Notice("updated", alert(event="raised", severity="page"), "page")).startswith("RAISED slow NIC")
    ended = Notice("resolved", alert(event="closed"), "ticket")
    assert summary_of(ended).startswith("RESOLVED slow NIC in llama (ticket, recovered)")


def test_a_fourth_verdict_is_called_so() -> None:
    notice = Notice("opened", alert(), "ticket", ("a", "b", "c"))
    assert "This is the fourth verdict on this device within 7 days." in summary_of(notice)
    assert notice_json(notice)["is_repeat_offender"]
