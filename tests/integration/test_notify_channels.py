"""Channels against the real thing where it can be had: Alertmanager, Kafka; and mutes by their command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.runs.child_process import free_port
from irregulars.sinks.notices.alertmanager import AlertmanagerChannel
from irregulars.sinks.notices.notice import Notice, notice_json
from tests.integration.notify_runs import NotifyRun, channel, send_alert, webhook
from tests.integration.pipelines import run_command
from tests.integration.worker_runs import Bus, make_topics, page_of, wait_until
from tests.sinks.notices.alerts import alert
from tests.sinks.notices.receiver import Receiver

pytestmark = pytest.mark.integration

CONFIG = """
route:
  receiver: hook
  group_by: [alertname, verdict, severity]
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1h
receivers:
- name: hook
  webhook_configs:
  - url: {url}
    send_resolved: true
"""


class Alertmanager:
    """A real one on this machine, with a webhook as its only receiver."""

    def __init__(self, binary: str, folder: Path, receiver: str) -> None:
        config = folder / "alertmanager.yml"
        config.write_text(CONFIG.format(url=receiver))
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = (folder / "alertmanager.log").open("wb")
        arguments = [f"--config.file={config}", f"--storage.path={folder / 'data'}", "--cluster.listen-address=",
                     f"--web.listen-address={self.url.removeprefix('http://')}"]  # fmt: skip
        self.process = subprocess.Popen([binary, *arguments], stdout=self.log, stderr=self.log)

    def is_ready(self) -> bool:
        return page_of(f"{self.url}/-/ready")[0] == 200

    def alerts(self, filters: str = "") -> list[Any]:
        query = f"?filter={urllib.parse.quote(filters)}" if filters else ""
        return list(json.loads(page_of(f"{self.url}/api/v2/alerts{query}")[1]))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self.log.close()


@pytest.fixture
def received() -> Iterator[Receiver]:
    """Where Alertmanager sends what it makes of our alerts."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def alertmanager(tmp_path: Path, received: Receiver) -> Iterator[Alertmanager]:
    """A running Alertmanager; skips, and says why, where there is none."""
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if binary is None:
        pytest.skip("prometheus-alertmanager must be installed (apt-get install prometheus-alertmanager); it is not")
    running = Alertmanager(binary, tmp_path, received.url)
    try:
        wait_until(running.is_ready, "Alertmanager")
        yield running
    finally:
        running.close()


def statuses(received: Receiver) -> list[tuple[str, str]]:
    return [(one["labels"]["severity"], one["status"]) for body in received.bodies() for one in body["alerts"]]


def test_alertmanager_fires_once_and_resolves_it(alertmanager: Alertmanager, received: Receiver) -> None:
    channel = AlertmanagerChannel("am", alertmanager.url, labels={"cluster": "c1"})
    reference = channel.deliver(Notice("opened", alert(), "ticket"))
    wait_until(lambda: statuses(received) == [("ticket", "firing")], "an alert")
    for revision in (2, 3):
        changed = alert(revision=revision, event="changed", lost_s=90.0 * revision, host=f"node-{revision}")
        reference = channel.deliver(Notice("updated", changed, "ticket", reference=reference))
    (held,) = alertmanager.alerts('cluster="c1"')
    assert held["labels"]["device"] == "nic:node-3/mlx5_1"
    assert held["annotations"]["gpu_hours_lost"] == "76.8"
    channel.deliver(Notice("resolved", alert(revision=4, event="closed"), "ticket", reference=reference))
    wait_until(lambda: ("ticket", "resolved") in statuses(received), "the end")
    assert statuses(received) == [("ticket", "firing"), ("ticket", "resolved")]
    channel.close()


def test_what_became_a_page_is_an_alert_of_each_severity(alertmanager: Alertmanager, received: Receiver) -> None:
    channel = AlertmanagerChannel("am", alertmanager.url)
    reference = channel.deliver(Notice("opened", alert(), "ticket"))
    raised = alert(revision=2, event="raised", severity="page")
    reference = channel.deliver(Notice("updated", raised, "page", reference=reference))
    wait_until(lambda: ("page", "firing") in statuses(received), "a page")
    ended = alert(revision=3, event="closed", severity="page")
    channel.deliver(Notice("resolved", ended, "page", reference=reference))
    wait_until(lambda: alertmanager.alerts() == [], "both ends")
    wait_until(lambda: ("page", "resolved") in statuses(received), "the page's end")
    assert statuses(received).count(("page", "firing")) == 1
    channel.close()


def test_an_alert_that_is_not_told_again_ends_by_itself(alertmanager: Alertmanager, received: Receiver) -> None:
    channel = AlertmanagerChannel("am", alertmanager.url, expires_s=2.0)
    channel.deliver(Notice("opened", alert(), "ticket"))
    wait_until(lambda: ("ticket", "resolved") in statuses(received), "its expiry")
    channel.close()


# --- the whole process ----------------------------------------------------------------------------------------------


def irregulars(bus: Bus, *arguments: str, status: int = 0) -> str:
    done = run_command(*arguments, on=bus)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if status == 0 else done.stderr


def test_every_channel_of_a_process_is_told_of_an_incident(
    bus: Bus, start_notify: Callable[..., NotifyRun], alertmanager: Alertmanager, tmp_path: Path
) -> None:
    events = f"{bus.topics.prefix}events"
    make_topics(bus.bootstrap, events)
    said = tmp_path / "said.json"
    run = start_notify(
        channel("alertmanager", "am", url=alertmanager.url)
        + channel("cloudevents", "events", topic=events)
        + channel("command", "script", argv=["tee", "-a", str(said)])
    )
    send_alert(bus, "v1")
    wait_until(lambda: len(alertmanager.alerts()) == 1, "Alertmanager")
    wait_until(lambda: bool(bus.reader.read_tail(events, 0)), "an event")
    wait_until(lambda: said.exists() and said.read_bytes().endswith(b"\n"), "the command")
    (event,) = bus.reader.read_tail(events, 0)
    headers = {name: (value or b"").decode() for name, value in list(event.headers() or ())}  # type: ignore[union-attr]
    assert (headers["ce_type"], headers["content-type"]) == ("irregulars.incident.opened", "application/json")
    assert event.key() == b"v1"
    wanted = notice_json(Notice("opened", alert("v1"), "ticket"))
    assert json.loads(event.value() or b"") == json.loads(said.read_text()) == wanted
    assert run.stop() == 0


def test_a_mute_by_the_command_holds_a_notice_back_until_it_is_removed(
    bus: Bus, start_notify: Callable[..., NotifyRun], received: Receiver
) -> None:
    channels = webhook(received.url)
    run = start_notify(channels)
    added = irregulars(bus, "mutes", "add", "--host", "node-3", "--for", "2h", "--reason", "firmware", "--who", "ann")
    mute_id = added.split(":")[0]
    assert re.fullmatch(rf"{mute_id}: host=node-3 muted until \S+ \S+ by ann: firmware\n", added)
    assert irregulars(bus, "mutes", "list") == added
    wait_until(lambda: run.metric("mutes") == 1, "a look at the mutes")
    send_alert(bus, "v1")
    send_alert(bus, "v2", host="node-4")
    wait_until(lambda: run.metric('waiting{channel="hook",reason="muted"}') == 1, "a muted one")
    wait_until(lambda: [one["incident"] for one in received.bodies()] == ["v2"], "the other")
    dry = irregulars(bus, "notify", str(run.file), "--dry-run")
    assert re.search(r"^hook: muted until .* \[v1\]$", dry, re.MULTILINE)
    irregulars(bus, "mutes", "remove", mute_id)
    wait_until(lambda: len(received.requests) == 2, "what was muted")
    assert "by ann: firmware" in received.bodies()[1]["muted"]
    assert irregulars(bus, "mutes", "list") == "no mutes\n"
    assert "mute must be one that is kept; got 'm-none'" in irregulars(bus, "mutes", "remove", "m-none", status=2)
    assert run.stop() == 0


def test_a_second_process_takes_over(bus: Bus, start_notify: Callable[..., NotifyRun], received: Receiver) -> None:
    channels = webhook(received.url)
    first = start_notify(channels)
    second = start_notify(channels, stands_by=True)
    wait_until(lambda: "event=notify_started" in second.output(), "the second")
    send_alert(bus, "v1")
    wait_until(lambda: len(received.requests) == 1, "a notice")
    for one in (first, second):
        if "event=loaded" in one.output() and one.metric("active") == 1:
            one.kill()
            break
    send_alert(bus, "v1", 2, "closed")
    wait_until(lambda: len(received.requests) == 2, "the other's notice")
    assert [one["event"] for one in received.bodies()] == ["opened", "resolved"]


def test_a_channel_is_tried_with_a_test_notice(bus: Bus, tmp_path: Path, received: Receiver) -> None:
    file = tmp_path / "notify.toml"
    file.write_text(webhook(received.url))
    assert "hook took the test incident" in irregulars(bus, "notify", str(file), "--test", "hook")
    assert [one["event"] for one in received.bodies()] == ["opened", "resolved"]
    assert irregulars(bus, "notify", str(file), "--check") == f"{file}: 1 channel; nothing is wrong with it\n"
    assert irregulars(bus, "notify", str(file), "--dry-run") == "nothing would be told now\n"
    assert "channel must be one of hook" in irregulars(bus, "notify", str(file), "--test", "pager", status=2)
