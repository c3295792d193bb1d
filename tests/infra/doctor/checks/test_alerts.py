from __future__ import annotations

import pytest

from irregulars.infra.doctor.checks.alerts import check_alerts
from irregulars.infra.doctor.checks.facts import GroupFacts, KafkaFacts, Letter
from tests.infra.doctor.installations import LAYOUT, NOW_S, kafka, topic, troubles

GROUP = "irregulars.notify"
READ_TO_7 = {(LAYOUT.name("alerts"), 0): 7}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (kafka(), []),
        (kafka(notify=GroupFacts(GROUP)), []),
        (kafka(notify=GroupFacts(GROUP, committed=READ_TO_7)), [("problem", "notify_stopped")]),
        (kafka(notify=GroupFacts(GROUP, "refused")), [("unknown", "not_read")]),
        (kafka(stream={"troubled": {"pager": "has not answered for 9 min"}}), [("warning", "channel_fails")]),
        (kafka(stream={"letters": (Letter(NOW_S, "status 400", "", "pager"),)}), [("warning", "channel_fails")]),
        (kafka(stream={"unread": {"mutes": "we may not"}}), [("unknown", "not_read")]),
        (kafka(stream={"mutes": ("host=node-3",)}), []),
        (kafka(topics={"mutes": topic("mutes", error="missing")}), []),
    ],
)
def test_what_is_found_of_alerts(seen: KafkaFacts, expected: list[tuple[str, str]]) -> None:
    assert troubles(check_alerts(seen, "ticket")) == expected


def said(seen: KafkaFacts) -> str:
    return "; ".join(f"{one.subject}: {one.text}" for one in check_alerts(seen, "ticket"))


def test_it_says_how_many_alerts_wait_and_who_is_muted() -> None:
    assert "notify: has run and does not run now; 3 alerts since then" in said(
        kafka(notify=GroupFacts(GROUP, committed=READ_TO_7))
    )
    assert "mutes: 1 mute in force: host=node-3" in said(kafka(stream={"mutes": ("host=node-3",)}))


def test_where_there_is_no_alert_it_says_whether_verdicts_were_not_urgent_enough() -> None:
    none = {"alerts": topic("alerts", ends={0: 0}, newest_s=None)}
    assert "alerts: none yet, and 10 revisions of verdicts below ticket" in said(kafka(topics=none))
