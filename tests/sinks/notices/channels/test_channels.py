"""Each channel against a local server that knows the published format."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import os
import signal
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from irregulars.errors import InputError, SinkBusy, SinkRejected
from irregulars.sinks.notices.alertmanager import AlertmanagerChannel
from irregulars.sinks.notices.http_post import HttpOptions, HttpPost
from irregulars.sinks.notices.notice import Channel, NotArrived, Notice, notice_json
from irregulars.sinks.notices.pagerduty import PagerDutyChannel
from irregulars.sinks.notices.slack import SlackBotChannel, SlackWebhookChannel
from irregulars.sinks.notices.webhook import CommandChannel, WebhookChannel, headers_of
from tests.integration.secured_kafka import Authority
from tests.sinks.notices.alerts import alert
from tests.sinks.notices.receiver import Receiver, Reply, Request

SECRET = "swordfish-0123456789abcdef012345"
PAGERDUTY_EVENT: dict[str, Any] = {
    "type": "object", "required": ["routing_key", "event_action", "dedup_key"], "additionalProperties": False,
    "properties": {
        "routing_key": {"type": "string", "minLength": 32, "maxLength": 32},
        "event_action": {"enum": ["trigger", "acknowledge", "resolve"]},
        "dedup_key": {"type": "string", "minLength": 1, "maxLength": 255},
        "client": {"type": "string"}, "client_url": {"type": "string"},
        "links": {"type": "array"}, "images": {"type": "array"},
        "payload": {
            "type": "object", "required": ["summary", "source", "severity"], "additionalProperties": False,
            "properties": {
                "summary": {"type": "string", "minLength": 1, "maxLength": 1024},
                "source": {"type": "string", "minLength": 1},
                "severity": {"enum": ["critical", "error", "warning", "info"]},
                "timestamp": {"type": "string",
                              "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)$"},
                "component": {"type": "string"}, "group": {"type": "string"}, "class": {"type": "string"},
                "custom_details": {"type": "object"},
            },
        },
    },
}  # fmt: skip
SLACK_MESSAGE: dict[str, Any] = {
    "type": "object", "required": ["text", "attachments"],
    "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 4000},
        "attachments": {"type": "array", "maxItems": 20, "items": {
            "type": "object", "additionalProperties": False,
            "properties": {
                "color": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
                "fallback": {"type": "string"}, "footer": {"type": "string"}, "mrkdwn_in": {"type": "array"},
                "fields": {"type": "array", "items": {"required": ["title", "value", "short"]}},
            },
        }},
    },
}  # fmt: skip


def opened(severity: str = "page", **facts: Any) -> Notice:
    return Notice("opened", alert(severity="page", **facts), severity)


def resolved(severity: str = "page", reference: str | None = None) -> Notice:
    return Notice("resolved", alert(revision=3, event="closed", severity="page"), severity, reference=reference)


# --- PagerDuty ------------------------------------------------------------------------------------------------------


def pagerduty_answers(request: Request) -> Reply:
    try:
        jsonschema.validate(request.json(), PAGERDUTY_EVENT)
    except jsonschema.ValidationError as error:
        return Reply(400, json.dumps({"status": "invalid event", "errors": [error.message]}).encode())
    said = {"status": "success", "message": "Event processed", "dedup_key": request.json()["dedup_key"]}
    return Reply(202, json.dumps(said).encode())


def paged(*notices: Callable[[str | None], Notice]) -> list[dict[str, Any]]:
    """Deliver notices, each with the reference that came back for the one before; return the events."""
    with Receiver(pagerduty_answers) as receiver:
        channel, reference = PagerDutyChannel("pager", lambda: SECRET, receiver.url), None
        for make in notices:
            reference = channel.deliver(make(reference))
        channel.close()
    return list(receiver.bodies())


def test_pagerduty_is_triggered_and_resolved_by_one_key() -> None:
    first, last = paged(lambda _: opened(), lambda reference: resolved(reference=reference))
    assert (first["event_action"], last["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == last["dedup_key"] == "llama:1:25:0"
    assert first["payload"]["severity"] == "critical"
    assert first["payload"]["source"] == "node-3"
    assert first["payload"]["component"] == "nic:node-3/mlx5_1"
    assert first["payload"]["custom_details"]["gpu_hours_lost"] == 25.6


def test_a_page_after_a_ticket_is_another_incident_there_since_the_same_one_would_wake_nobody() -> None:
    raised = alert(revision=2, event="raised", severity="page")
    events = paged(
        lambda _: opened("ticket"),
        lambda reference: Notice("updated", raised, "page", reference=reference),
        lambda reference: resolved(reference=reference),
    )
    assert [(one["event_action"], one["dedup_key"]) for one in events] == [
        ("trigger", "llama:1:25:0/ticket"),
        ("trigger", "llama:1:25:0"),
        ("resolve", "llama:1:25:0/ticket"),
        ("resolve", "llama:1:25:0"),
    ]


def test_an_end_without_a_reference_ends_page_and_ticket_and_names_may_be_of_any_length() -> None:
    events = paged(lambda _: resolved("ticket"))
    assert {one["dedup_key"] for one in events} == {"llama:1:25:0", "llama:1:25:0/ticket"}
    assert len(paged(lambda _: opened(verdict_id="v" * 3000, job="j" * 3000))) == 1


# --- Slack ----------------------------------------------------------------------------------------------------------


class SlackServer:
    """Keeps messages by time stamp, as Slack's Web API does."""

    def __init__(self) -> None:
        self.messages: dict[str, Any] = {}
        self._stamps = (f"1800000000.{number:06}" for number in itertools.count(1))

    def __call__(self, request: Request) -> Reply:
        body = request.json()
        jsonschema.validate(body, SLACK_MESSAGE)
        if request.headers.get("Authorization") != f"Bearer {SECRET}":
            return Reply(200, b'{"ok":false,"error":"invalid_auth"}')
        if request.path == "/chat.postMessage":
            stamp = next(self._stamps)
        elif body["ts"] not in self.messages:
            return Reply(200, b'{"ok":false,"error":"message_not_found"}')
        else:
            stamp = body["ts"]
        self.messages[stamp] = body
        return Reply(200, json.dumps({"ok": True, "channel": "C024BE91L", "ts": stamp}).encode())


def test_slack_has_one_message_for_an_incident_and_updates_it_or_posts_one_that_was_deleted_anew() -> None:
    slack = SlackServer()
    with Receiver(slack) as receiver:
        channel = SlackBotChannel("slack", lambda: SECRET, "C024BE91L", receiver.url)
        reference = channel.deliver(opened())
        assert reference == "C024BE91L:1800000000.000001"
        assert channel.deliver(resolved(reference=reference)) == reference
        (message,) = slack.messages.values()
        assert channel.deliver(resolved(reference="C024BE91L:1.000000")) == "C024BE91L:1800000000.000002"
        channel.close()
    assert message["text"].startswith("RESOLVED slow NIC in llama (page, recovered): NIC mlx5_1 on node-3")


@pytest.mark.parametrize(("answer", "error"), [
    (Reply(200, b'{"ok":false,"error":"ratelimited"}'), NotArrived),
    (Reply(200, b'{"ok":false,"error":"invalid_auth"}'), NotArrived),
    (Reply(200, b'{"ok":false,"error":"channel_not_found"}'), SinkRejected),
    (Reply(200, b"<html>"), SinkBusy),
])  # fmt: skip
def test_what_slack_says_in_an_answer_of_status_200_counts(answer: Reply, error: type[Exception]) -> None:
    with Receiver(lambda _: answer) as receiver:
        channel = SlackBotChannel("slack", lambda: SECRET, "C024BE91L", receiver.url)
        with pytest.raises(error):
            channel.deliver(opened())
        channel.close()


def test_a_job_s_name_mentions_nobody_on_slack() -> None:
    with Receiver() as receiver:
        channel = SlackWebhookChannel("slack", lambda: f"{receiver.url}/services/T0/B0/{SECRET}")
        channel.deliver(opened(job="<!channel> *bold* https://evil.example/login"))
        channel.close()
    (body,) = receiver.bodies()
    jsonschema.validate(body, SLACK_MESSAGE)
    assert "<!channel>" not in json.dumps(body)
    assert "&lt;!channel&gt;" in body["text"]
    how = {name: body[name] for name in ("parse", "link_names", "mrkdwn", "unfurl_links", "unfurl_media")}
    assert how == {"parse": "none", **dict.fromkeys(("link_names", "mrkdwn", "unfurl_links", "unfurl_media"), False)}


# --- a webhook ------------------------------------------------------------------------------------------------------


def test_a_webhook_s_request_is_signed_and_carries_the_same_key_for_the_same_notice() -> None:
    with Receiver() as receiver:
        channel = WebhookChannel("hook", lambda: receiver.url, key=lambda: SECRET, now=lambda: 1_800_000_000.0)
        for _ in range(2):
            channel.deliver(opened())
        channel.deliver(resolved())
        channel.close()
    first, again, last = receiver.requests
    assert first.json() == notice_json(opened())
    wanted = hmac.new(SECRET.encode(), b"1800000000." + first.body, hashlib.sha256).hexdigest()
    assert first.headers["Irregulars-Signature"] == f"sha256={wanted}"
    assert first.headers["Idempotency-Key"] == again.headers["Idempotency-Key"] != last.headers["Idempotency-Key"]


# --- over HTTP, whatever the channel --------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[str], Channel]] = {
    "webhook": lambda url: WebhookChannel("c", lambda: f"{url}/{SECRET}", key=lambda: SECRET, is_url_secret=True),
    "slack bot": lambda url: SlackBotChannel("c", lambda: SECRET, "C1", url),
    "slack webhook": lambda url: SlackWebhookChannel("c", lambda: f"{url}/services/{SECRET}"),
    "pagerduty": lambda url: PagerDutyChannel("c", lambda: SECRET, url),
    "alertmanager": lambda url: AlertmanagerChannel("c", url, token=lambda: SECRET),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    ("error", "status"),
    [*((NotArrived, one) for one in (429, 503, 401)), (SinkBusy, 500), (SinkRejected, 400), (SinkRejected, 302)],
)
def test_a_refusal_says_who_and_why_and_shows_no_secret(name: str, status: int, error: type[Exception]) -> None:
    def answer(request: Request) -> Reply:
        headers = (("Retry-After", "7"), ("Location", "http://127.0.0.1:9/"))
        return Reply(status, request.path.encode() + request.body + SECRET.encode(), headers)

    with Receiver(answer) as receiver:
        channel = MAKERS[name](receiver.url)
        with pytest.raises(error) as caught:
            channel.deliver(opened())
        channel.close()
    assert len(receiver.requests) == 1, "no redirect is followed, and nothing is tried twice in one try"
    assert f"status {status}" in str(caught.value)
    assert SECRET not in str(caught.value)
    if isinstance(caught.value, SinkBusy):
        assert caught.value.retry_after_s == (60.0 if status == 401 else 7.0)


@pytest.mark.parametrize("name", MAKERS)
def test_a_notice_that_can_t_be_written_is_refused_before_anything_is_sent(name: str) -> None:
    with Receiver() as receiver:
        channel = MAKERS[name](receiver.url)
        notice = opened()
        with pytest.raises(SinkRejected, match="notice must be one that can be written"):
            channel.deliver(replace(notice, alert={**notice.alert, "suspects": [{"device": "gpu"}]}))
        channel.close()
    assert receiver.requests == []


@pytest.mark.parametrize(("status", "rests"), [(500, False), (502, True), (503, True), (429, True)])
def test_a_channel_rests_where_the_answer_is_not_about_the_notice(status: int, rests: bool) -> None:
    with Receiver(lambda _: Reply(status)) as receiver:
        channel = MAKERS["webhook"](receiver.url)
        with pytest.raises(SinkBusy) as caught:
            channel.deliver(opened())
        channel.close()
    assert (caught.value.retry_after_s > 0) == rests


@pytest.mark.parametrize("name", MAKERS)
def test_nobody_listening_is_no_delivery_and_shows_no_secret(name: str) -> None:
    with Receiver() as receiver:
        url = receiver.url
    channel = MAKERS[name](url)
    with pytest.raises(NotArrived) as caught:
        channel.deliver(opened())
    channel.close()
    assert SECRET not in str(caught.value)
    assert caught.value.retry_after_s > 0, "nothing else is tried meanwhile"
    assert caught.value.__cause__ is None, "urllib3's error quotes the URL"


def test_an_answer_that_does_not_come_in_time_is_no_certain_failure() -> None:
    is_over = threading.Event()

    def late(_: Request) -> Reply:
        is_over.wait(60)
        return Reply()

    with Receiver(late) as receiver:
        channel = WebhookChannel("hook", lambda: receiver.url, HttpOptions(timeout_s=0.1))
        with pytest.raises(SinkBusy, match="ReadTimeoutError") as caught:
            channel.deliver(opened())
        is_over.set()
        channel.close()
    assert not isinstance(caught.value, NotArrived)


@pytest.mark.parametrize("url", ["ftp://host", "http://user:secret@host", "hooks.slack.com", "http://10.0.0.1/x"])
def test_a_secret_goes_nowhere_in_the_clear(url: str) -> None:
    with pytest.raises(InputError, match="url must be") as caught:
        HttpPost(lambda: url, is_url_secret=True)
    assert "secret@" not in str(caught.value)


def test_a_secret_for_this_machine_goes_through_no_proxy_in_the_clear() -> None:
    with Receiver() as proxy, pytest.raises(InputError, match="except to this machine without a proxy"):
        WebhookChannel("hook", lambda: "http://localhost:9/x", HttpOptions(proxy=proxy.url), token=lambda: SECRET)


def test_a_certificate_is_verified_and_an_authority_of_one_s_own_can_be_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority.issue("receiver"))
    with Receiver(tls=tls) as receiver:
        trusting = WebhookChannel("hook", lambda: receiver.url, HttpOptions(ca_file=authority.certificate))
        trusting.deliver(opened())
        trusting.close()
        doubting = WebhookChannel("hook", lambda: receiver.url)
        with pytest.raises(NotArrived, match=r"a certificate that is not trusted: .*self.signed|unable to get local"):
            doubting.deliver(opened())
        doubting.close()
    assert len(receiver.requests) == 1
    (tmp_path / "ca.pem").write_text("nothing")
    for path, reason in ((tmp_path / "none.pem", "readable"), (tmp_path / "ca.pem", "certificates")):
        with pytest.raises(InputError, match=reason):
            HttpPost(lambda: "https://host", HttpOptions(ca_file=path))


# --- Alertmanager's labels ------------------------------------------------------------------------------------------


def test_labels_of_an_alert_stay_while_everything_about_it_changes() -> None:
    channel = AlertmanagerChannel("am", "http://am", labels={"cluster": "c1"}, now=lambda: 1_800_000_000.0)
    first, reference = channel.alerts(Notice("opened", alert(), "ticket"))
    changed = alert(revision=2, event="changed", host="node-4", lost_s=900.0)
    later, same = channel.alerts(Notice("updated", changed, "ticket", reference=reference))
    assert [one["labels"] for one in later] == [one["labels"] for one in first]
    assert same == reference
    assert later[0]["annotations"]["device"] == "nic:node-4/mlx5_1"
    assert later[0]["startsAt"] == first[0]["startsAt"]


def test_where_a_page_follows_a_ticket_the_ticket_s_alert_ends_and_a_page_s_begins() -> None:
    clock = iter((1_800_000_000.0, 1_800_000_060.0, 1_800_000_120.0))
    channel = AlertmanagerChannel("am", "http://am", now=lambda: next(clock))
    _, reference = channel.alerts(Notice("opened", alert(), "ticket"))
    raised = Notice("updated", alert(revision=2, event="raised", severity="page"), "page", reference=reference)
    (old, new), reference = channel.alerts(raised)
    assert (old["labels"]["severity"], old["endsAt"]) == ("ticket", "2027-01-15T08:01:00.000+00:00")
    assert (new["labels"]["severity"], new["endsAt"]) == ("page", "2027-01-15T08:11:00.000+00:00")
    (end,), _ = channel.alerts(resolved(reference=reference))
    assert (end["labels"], end["endsAt"]) == (new["labels"], "2027-01-15T08:02:00.000+00:00")


@pytest.mark.parametrize("label", ["severity", "with-dash", ""])
def test_a_label_must_be_one_of_its_own(label: str) -> None:
    with pytest.raises(InputError, match="label must be"):
        AlertmanagerChannel("am", "http://am", labels={label: "x"})


# --- CloudEvents, a command -----------------------------------------------------------------------------------------


def test_the_headers_are_those_of_the_kafka_binding_in_binary_mode() -> None:
    headers = headers_of(opened(), "irregulars/c1")
    assert headers.pop("ce_id") == opened().idempotency_key
    assert headers == {
        "ce_specversion": "1.0", "ce_source": "irregulars/c1", "ce_type": "irregulars.incident.opened",
        "ce_subject": "llama:1:25:0", "ce_time": "2027-01-15T08:00:00.000+00:00", "content-type": "application/json",
    }  # fmt: skip


def script(folder: Path, text: str) -> str:
    path = folder / "command"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_command_gets_the_notice_and_its_first_line_comes_back_with_the_next(tmp_path: Path) -> None:
    text = (
        "import json, os, sys\nsaid = json.load(sys.stdin)\nprint(said['event'] + os.environ['IRREGULARS_REFERENCE'])"
    )
    channel = CommandChannel("c", [script(tmp_path, text), "$(touch no-shell); *"])
    reference = channel.deliver(opened())
    assert reference == "opened"
    assert channel.deliver(resolved(reference=reference)) == "resolvedopened"


@pytest.mark.parametrize(("status", "error"), [(1, SinkBusy), (75, SinkBusy), (65, SinkRejected)])
def test_a_command_s_status_says_whether_to_try_again(tmp_path: Path, status: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{status}"):
        CommandChannel("c", [script(tmp_path, f"raise SystemExit({status})")]).deliver(opened())
    with pytest.raises(NotArrived, match="No such file"):
        CommandChannel("c", [str(tmp_path / "none")]).deliver(opened())


def test_a_command_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    # A shell has started both long before the limit; two Pythons have not on a busy machine.
    text = f"sleep 600 & echo $! >{pid_file}; wait"
    with pytest.raises(SinkBusy, match="within 3 s"):
        CommandChannel("c", ["/bin/sh", "-c", text], timeout_s=3.0).deliver(opened())
    pid, deadline_s = int(pid_file.read_text()), time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not is_running(pid)


def test_a_child_that_has_left_the_command_s_group_does_not_hold_the_channel(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    # It keeps the command's output open, and no signal to the group reaches it.
    text = f"setsid sleep 60 & echo $! >{pid_file}"
    began_s = time.monotonic()
    try:
        with pytest.raises(SinkBusy, match="within 3 s"):
            CommandChannel("c", ["/bin/sh", "-c", text], timeout_s=3.0).deliver(opened())
        assert time.monotonic() - began_s < 30
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
