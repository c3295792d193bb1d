"""Notices in words and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.judgements import Verdict
from irregulars.sinks.alerts import ALERTING_EVENTS, alert_of, decode_alert
from irregulars.sinks.notices.alertmanager import AlertmanagerChannel, annotations_of
from irregulars.sinks.notices.ledger import Ledger
from irregulars.sinks.notices.notice import Notice, NoticeEvent, encode_notice, incident_link, notice_json, summary_of
from irregulars.sinks.notices.pagerduty import events_of
from irregulars.sinks.notices.policy import Rules
from irregulars.sinks.notices.slack import message_of
from tests.present import present
from tests.sinks.notices.alerts import alert
from tests.sinks.verdicts import verdicts

SCHEMA: dict[str, Any] = json.loads(files("irregulars.sinks").joinpath("notices", "notice.json").read_text("utf-8"))
EVENTS: st.SearchStrategy[NoticeEvent] = st.sampled_from(["opened", "updated", "resolved"])


@given(verdicts(events=ALERTING_EVENTS, severities=(None, "ticket", "page")), EVENTS, st.lists(st.text(), max_size=4))
def test_every_notice_follows_its_schema_in_a_line(verdict: Verdict, event: NoticeEvent, earlier: list[str]) -> None:
    value = present(alert_of(verdict))
    notice = Notice(event, json.loads(value), "ticket", tuple(earlier))
    said = json.loads(encode_notice(notice))
    jsonschema.validate(said, SCHEMA, jsonschema.Draft202012Validator)
    assert [*said, "incidents"] == list(SCHEMA["properties"])
    assert len(summary_of(notice, 40)) <= 40
    assert len(summary_of(notice).splitlines()) == 1


def test_the_line_says_what_is_told_and_whether_it_comes_again() -> None:
    held = Notice("opened", alert(event="raised", severity="page"), "ticket")
    assert summary_of(held).startswith("OPENED slow NIC in llama (ticket): NIC mlx5_1 on node-3")
    assert summary_of(Notice("updated", alert(event="raised", severity="page"), "page")).startswith("RAISED slow NIC")
    ended = Notice("resolved", alert(event="closed"), "ticket")
    assert summary_of(ended).startswith("RESOLVED slow NIC in llama (ticket, recovered)")
    notice = Notice("opened", alert(), "ticket", ("a", "b", "c"))
    assert "This is the fourth verdict on this device within 7 days." in summary_of(notice)
    assert notice_json(notice)["is_repeat_offender"]


@pytest.mark.parametrize(("change", "words"), [
    ({"severity": "critical"}, "OPENED slow NIC in llama (page): NIC mlx5_1 on node-3"),
    ({"kind": "slow_disk"}, "OPENED slow disk in llama (page): NIC mlx5_1 on node-3"),
    ({"suspects": [{"device": "dpu", "rank": 3, "ranks": [3, 4], "probability": 0.9, "host": "node-7"}]},
     "OPENED slow NIC in llama (page): dpu of ranks 3-4 on node-7, 90% sure"),
    ({"state": "waning", "close_reason": "sold"}, "OPENED slow NIC in llama (page, sold): NIC mlx5_1 on node-3"),
])  # fmt: skip
def test_words_of_a_newer_worker_are_told_as_they_are_and_an_unknown_severity_as_a_page(
    change: dict[str, Any], words: str
) -> None:
    ledger = Ledger({"c": Rules(hold_s=0.0)})
    ledger.apply_alert(decode_alert(json.dumps({**alert(severity="page"), **change}).encode()), 0)
    due = present(ledger.next_due("c", 0))
    notice = due.notice
    assert summary_of(notice).startswith(words)
    assert events_of(notice)[0]["payload"]["severity"] == "critical"
    jsonschema.validate(json.loads(encode_notice(notice)), SCHEMA, jsonschema.Draft202012Validator)
    assert all(words in json.dumps(one) for one in (message_of(notice), annotations_of(notice)))


def test_every_channel_links_to_the_incident_s_page_where_somebody_said_where_the_console_is() -> None:
    link = incident_link("https://console/", "a/b <x>:1:25:0")
    assert link == "https://console/incidents/a%2Fb%20%3Cx%3E:1:25:0"
    notice = Notice("opened", alert(), "page", link=link)
    assert notice_json(notice)["link"] == link
    (posted,), _ = AlertmanagerChannel("a", "http://127.0.0.1:1").alerts(notice)
    assert (posted["generatorURL"], posted["annotations"]["link"]) == (link, link)
    (event,) = events_of(notice)
    assert (event["client_url"], event["links"][0]["href"]) == (link, link)
    assert message_of(notice)["attachments"][0]["title_link"] == link
    without = replace(notice, link=None)
    assert link not in str((events_of(without), message_of(without), notice_json(without), annotations_of(without)))


def test_every_channel_links_to_the_runbook_s_section_of_the_kind_where_its_place_is_known() -> None:
    def told(url: str | None) -> Notice:
        ledger = Ledger({"pager": Rules(runbook_url=url)})
        ledger.apply_alert(alert("v1"), 1_800_000_000 * 10**9)
        due = present(ledger.next_due("pager", 1_800_000_001 * 10**9))
        return due.notice

    notice = told("https://docs.example/runbook/")
    link = f"https://docs.example/runbook/#{notice.alert['kind']}"
    assert notice_json(notice)["runbook"] == link
    assert annotations_of(notice)["runbook_url"] == link
    assert events_of(notice)[0]["links"] == [{"href": link, "text": "Runbook"}]
    assert message_of(notice)["attachments"][0]["fields"][-1] == {"title": "Runbook", "value": link, "short": False}
    for channel in (notice_json, annotations_of, events_of, message_of):
        assert "docs.example" not in json.dumps(channel(told(None)))
    assert notice_json(told(None))["runbook"] is None
