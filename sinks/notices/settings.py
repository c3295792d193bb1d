"""Settings of ``irregulars notify``: the process, and the channels of its TOML file.

Keys of the file at the top level are general settings, as in ``irregulars.toml``. Each table ``[[channel]]`` is a
channel: the keys of `ChannelTable`, and the options of its kind. A new kind is a dataclass of its options and a
function that opens it; both are in `KINDS`. A kind ``package.module:Name`` is a plug-in: it is called with ``name``
and the options, and returns a channel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from irregulars.errors import InputError
from irregulars.kafka.topics import TOPICS, TopicSettings
from irregulars.private_files import read_secret
from irregulars.sinks.notices.http_post import HttpOptions, Secret, TimeLimit, Url
from irregulars.sinks.notices.notice import Channel
from irregulars.sinks.notices.policy import Rules
from irregulars.toml_tables import key, open_plugin, read_table, read_toml
from irregulars.validation import NotNegative, Text, one_of, shown

OWN: Final = ("channel",)  # keys of the file that are no general settings

ChannelName = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9_-]{0,63}\Z", description="a name of a-z 0-9 _ -")]
Variable = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]*\Z", description="the name of a variable")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """Settings of the process, and defaults of its channels."""

    # bootstrap, topics, security: where the topics are, and librdkafka's settings of protocol and credentials
    bootstrap: str
    topics: TopicSettings
    security: Mapping[str, Any] = field(default_factory=dict)
    give_up_s: float = 3600.0  # seconds from the first failure after which a notice goes to the dead letters
    listen: str = "off"  # ``host:port`` of the pages, or ``off``
    session_s: float = 6.0  # seconds without a sign of life after which another process of the group takes over
    stop_s: float = 5.0  # seconds for which the end waits for tries that are under way
    rules: Rules = field(default_factory=Rules)  # of a channel that has none of its own

    @property
    def group(self) -> str:
        """Consumer group: one of its processes has the alerts, the others stand by."""
        return f"{self.topics.prefix}notify"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTable:
    """Keys of every ``[[channel]]``."""

    kind: Text = key(MISSING, "What it is: one of the kinds below, or package.module:Name of somebody else's")
    name: ChannelName = key(
        MISSING, "Its name in metrics, the log and the topic `notices`; another name is another channel"
    )
    least_severity: Annotated[str, one_of("ticket", "page")] = key("ticket", "It is not told of what is less urgent")
    least_gpu_hours: NotNegative | None = key(None, "As `notify_least_gpu_hours`, which is the default")
    jobs: tuple[str, ...] | None = key(None, "Jobs of which it is told, shell patterns; default: `notify_jobs`")


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """One ``[[channel]]``, with the options of its kind, and its place for errors."""

    table: ChannelTable
    options: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


def read_notify_file(path: Path) -> tuple[ChannelEntry, ...]:
    """Read the channels of a file.

    Raises `InputError` if the file can't be read, has no channel, or a key is missing, of the wrong type, or given
    twice.
    """
    found = read_toml(path, "notify's file").get("channel", [])
    if not isinstance(found, list) or not found:
        raise InputError(f"channels must be an array of tables, [[channel]], with one at least; got none ({path})")
    entries: dict[str, ChannelEntry] = {}
    own = {one.name for one in fields(ChannelTable)}
    for place, one in enumerate(found):
        where = f"{path}, channel {place + 1}"
        if not isinstance(one, dict):
            raise InputError(f"channel must be a table, [[channel]]; got {shown(one)} ({where})")
        table = read_table({name: value for name, value in one.items() if name in own}, ChannelTable, where)
        if table.name in entries:
            raise InputError(f"name must be another than those before; got {table.name!r} ({where})")
        options = {name: value for name, value in one.items() if name not in own}
        entries[table.name] = ChannelEntry(table, options, where)
    return tuple(entries.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions(HttpOptions):
    """Any receiver of JSON."""

    url: Url | None = key(None, "Where to post; or, where the URL is a secret:")
    url_file: Path | None = key(None, "the file that holds it,")
    url_env: Variable | None = key(None, "or the variable of the environment")
    token_file: Path | None = key(None, "File with a bearer token")
    token_env: Variable | None = key(None, "Or the variable that holds it")
    key_file: Path | None = key(None, "File with the key of the signature")
    key_env: Variable | None = key(None, "Or the variable that holds it")


def _open_webhook(name: str, options: WebhookOptions, where: str, _: NotifySettings) -> Channel:
    from irregulars.sinks.notices.webhook import WebhookChannel

    secret = partial(_secret, options, where)
    url, hidden_url = options.url, secret("url")
    if (url is None) == (hidden_url is None):
        raise InputError(f"one of url, url_file and url_env must be given; got both or none ({where})")
    return WebhookChannel(name, hidden_url or partial(str, url), options, secret("token"), secret("key"),
                          is_url_secret=hidden_url is not None)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerOptions(HttpOptions):
    """Prometheus's Alertmanager; several that form a cluster are several channels."""

    url: Url = key(MISSING, "Its address, with the path of its `--web.route-prefix` where it has one")
    token_file: Path | None = key(None, "File with a bearer token")
    token_env: Variable | None = key(None, "Or the variable that holds it")
    labels: Mapping[str, str] = key((), "Labels of each alert beside our own: cluster, team, …")
    expires_s: Annotated[float, Meta(ge=30, le=86_400)] = key(
        600.0, "Seconds after which an alert ends that is not told again"
    )


def _open_alertmanager(name: str, options: AlertmanagerOptions, where: str, _: NotifySettings) -> Channel:
    from irregulars.sinks.notices.alertmanager import AlertmanagerChannel

    return AlertmanagerChannel(name, options.url, options, _secret(options, where, "token"),
                               dict(options.labels), options.expires_s)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerDutyOptions(HttpOptions):
    """PagerDuty's Events API v2."""

    routing_key_file: Path | None = key(None, "File with the integration key of a service; or")
    routing_key_env: Variable | None = key(None, "the variable that holds it. One must be given")
    url: Url = key(
        "https://events.pagerduty.com/v2/enqueue", "In Europe: `https://events.eu.pagerduty.com/v2/enqueue`"
    )


def _open_pagerduty(name: str, options: PagerDutyOptions, where: str, _: NotifySettings) -> Channel:
    from irregulars.sinks.notices.pagerduty import PagerDutyChannel

    key_of = _secret(options, where, "routing_key")
    if key_of is None:
        raise InputError(f"one of routing_key_file and routing_key_env must be given; got none ({where})")
    return PagerDutyChannel(name, key_of, options.url, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackOptions(HttpOptions):
    """Slack, as a bot (one message, updated) or by an incoming webhook (a message each)."""

    channel: Text | None = key(None, "With a token: id of the channel")
    token_file: Path | None = key(None, "File with the bot's token (scope `chat:write`)")
    token_env: Variable | None = key(None, "Or the variable that holds it")
    webhook_url_file: Path | None = key(None, "Instead: file with the URL of an incoming webhook")
    webhook_url_env: Variable | None = key(None, "Or the variable that holds it")
    api_url: Url = key("https://slack.com/api", "Where the Web API is")


def _open_slack(name: str, options: SlackOptions, where: str, _: NotifySettings) -> Channel:
    from irregulars.sinks.notices.slack import SlackBotChannel, SlackWebhookChannel

    token, url = (_secret(options, where, one) for one in ("token", "webhook_url"))
    if (token is None) == (url is None) or (token is None) != (options.channel is None):
        rule = "a token and a channel, or the URL of an incoming webhook, must be given"
        raise InputError(f"{rule}; got another combination ({where})")
    if token is not None and options.channel is not None:
        return SlackBotChannel(name, token, options.channel, options.api_url, options)
    assert url is not None
    return SlackWebhookChannel(name, url, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEventsOptions:
    """CloudEvents on a topic of Kafka, in binary mode."""

    topic: Text = key(MISSING, "Full name of the topic, which must exist; none of ours")
    source: Text = key("irregulars", "`ce_source`: who sends them")
    bootstrap: Text | None = key(None, "Other brokers than `kafka_bootstrap`; who we are is the same")
    timeout_s: TimeLimit = key(30.0, "Seconds for the broker's acknowledgement")


def _open_cloudevents(name: str, options: CloudEventsOptions, where: str, settings: NotifySettings) -> Channel:
    from irregulars.kafka.broker import client_config
    from irregulars.kafka.lasting_producer import LastingProducer
    from irregulars.sinks.notices.webhook import CloudEventsChannel

    if options.topic in {settings.topics.name(one) for one in TOPICS}:
        raise InputError(f"topic must be none of ours; got {options.topic!r} ({where}, key topic)")
    config = client_config(options.bootstrap or settings.bootstrap, settings.security)
    config |= {"message.timeout.ms": int(options.timeout_s * 1000), "allow.auto.create.topics": False}
    return CloudEventsChannel(name, options.topic, LastingProducer(config), options.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """A program of this machine: the notice on its standard input."""

    argv: Annotated[tuple[Text, ...], Meta(min_length=1)] = key(MISSING, "Program and arguments; no shell reads them")
    timeout_s: TimeLimit = key(30.0, "Seconds after which it, and its process group, is killed")


def _open_command(name: str, options: CommandOptions, _where: str, _: NotifySettings) -> Channel:
    from irregulars.sinks.notices.webhook import CommandChannel

    return CommandChannel(name, options.argv, options.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsOptions:
    """The topic ``actions``: what orchestrators may do."""

    timeout_s: TimeLimit = key(30.0, "Seconds for the broker's acknowledgement")


def _open_actions(name: str, options: ActionsOptions, _where: str, settings: NotifySettings) -> Channel:
    from irregulars.kafka.broker import client_config
    from irregulars.sinks.notices.actions.actions import ActionsChannel

    config = client_config(settings.bootstrap, settings.security)
    return ActionsChannel(name, settings.topics.name("actions"), config, options.timeout_s)


# Each imports its channel itself: a process loads the clients of those channels alone that its file names.
Open = Callable[[str, Any, str, NotifySettings], Channel]
KINDS: Final[Mapping[str, tuple[type, Open]]] = {
    "actions": (ActionsOptions, _open_actions), "alertmanager": (AlertmanagerOptions, _open_alertmanager),
    "pagerduty": (PagerDutyOptions, _open_pagerduty), "slack": (SlackOptions, _open_slack),
    "webhook": (WebhookOptions, _open_webhook), "cloudevents": (CloudEventsOptions, _open_cloudevents),
    "command": (CommandOptions, _open_command),
}  # fmt: skip


def open_channel(entry: ChannelEntry, settings: NotifySettings) -> Channel:
    """Open one channel of notify's file; nothing is sent.

    Raises `InputError` if the kind is unknown, its options are not those that it takes, or a secret can't be read;
    `PluginError` if a plug-in can't be imported, or does not take the options.
    """
    kind, name = entry.table.kind, entry.table.name
    if kind in KINDS:
        of_kind, open_it = KINDS[kind]
        read: Any = read_table(dict(entry.options), of_kind, entry.where)
        try:
            return open_it(name, read, entry.where, settings)
        except InputError as error:
            raise InputError(str(error) if entry.where in str(error) else f"{error} ({entry.where})") from error
    if ":" in kind:
        options = {"name": name, **entry.options}
        channel: Channel = open_plugin(kind, options, "channel", ("name", "deliver", "close"), entry.where)
        return channel
    rule = f"one of {', '.join(KINDS)}, or package.module:Name"
    raise InputError(f"kind must be {rule}; got {kind!r} ({entry.where}, key kind)")


def rules_of(entry: ChannelEntry, settings: NotifySettings, channel: Channel) -> Rules:
    """Return which incidents a channel is notified of; the last three rules are the channel's own."""
    table, usual = entry.table, settings.rules
    return replace(
        usual,
        least_severity=table.least_severity,
        least_gpu_hours=usual.least_gpu_hours if table.least_gpu_hours is None else table.least_gpu_hours,
        jobs=usual.jobs if table.jobs is None else table.jobs,
        repeat_s=getattr(channel, "repeat_s", None),
        gathers=getattr(channel, "gathers", True),
        withdraws=getattr(channel, "withdraws", False),
    )


def _secret(options: object, where: str, name: str) -> Secret | None:
    """Return how a secret is read, from the file or the variable that the options name; None: they name none."""
    path, variable = getattr(options, f"{name}_file"), getattr(options, f"{name}_env")
    if path is not None and variable is not None:
        raise InputError(f"one of {name}_file and {name}_env must be given; got both ({where})")
    if path is None and variable is None:
        return None
    read = partial(_of_environment, variable, where) if path is None else partial(read_secret, path, f"{name}_file")
    read()  # a missing secret shows at once, not with the first page
    return read


def _of_environment(variable: str, where: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value or "\n" in value:
        raise InputError(f"variable {variable} must hold one line; got none ({where})")
    return value
