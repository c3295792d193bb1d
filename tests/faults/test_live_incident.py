"""One fault in a real job of four processes with torch and gloo is one incident and one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.runs.local_services import LocalServices
from irregulars.infra.runs.published_run import LivePlan, LiveRun
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings
from irregulars.kafka.topics import TopicSettings
from tests.gloo_ranks import needs_torch, wait_for_end
from tests.integration.notify_runs import NotifyRun, pagerduty, webhook
from tests.integration.worker_runs import wait_until
from tests.sinks.notices.receiver import Receiver, Request

pytestmark = [pytest.mark.integration, needs_torch]


@dataclass(frozen=True)
class Bus:
    """Where the services are, as `NotifyRun` wants to know it."""

    bootstrap: str
    topics: TopicSettings


def paths(requests: list[Request], path: str) -> list[Request]:
    return [one for one in requests if one.path == path]


def test_one_fault_is_one_incident_and_one_page(tmp_path: Path) -> None:
    # Four processes lose no night's rest: what is a page is said by the test, who is to blame is not.
    settings = Settings(snapshot_s=1.0, partitions=4, alert_page_gpu_hours=0.1, alert_page_after_s=1.0)
    plan = LivePlan(stall_s=0.4)  # several times what a busy machine adds to an iteration by itself
    with Receiver() as receiver, LocalServices(settings) as services:
        own = services.settings
        pager = pagerduty(f"{receiver.url}/pager", tmp_path, least_severity="page")
        channels = webhook(f"{receiver.url}/hook") + pager
        notify = NotifyRun(Bus(own.kafka_bootstrap, own.topics()), tmp_path, channels, notify_hold_s=1.0)  # type: ignore[arg-type]
        try:
            wait_until(notify.is_loaded, "start")
            with LiveRun(plan, "live", agent_settings(own)) as run:
                wait_for_end(run, services)
            wait_until(lambda: any(one["event"] == "resolved" for one in told(receiver, plan)), "the end")
            wait_until(
                lambda: any(one["event_action"] == "resolve" for one in paged(receiver, plan)), "its page's end"
            )
            assert notify.stop() == 0
        finally:
            notify.close()
    for one in notices(receiver):
        alert = one["alert"]
        ranks = [suspect["ranks"] for suspect in alert["suspects"]]
        print(one["event"], one["incident"], alert["kind"], alert["iterations"], ranks)
    events = told(receiver, plan)
    assert len({one["incident"] for one in events}) == 1
    assert [one["event"] for one in events].count("opened") == 1
    assert events[-1]["event"] == "resolved"
    assert {one["alert"]["kind"] for one in events} == {"slow_rank"}
    pages = paged(receiver, plan)
    assert len({one["dedup_key"] for one in pages}) == 1
    assert [one["event_action"] for one in pages].count("resolve") == 1
    assert any(one["payload"]["severity"] == "critical" for one in pages if one["event_action"] == "trigger")


def notices(receiver: Receiver) -> list[dict[str, Any]]:
    return [one.json() for one in paths(receiver.requests, "/hook")]


def told(receiver: Receiver, plan: LivePlan) -> list[dict[str, Any]]:
    """Notices of incidents that accuse the rank with the fault in iterations with it.

    A busy machine slows ranks of its own accord too, and rightly there are notices of that: a few processes of a test
    suite beside this one do it in one run of four. It may slow the same rank just before: that is one incident.
    """
    own = {
        one["incident"]
        for one in notices(receiver)
        if one["alert"]["iterations"][0] < plan.past and one["alert"]["iterations"][1] > plan.first
        and [suspect["ranks"] for suspect in one["alert"]["suspects"][:1]] == [[plan.rank]]  # it may accuse nobody
    }  # fmt: skip
    return [one for one in notices(receiver) if one["incident"] in own]


def paged(receiver: Receiver, plan: LivePlan) -> list[dict[str, Any]]:
    """Events of the pager about the same incidents."""
    own = {one["incident"] for one in told(receiver, plan)}
    found = [one.json() for one in paths(receiver.requests, "/pager")]
    return [one for one in found if one["dedup_key"] in own]
