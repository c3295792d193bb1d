"""Where the runbook's place is known, each channel links to the section of the verdict's kind; else to nothing."""

from __future__ import annotations

import json

import pytest

from irregulars.sinks.notices.alertmanager import annotations_of
from irregulars.sinks.notices.ledger import Ledger
from irregulars.sinks.notices.notice import Notice, notice_json
from irregulars.sinks.notices.pagerduty import events_of
from irregulars.sinks.notices.policy import Rules
from irregulars.sinks.notices.slack import message_of
from tests.sinks.notices.alerts import alert_bytes

URL = "https://docs.example/runbook/"


def told(url: str | None) -> Notice:
    ledger = Ledger({"pager": Rules(runbook_url=url)})
    ledger.apply_alert(json.loads(alert_bytes("v1")), 1_800_000_000 * 10**9)
    due = ledger.next_due("pager", 1_800_000_001 * 10**9)
    assert due is not None
    return due.notice


def test_channels_link_to_the_section_of_the_kind() -> None:
    notice = told(URL)
    link = f"{URL}#{notice.alert['kind']}"
    assert notice_json(notice)["runbook"] == link
    assert annotations_of(notice)["runbook_url"] == link
    assert events_of(notice)[0]["links"] == [{"href": link, "text": "Runbook"}]
    assert message_of(notice)["attachments"][0]["fields"][-1] == {"title": "Runbook", "value": link, "short": False}


@pytest.mark.parametrize("channel", [notice_json, annotations_of, events_of, message_of])
def test_nobody_links_to_what_nobody_named(channel: object) -> None:
    assert callable(channel)
    assert "docs.example" not in json.dumps(channel(told(None)))
    assert notice_json(told(None))["runbook"] is None
