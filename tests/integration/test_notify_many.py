"""`irregulars notify` among alerts that it can't use, that it does not know, and among a thousand at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from irregulars.sinks.notices.policy import decode_delivery
from tests.integration.notify_runs import NotifyRun, channel, pagerduty, send_alert, webhook
from tests.integration.worker_runs import Bus, make_topics, wait_until
from tests.sinks.notices.alerts import alert, alert_bytes
from tests.sinks.notices.receiver import Receiver, Reply

pytestmark = pytest.mark.integration

SOON_S = 60.0
"""How long an ordinary page may take to all channels on a busy machine, beside whatever else there is."""


class Everybody:
    """A notify with six channels, and what each of them was sent, as text."""

    def __init__(self, bus: Bus, folder: Path, stack: ExitStack, **settings: Any) -> None:
        self._bus, self._said = bus, folder / "said.json"
        self._events = f"{bus.topics.prefix}cloud-events"
        make_topics(bus.bootstrap, self._events)
        self.http = {name: stack.enter_context(Receiver()) for name in ("hook", "pager", "slack", "am")}
        self.http["slack"].answer = lambda _: Reply(body=b'{"ok": true, "channel": "C1", "ts": "1.5"}')
        urls = {name: one.url for name, one in self.http.items()}
        channels = (
            webhook(urls["hook"]),
            pagerduty(urls["pager"], folder),  # whose key is the other's token too
            channel("slack", "slack", api_url=urls["slack"], channel="C1", token_file=folder / "key"),
            channel("alertmanager", "am", url=urls["am"], expires_s=3600),
            channel("cloudevents", "events", topic=self._events),
            channel("command", "script", argv=["tee", "-a", str(self._said)]),
        )
        self.run = NotifyRun(bus, folder, "".join(channels), **settings)
        stack.callback(self.run.close)
        wait_until(self.run.is_loaded, "start")

    def sent(self) -> Mapping[str, list[str]]:
        said = self._said.read_text().splitlines() if self._said.exists() else []
        events = [(one.value() or b"").decode() for one in self._bus.reader.read_tail(self._events, 0)]
        http = {name: [r.body.decode() for r in one.requests] for name, one in self.http.items()}
        return {**http, "events": events, "script": said}

    def know(self, *words: str) -> bool:
        """Whether each channel was sent something that has all of these words."""
        assert self.run.process.poll() is None, self.run.output()[-3000:]
        return all(any(all(word in one for word in words) for one in sent) for sent in self.sent().values())


@pytest.fixture
def everybody(bus: Bus, tmp_path: Path) -> Iterator[Callable[..., Everybody]]:
    with ExitStack() as stack:
        yield lambda **settings: Everybody(bus, tmp_path, stack, **settings)


def within(seconds: float, condition: Callable[[], bool], what: str) -> float:
    """Wait until it holds, and return how long it took, s; fails after `seconds`."""
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() < began_s + seconds, f"{what} must come within {seconds:g} s"
        time.sleep(0.1)
    return time.monotonic() - began_s


SUSPECT = {"device": "dpu", "rank": 3, "ranks": [3], "probability": 0.9, "peer": None, "host": "node-7", "gpu": None,
           "nic": None, "switch": None}  # fmt: skip
UNKNOWN: tuple[dict[str, Any], ...] = (
    {"severity": "critical"}, {"kind": "slow_disk"}, {"suspects": [SUSPECT]}, {"state": "waning"}, {"event": "seen"},
    {"close_reason": "sold", "state": "waning"}, {"lost_s": None, "delta": None}, {"colour": "red"},
)  # fmt: skip
"""What a newer release may say."""

UNUSABLE: tuple[dict[str, Any], ...] = (
    {"lost_s": "x"}, {"lost_s": float("nan")}, {"lost_s": 1e308}, {"delta": float("inf")}, {"revision": "x"},
    {"revision": -1}, {"severity": 3}, {"severity": ["page"]}, {"gpu_hours_lost": "x"}, {"evidence": None},
    {"next_step": 5}, {"time_ns": "now"}, {"iterations": [1]}, {"suspects": [{"device": "nic"}]},
    {"suspects": [SUSPECT | {"probability": "sure"}]}, {"suspects": [SUSPECT | {"host": 5}]}, {"world_size": 1.5},
    {"recovers_ratio": 1e308}, {"verdict_id": "v" * 400_000}, {"job": 7}, {"close_reason": {}},
    {"communicator": []}, {"attempt": True},
)  # fmt: skip


def test_no_alert_keeps_an_ordinary_page_from_anybody(everybody: Callable[..., Everybody], bus: Bus) -> None:
    all_of = everybody()
    for number, change in enumerate(UNUSABLE):
        bus.send("alerts", b"x", json.dumps({**alert(f"bad-{number}", severity="page"), **change}).encode())
    send_alert(bus, "ordinary:1", severity="page")
    within(SOON_S, lambda: all_of.know("ordinary:1"), "the page")
    wait_until(lambda: len(bus.read("deadletter")) == len(UNUSABLE), "dead letters")
    assert all_of.run.metric("unusable_alerts_total") == len(UNUSABLE)
    for number, change in enumerate(UNKNOWN):
        bus.send("alerts", b"x", json.dumps({**alert(f"new-{number}:1", severity="page"), **change}).encode())
    send_alert(bus, "last:1", severity="page")
    # All at once: the notice that those after the fifth incident share names five
    for one in (*(f"new-{number}:1" for number in range(len(UNKNOWN))), "last:1"):
        within(SOON_S, lambda wanted=one: all_of.know(wanted), one)  # type: ignore[misc]
    assert len(bus.read("deadletter")) == len(UNUSABLE)
    assert all_of.run.stop() == 0
    assert "Traceback" not in all_of.run.output()


def test_a_thousand_alerts_are_a_few_notices_and_a_page(everybody: Callable[..., Everybody], bus: Bus) -> None:
    all_of = everybody()
    for number in range(1000):
        value = alert_bytes(f"storm-{number}:1", job=f"job-{number}", host=f"node-{number}", severity="page")
        bus.send("alerts", b"x", value)
    send_alert(bus, "important:1", job="important", host="node-x", severity="page")
    took_s = within(SOON_S, lambda: all_of.know("important:1"), "the important page")
    within(SOON_S, lambda: all_of.know("996 incidents", "all slow NIC", "switch leaf-0"), "what they share")
    for number in range(1000):
        value = alert_bytes(f"storm-{number}:1", 2, "closed", job=f"job-{number}", host=f"node-{number}",
                            severity="page")  # fmt: skip
        bus.send("alerts", b"x", value)
    send_alert(bus, "important:1", 2, "closed", job="important", host="node-x", severity="page")
    wait_until(lambda: is_over(bus), "all ends")
    sent = all_of.sent()
    print(f"the important page took {took_s:.1f} s; notices: { {name: len(one) for name, one in sent.items()} }")
    assert {name: len(one) <= 20 for name, one in sent.items()} == dict.fromkeys(sent, True), list(map(len, sent))
    require_same_keys(all_of)
    assert all_of.run.stop() == 0


def is_over(bus: Bus) -> bool:
    """Whether six channels were told of the end of each of 1,001 incidents."""
    newest = {message.key(): decode_delivery(message.value()) for message in bus.read("notices")}
    own = [one for one in newest.values() if one.verdict_id.endswith(":1")]
    return len(own) == 6 * 1001 and all(one.state == "closed" for one in newest.values())


def require_same_keys(all_of: Everybody) -> None:
    """Each key that was opened is closed by the same key."""
    pager = [(one["event_action"], one["dedup_key"]) for one in all_of.http["pager"].bodies()]
    triggered, resolved = ({key for action, key in pager if action == wanted} for wanted in ("trigger", "resolve"))
    assert triggered == resolved
    firing: dict[str, bool] = {}
    for body in all_of.http["am"].bodies():
        for one in body:
            firing[json.dumps(one["labels"], sort_keys=True)] = one["endsAt"] > one["startsAt"] and is_later(one)
    assert not any(firing.values()), firing


def is_later(one: Mapping[str, Any]) -> bool:
    return "summary" in one["annotations"] and not one["annotations"]["summary"].startswith("RESOLVED")
