"""Notify's file: what it may say, what is refused in a line, and that secrets stand in none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from irregulars.errors import InputError
from irregulars.kafka.topics import TopicSettings
from irregulars.sinks.notices.notice import Notice
from irregulars.sinks.notices.policy import Rules
from irregulars.sinks.notices.settings import (
    KINDS,
    ChannelEntry,
    NotifySettings,
    open_channel,
    read_notify_file,
    rules_of,
)
from tests.infra.docs.made_parts import DOCS

SETTINGS = NotifySettings(bootstrap="127.0.0.1:1", topics=TopicSettings())
SECRET = "swordfish-0123456789abcdef012345"


class StrangersChannel:
    """A channel of somebody else's."""

    def __init__(self, name: str, place: str) -> None:
        self.name, self.place = name, place
        self.repeat_s = 60.0

    def deliver(self, notice: Notice) -> str | None:
        return f"{self.place} {notice.incident}"

    def close(self) -> None:
        """Nothing is held."""


def entries(tmp_path: Path, text: str) -> tuple[ChannelEntry, ...]:
    file = tmp_path / "notify.toml"
    file.write_text(text)
    return read_notify_file(file)


def open_all(tmp_path: Path, text: str) -> None:
    for entry in entries(tmp_path, text):
        open_channel(entry, SETTINGS)


def channel(tmp_path: Path, text: str) -> Any:
    (entry,) = entries(tmp_path, f"[[channel]]\n{text}")
    return open_channel(entry, SETTINGS)


GOOD = {
    "actions": "", "alertmanager": 'url = "http://am:9093"\nlabels = {cluster = "c1"}',
    "pagerduty": 'routing_key_file = "{secret}"', "slack": 'token_file = "{secret}"\nchannel = "C024BE91L"',
    "webhook": 'url = "https://host/path"\nkey_file = "{secret}"', "cloudevents": 'topic = "events"',
    "command": 'argv = ["/bin/true"]',
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_opens_with_what_it_needs_and_nothing_is_sent(tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    opened = channel(tmp_path, f'kind = "{kind}"\nname = "c"\n' + GOOD[kind].replace("{secret}", str(secret)))
    assert opened.name == "c"
    assert SECRET not in repr(opened)
    opened.close()
    opened.close()


def test_a_secret_may_stand_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'kind = "pagerduty"\nname = "c"\nrouting_key_env = "PAGER_KEY"'
    with pytest.raises(InputError, match="variable PAGER_KEY must hold one line; got none"):
        channel(tmp_path, text)
    monkeypatch.setenv("PAGER_KEY", SECRET)
    channel(tmp_path, text).close()


def test_a_channel_of_somebody_else_s_is_found_by_its_path(tmp_path: Path) -> None:
    path = "tests.sinks.notices.test_settings:StrangersChannel"
    (entry,) = entries(tmp_path, f'[[channel]]\nkind = "{path}"\nname = "theirs"\nplace = "room 5"')
    opened = open_channel(entry, SETTINGS)
    assert (opened.name, getattr(opened, "place", None)) == ("theirs", "room 5")
    assert rules_of(entry, SETTINGS, opened).repeat_s == 60.0


def test_what_a_channel_does_not_say_the_settings_say(tmp_path: Path) -> None:
    text = '[[channel]]\nkind = "command"\nargv = ["true"]\nname = "a"\n' + (
        '[[channel]]\nkind = "command"\nargv = ["true"]\nname = "b"\nleast_severity = "page"\n'
        'least_gpu_hours = 5\njobs = ["llama*"]\n'
    )
    settings = replace(SETTINGS, rules=Rules(hold_s=30.0, least_gpu_hours=1.0, jobs=("gpt*",)))
    first, second = (rules_of(one, settings, open_channel(one, settings)) for one in entries(tmp_path, text))
    assert first == Rules(30.0, "ticket", 1.0, ("gpt*",))
    assert second == Rules(30.0, "page", 5.0, ("llama*",))


@pytest.mark.parametrize(("text", "reason"), [
    ("", r"channels must be an array of tables, \[\[channel\]\], with one at least"),
    ("[channel]\nkind = 'command'", "channels must be an array"),
    ("[[channel]]\nkind = 'command'", "key name must be there"),
    ("[[channel]]\nname = 'a'", "key kind must be there"),
    ("[[channel]]\nkind = 'command'\nname = 'a/b'\nargv = ['x']", "name must be a name of a-z"),
    ("[[channel]]\nkind = 'pigeon'\nname = 'a'", "kind must be one of actions, alertmanager, .*; got 'pigeon'"),
    ("[[channel]]\nkind = 'command'\nname = 'a'\nargs = ['x']", r"did you mean 'argv'|args"),
    ("[[channel]]\nkind = 'command'\nname = 'a'\nargv = []", "argv must be"),
    ("[[channel]]\nkind = 'command'\nname = 'a'\nargv = 'rm -rf'", "argv must be"),
    ("[[channel]]\nkind = 'webhook'\nname = 'a'", "one of url, url_file and url_env must be given"),
    ("[[channel]]\nkind = 'webhook'\nname = 'a'\nurl = 'http://me:pw@h'", "url must be"),
    ("[[channel]]\nkind = 'webhook'\nname = 'a'\nurl_file = '/none'", "url_file must be a readable file"),
    ("[[channel]]\nkind = 'slack'\nname = 'a'\nchannel = 'C1'", "a token and a channel, or the URL"),
    ("[[channel]]\nkind = 'pagerduty'\nname = 'a'", "one of routing_key_file and routing_key_env must be given"),
    ("[[channel]]\nkind = 'pagerduty'\nname = 'a'\nrouting_key = 'x'", "routing_key"),
    ("[[channel]]\nkind = 'cloudevents'\nname = 'a'\ntopic = 'irregulars.alerts'", "topic must be none of ours"),
    ("[[channel]]\nkind = 'none.such:Thing'\nname = 'a'", "kind must be one that can be imported"),
    ("[[channel]]\nkind = 'pathlib:Path'\nname = 'a'", "kind must be one that can be imported"),
    ("[[channel]]\nkind='command'\nname='a'\nargv=['x']\n[[channel]]\nkind='command'\nname='a'\nargv=['x']",
     "name must be another than those before; got 'a'"),
])  # fmt: skip
def test_what_can_not_be_used_is_refused_in_a_line_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        open_all(tmp_path, text)
    assert "notify.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_secret_that_goes_over_plain_http_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("http://hooks.example/T1/B1/x")
    with pytest.raises(InputError, match="must be https where a secret is sent") as caught:
        channel(tmp_path, f'kind = "slack"\nname = "s"\nwebhook_url_file = "{tmp_path / "secret"}"')
    assert "/T1/" not in str(caught.value)


def test_the_page_lists_every_option_of_every_kind() -> None:
    page = (DOCS / "notifying.md").read_text()
    for kind in KINDS:
        assert f"<!-- made: options of {kind} -->" in page, kind
    assert set(re.findall(r"^### `([a-z]+)`$", page, re.MULTILINE)) == set(KINDS)
