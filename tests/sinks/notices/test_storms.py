"""Many incidents at once are told as one, and each of them has its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from irregulars.sinks.notices.alertmanager import annotations_of
from irregulars.sinks.notices.ledger import Due, Ledger
from irregulars.sinks.notices.notice import encode_notice, summary_of
from irregulars.sinks.notices.pagerduty import events_of
from irregulars.sinks.notices.policy import GATHER_NS, MINUTE_NS, OPENINGS, UPDATE_NS, DeliveryRecord, Rules
from irregulars.sinks.notices.slack import message_of
from tests.sinks.notices.alerts import alert

S = 10**9
T0 = 1_800_000_000 * S


class Channel:
    """A channel that takes all notices, and the records from which a restart goes on."""

    def __init__(self, **rules: Any) -> None:
        self._rules = Rules(**{"hold_s": 0.0, **rules})
        self.ledger = Ledger({"c": self._rules})
        self.records: dict[bytes, DeliveryRecord] = {}
        self._alerts: list[tuple[dict[str, Any], int]] = []

    def take(self, *alerts: dict[str, Any], at_ns: int = T0) -> None:
        for one in alerts:
            self._alerts.append((one, at_ns))
            self.ledger.apply_alert(one, at_ns, 0, len(self._alerts))

    def told(self, now_ns: int) -> list[Due]:
        found = []
        while (due := self.ledger.next_due("c", now_ns)) is not None:
            intended = self.ledger.intend("c", due, now_ns)
            self._keep([] if intended is None else [intended])
            self._keep(self.ledger.delivered("c", due, None, now_ns))
            found.append(due)
        self._keep(self.ledger.take_unrecorded())
        return found

    def restart(self) -> None:
        self.ledger = Ledger({"c": self._rules})
        for one in self.records.values():
            self.ledger.apply_delivery(one)
        for number, (value, at_ns) in enumerate(self._alerts):
            self.ledger.apply_alert(value, at_ns, 0, number + 1)

    def _keep(self, records: Sequence[DeliveryRecord]) -> None:
        self.records |= {one.key: one for one in records}


def alerts(count: int, event: str = "opened", first: int = 0, severity: str = "ticket") -> list[dict[str, Any]]:
    return [alert(f"v{number}", 2 if event == "closed" else 1, event, job=f"job-{number}", host=f"node-{number}",
                  severity=severity) for number in range(first, first + count)]  # fmt: skip


def said(dues: Sequence[Due]) -> list[tuple[str, str, int]]:
    """Event, severity, and of how many incidents."""
    return [(one.notice.event, one.notice.severity, max(len(one.notice.incidents), 1)) for one in dues]


ONE = ("opened", "ticket", 1)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_storm_opens_grows_and_ends_as_one_and_so_does_each_that_came_before_it(restarts: bool) -> None:
    channel = Channel()
    channel.take(*alerts(100))
    assert said(channel.told(T0)) == [ONE] * OPENINGS
    assert said(channel.told(T0 + GATHER_NS)) == [("opened", "ticket", 95)]
    assert channel.ledger.unsettled(0) is None
    channel.take(*alerts(10, first=100))
    assert channel.told(T0 + GATHER_NS + S) == []
    assert channel.ledger.unsettled(0) == 101, "it is not settled before it was told"
    at_ns = T0 + GATHER_NS + UPDATE_NS
    assert said(channel.told(at_ns)) == [("updated", "ticket", 105)]
    if restarts:
        channel.restart()
    assert channel.told(at_ns + S) == []
    channel.take(*alerts(109, "closed"))
    assert said(channel.told(at_ns + 2 * S)) == [("resolved", "ticket", 1)] * OPENINGS
    assert channel.told(at_ns + UPDATE_NS) == [], "one goes on"
    channel.take(*alerts(1, "closed", first=109))
    (end,) = channel.told(at_ns + 2 * UPDATE_NS)
    assert said([end]) == [("resolved", "ticket", 105)]
    assert {one.state for one in channel.records.values()} == {"closed"}
    channel.restart()
    assert channel.told(at_ns + 3 * UPDATE_NS) == []


def test_a_storm_of_tickets_holds_no_page_back() -> None:
    channel = Channel()
    channel.take(*alerts(100))
    channel.told(T0)
    channel.take(alert("page", severity="page"))
    assert said(channel.told(T0)) == [("opened", "page", 1)]


def test_a_storm_becomes_a_page_when_one_of_its_incidents_does() -> None:
    channel = Channel()
    channel.take(*alerts(100))
    channel.told(T0)
    channel.told(T0 + GATHER_NS)
    channel.take({**alert("v50", 2, "raised", severity="page"), "job": "job-50"})
    later_ns = T0 + GATHER_NS + UPDATE_NS
    assert said(channel.told(later_ns)) == [("updated", "page", 95)]
    assert channel.told(later_ns + UPDATE_NS) == []


def test_an_incident_that_is_alone_in_its_storm_is_told_by_itself() -> None:
    channel = Channel()
    channel.take(*alerts(OPENINGS + 1))
    assert len(channel.told(T0)) == OPENINGS
    assert said(channel.told(T0 + GATHER_NS)) == [ONE]
    assert {one.storm for one in channel.records.values()} == {None}


def test_incidents_that_end_before_their_storm_was_told_are_told_to_nobody() -> None:
    channel = Channel()
    channel.take(*alerts(OPENINGS + 3))
    channel.told(T0)
    channel.take(*alerts(3, "closed", first=OPENINGS))
    assert channel.told(T0 + MINUTE_NS) == []
    assert channel.ledger.unsettled(0) is None


def test_a_minute_later_incidents_are_told_one_by_one_again_and_then_as_another_storm() -> None:
    channel = Channel()
    channel.take(*alerts(10))
    channel.told(T0)
    channel.told(T0 + GATHER_NS)
    later_ns = T0 + MINUTE_NS + S
    channel.take(*alerts(10, first=10), at_ns=later_ns)
    assert said(channel.told(later_ns)) == [ONE] * OPENINGS
    assert said(channel.told(later_ns + GATHER_NS)) == [("opened", "ticket", 5)]


def test_a_storm_is_told_again_to_who_would_forget_it_and_its_incidents_are_not() -> None:
    channel = Channel(repeat_s=200.0)
    channel.take(*alerts(100))
    channel.told(T0)
    channel.told(T0 + GATHER_NS)
    dues = channel.told(T0 + 300 * S)
    assert [one.is_repeat for one in dues] == [True] * (OPENINGS + 1)


def test_a_channel_of_machines_is_told_of_each() -> None:
    channel = Channel(gathers=False)
    channel.take(*alerts(100))
    assert said(channel.told(T0)) == [ONE] * 100


def test_a_storm_says_what_its_incidents_share_and_names_the_newest_on_every_channel() -> None:
    channel = Channel()
    channel.take(*alerts(100), *({**one, "kind": "hang"} for one in alerts(20, first=100)))
    channel.told(T0)
    (due,) = channel.told(T0 + GATHER_NS)
    assert summary_of(due.notice) == (
        "OPENED 115 incidents in 115 jobs (ticket): 95 slow NIC; all switch leaf-0; 115 hosts; opened within 0 s; "
        "2.94e+03 GPU-hours lost so far. Next: look at switch leaf-0 first."
    )
    for body in (events_of(due.notice), message_of(due.notice), annotations_of(due.notice)):
        assert "v119 (hang, nic:node-119/mlx5_1)" in json.dumps(body)
    assert json.loads(encode_notice(due.notice))["incidents"] == [f"v{number}" for number in range(119, 4, -1)]


def test_a_storm_of_one_job_that_shares_no_place_leads_to_its_gravest_incident() -> None:
    channel = Channel()
    channel.take(*({**alert(f"v{number}", job="j"), "suspects": []} for number in range(8)))
    channel.told(T0)
    (due,) = channel.told(T0 + GATHER_NS)
    assert summary_of(due.notice).endswith("Next: look at v5 first.")


@pytest.mark.parametrize("restarts", [False, True])
def test_news_of_a_storm_that_was_given_up_is_told(restarts: bool) -> None:
    """It was noted as told with the storm, and nobody was told of its incidents again."""
    channel, later_ns = Channel(), T0 + 3600 * S
    channel.take(*alerts(20))
    assert said(channel.told(T0)) == [ONE] * OPENINGS
    due = channel.ledger.next_due("c", T0 + GATHER_NS)
    assert due is not None
    channel.ledger.intend("c", due, T0 + GATHER_NS)
    channel._keep(channel.ledger.given_up("c", due, later_ns, may_have_arrived=True))
    if restarts:
        channel.restart()
    assert channel.told(later_ns + S) == [], "what was given up is not tried again"
    own = {"job": "job-7", "host": "node-7"}
    channel.take(alert("v7", 2, "changed", **own), at_ns=later_ns + 2 * S)
    assert said(channel.told(later_ns + 2 * S)) == [("opened", "ticket", 15)]
    assert channel.told(later_ns + 60 * S) == []
    channel.take(*alerts(20, "closed"), alert("v7", 3, "closed", **own), at_ns=later_ns + 90 * S)
    assert said(channel.told(later_ns + 90 * S))[-1] == ("resolved", "ticket", 15)


def test_an_outcome_of_an_earlier_ledger_is_told_apart() -> None:
    channel = Channel()
    channel.take(*alerts(20))
    (own, *_) = channel.told(T0)
    (storm,) = channel.told(T0 + GATHER_NS)
    later = Channel()
    assert (channel.ledger.knows(own), channel.ledger.knows(storm)) == (True, True)
    assert (later.ledger.knows(own), later.ledger.knows(storm)) == (False, False)
