"""Settings: one frozen dataclass, read once at the start and passed down.

Sources, each stronger than the one before: defaults, a TOML file, the environment (``IRREGULARS_…``), flags. A
setting has one name in all of them: ``delta = 1.2`` in the file, ``IRREGULARS_DELTA=1.2``, ``--set delta=1.2``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from msgspec import Meta

from irregulars.errors import InputError
from irregulars.kafka.security import MECHANISMS, KafkaSecurity
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.kinds import REPORT_KINDS
from irregulars.messages.xids import CLASSES
from irregulars.private_files import read_secret
from irregulars.settings import JudgeSettings
from irregulars.sinks.migrate import LONGEST_DAYS
from irregulars.streams.worker_settings import WorkerSettings
from irregulars.toml_tables import read_toml
from irregulars.validation import (
    MAX_SECONDS,
    NotNegative,
    Positive,
    PositiveSeconds,
    Seconds,
    Share,
    checked,
    describe,
    one_of,
    require_known,
)

PREFIX: Final = "IRREGULARS_"
DEFAULT_FILE: Final = Path("irregulars.toml")
CONFIG_VARIABLE: Final = "IRREGULARS_CONFIG"
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
SEVERITIES: Final = ("note", "ticket", "page")


def _matching(pattern: str, description: str) -> Meta:
    return Meta(pattern=rf"\A(?:{pattern})\Z", description=description)


Servers = Annotated[str, _matching(r"[^\s,]+:\d+(,[^\s,]+:\d+)*", "host:port, several with commas between")]
Url = Annotated[str, _matching(r"https?://[^\s/@]+(/\S*)?", "http:// or https:// and a host, without credentials")]
TopicPrefix = Annotated[str, _matching(r"[A-Za-z0-9._-]{0,100}", "at most 100 of the signs A-Z a-z 0-9 . _ -")]
Name = Annotated[str, _matching(r"[A-Za-z_][A-Za-z0-9_]*", "a name: letters, digits and _, no digit first")]
Listen = Annotated[str, _matching(r"off|[^\s/@]+:\d{1,5}", "host:port, or off")]
HostPort = Annotated[str, _matching(r"[^\s/@]+:\d{1,5}", "host:port")]
AtLeastOne = Annotated[int, Meta(ge=1)]
MebiBytes = Annotated[int, Meta(ge=0, le=1 << 20)]
Days = Annotated[int, Meta(ge=1, le=LONGEST_DAYS)]

_OPENING: Final = [one for one in REPORT_KINDS if one != "link_up"]
_EVENT: Final = rf"({'|'.join(_OPENING)})(:\d+)?|xid:({'|'.join(CLASSES)})"
EventName = Annotated[str, _matching(_EVENT, f"one of {' '.join(_OPENING)}, xid:79 or xid:memory, of that class")]


# The parts' own values: no default stands twice.
_KAFKA: Final = KafkaSecurity()
_TOPICS: Final = TopicSettings()
_JUDGE: Final = JudgeSettings()
_WORKER: Final = WorkerSettings("")


def _setting(default: Any, about: str, *, is_secret: bool = False) -> Any:
    metadata = {"about": about, "is_secret": is_secret}
    return field(default=default, repr=not is_secret, metadata=MappingProxyType(metadata))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that can be set; ``infra/docs/settings.md`` lists names, defaults and meanings, made from this class.

    Raises `InputError` if a value breaks its rule.
    """

    kafka_bootstrap: Servers = _setting("127.0.0.1:9092", "Kafka brokers to ask first")
    kafka_user: str | None = _setting(None, "SASL user, or client id of kafka_token_url")
    kafka_password: str | None = _setting(None, "Its password or secret", is_secret=True)
    kafka_password_file: Path | None = _setting(None, "The file that holds it, instead")
    kafka_mechanism: Annotated[str, one_of(*MECHANISMS)] = _setting(_KAFKA.mechanism, "SASL mechanism")
    kafka_tls: bool = _setting(False, "TLS to the brokers")
    kafka_ca_file: Path | None = _setting(None, "Certificate authority of the brokers (PEM); else the system's")
    kafka_cert_file: Path | None = _setting(None, "Our own certificate for mutual TLS (PEM)")
    kafka_key_file: Path | None = _setting(None, "Its private key (PEM, without a passphrase)")
    kafka_token_file: Path | None = _setting(
        None, "OAUTHBEARER: the file with a token, which is read again to renew it"
    )
    kafka_token_url: Url | None = _setting(
        None, "OAUTHBEARER: the endpoint that gives tokens to kafka_user, with its path; https, or on this machine"
    )
    kafka_token_scope: str | None = _setting(None, "OAUTHBEARER: the scope to ask that endpoint for")
    topic_prefix: TopicPrefix = _setting(_TOPICS.prefix, "Stands before each topic's name")
    partitions: AtLeastOne = _setting(
        _TOPICS.partitions, "Partitions of the topics that ranks write, of evidence and of snapshots"
    )
    replicas: AtLeastOne = _setting(_TOPICS.replicas, "Copies of each partition; 3 in production")
    clickhouse_url: Url = _setting("http://127.0.0.1:8123", "ClickHouse over HTTP")
    clickhouse_ca_file: Path | None = _setting(None, "Certificate authority of ClickHouse (PEM); else the system's")
    clickhouse_user: str = _setting("default", "ClickHouse user of workers, and of what else writes")
    clickhouse_password: str = _setting("", "Its password", is_secret=True)
    clickhouse_password_file: Path | None = _setting(None, "The file that holds it, instead")
    clickhouse_reader_user: str | None = _setting(
        None, "ClickHouse user for reading, as by `irregulars sql`, `show`, console; none: clickhouse_user"
    )
    clickhouse_reader_password: str = _setting("", "Its password", is_secret=True)
    clickhouse_reader_password_file: Path | None = _setting(None, "The file that holds it, instead")
    clickhouse_database: Name = _setting("irregulars", "ClickHouse database")
    keep_operators_days: Days | None = _setting(
        None, "Days that operators, transfers and behaviour patterns are stored; none: as the tables are, at first 30"
    )
    keep_rank_iterations_days: Days | None = _setting(
        None,
        "Days that rows, audits, pauses and scores of ranks by iteration are stored; none: as tables, at first 30",
    )
    keep_samples_days: Days | None = _setting(
        None, "Days that samples of bandwidth and of GPUs' health are stored; none: as the tables are, at first 7"
    )
    delta: Annotated[float, Meta(gt=1, le=1e308)] = _setting(
        _JUDGE.delta, "An iteration is irregular above delta times the mean of its window, and above its noise"
    )
    window: Annotated[int, Meta(ge=10)] = _setting(_JUDGE.window, "Iterations in that window")
    grace_s: Seconds = _setting(_JUDGE.grace_s, "Seconds to wait for a source or a rank that others have left behind")
    silence_s: PositiveSeconds = _setting(
        _JUDGE.silence_s,
        "Seconds without operators or iterations after which a job's verdicts close, and whether it hangs is asked",
    )
    snapshot_s: PositiveSeconds = _setting(
        _WORKER.snapshot_s, "Seconds between snapshots of what has changed; more where they take long"
    )
    session_s: Annotated[float, Meta(ge=6, le=MAX_SECONDS)] = _setting(
        _WORKER.session_s,
        "Seconds without a sign of life after which a worker's partitions, or irregulars notify's work, go to others",
    )
    broker_away_s: PositiveSeconds = _setting(
        _WORKER.broker_away_s, "Seconds that Kafka may be away before a worker gives up and ends"
    )
    stop_s: PositiveSeconds = _setting(
        _WORKER.stop_s,
        "Seconds that a worker may take to stop, or it ends with status 1; notify waits so long for its tries",
    )
    forget_s: PositiveSeconds = _setting(
        _WORKER.forget_s, "Seconds without a message until the state of a rank, or of its group, is forgotten"
    )
    recent_mib: MebiBytes = _setting(_WORKER.recent_mib, "MiB of newest operators that a worker keeps in memory")
    unstored_mib: Annotated[int, Meta(ge=1, le=1 << 20)] = _setting(
        _WORKER.unstored_mib,
        "MiB of rows that wait in a worker's memory while ClickHouse is away, before judging waits as well",
    )
    detectors: tuple[str, ...] = _setting(
        ("peers",), "Detectors: entry points or package.module:Name, each with options in brackets"
    )
    event_verdicts: tuple[EventName, ...] = _setting(
        (), "Events that open a verdict by themselves: kinds, `xid:79`, `xid:memory`; none: they are evidence alone"
    )
    alert_least_severity: Annotated[str, one_of(*SEVERITIES)] = _setting(
        _WORKER.alert_least_severity, "Verdicts that are less urgent give no alert"
    )
    alert_least_seen: AtLeastOne = _setting(
        _JUDGE.severity.least_seen,
        "A note: a verdict (no hang, not a detector's) whose cause was seen in fewer iterations",
    )
    alert_least_lost_s: Seconds = _setting(
        _JUDGE.severity.least_lost_s,
        "A note too (no hang, not a detector's): fewer seconds of the job's time are lost",
    )
    alert_ticket_gpu_hours: Positive = _setting(
        _JUDGE.severity.ticket_gpu_hours,
        "A ticket: GPU-hours that will be lost an hour from now, those lost so far included",
    )
    alert_ticket_job_s: PositiveSeconds = _setting(
        _JUDGE.severity.ticket_job_s,
        "A ticket too: seconds of the job's time that will be lost by then, whatever its size",
    )
    alert_page_gpu_hours: Positive = _setting(
        _JUDGE.severity.page_gpu_hours,
        "A page: GPU-hours that will be lost an hour from now; all three limits must be reached",
    )
    alert_page_share: Share = _setting(_JUDGE.severity.page_share, "A page: share of the job's time that is lost")
    alert_page_after_s: Seconds = _setting(
        _JUDGE.severity.page_after_s, "A page: seconds of the job's time for which it has gone on"
    )
    runbook_url: Url | None = _setting(
        None, "Where people find infra/docs/runbook.md, for notices, `show` and the console; none: the console's page"
    )
    notify_hold_s: Seconds = _setting(60.0, "Seconds for which a page is told as a ticket first")
    notify_least_gpu_hours: NotNegative = _setting(
        0.0, "Channels do not tell of an incident that cost fewer GPU-hours, hangs aside; a channel may say otherwise"
    )
    notify_jobs: tuple[str, ...] = _setting(
        ("*",), "Shell patterns: channels tell of jobs that match one of them; a channel may say otherwise"
    )
    notify_give_up_s: PositiveSeconds = _setting(
        3600.0, "Seconds from the first failure for which a notice is tried at most; then it goes to the dead letters"
    )
    notify_listen: Listen = _setting(
        "127.0.0.1:9466", "Where /metrics and /healthz of irregulars notify are; port 0: any free one"
    )
    console_url: Url | None = _setting(
        None, "Where people reach the console: notices link to an incident's page there"
    )
    console_listen: HostPort = _setting("127.0.0.1:8321", "Where irregulars console listens; port 0: any free one")
    console_token_file: Path | None = _setting(
        None, "The file with the console's token; none: a random one is printed, unless console_user_header is set"
    )
    console_user_header: str | None = _setting(
        None, "Header in which a proxy tells the console who somebody is, like X-Forwarded-User"
    )
    console_proxies: tuple[str, ...] = _setting((), "Addresses or networks of the proxies that are believed")
    console_proxy_secret_file: Path | None = _setting(
        None, "The file with the secret that a proxy must send in X-Proxy-Secret; none: its address is enough"
    )
    console_hosts: tuple[str, ...] = _setting(
        (), "Names by which browsers reach the console, beside localhost, this machine's name and addresses"
    )
    console_certificate_file: Path | None = _setting(None, "The console's certificate (PEM), for https")
    console_key_file: Path | None = _setting(None, "Its private key (PEM, without a passphrase)")
    console_plain_http: bool = _setting(
        False, "Let other machines reach the console unencrypted, where the network in between is yours alone"
    )
    console_feedback: bool = _setting(
        False, "Let people judge and mute verdicts in the console; needs the rights of the role operator"
    )
    data_dir: Path = _setting(
        Path(".irregulars"), "Where a worker keeps files, and `irregulars up --keep-data` its database"
    )
    log_level: Annotated[str, one_of(*LOG_LEVELS)] = _setting(_WORKER.log_level, "Least level that is logged")
    metrics_listen: Listen = _setting(
        "127.0.0.1:9465",
        "Where a worker's pages /metrics, /healthz and /readyz are; port 0, or one that is taken: any free one",
    )
    web_port: Annotated[int, Meta(ge=0, le=65_535)] = _setting(
        _WORKER.web_port, "Port of Faust's own pages, on 127.0.0.1; 0: none"
    )

    def __post_init__(self) -> None:
        for name in FIELDS:
            _check(name, getattr(self, name), "argument of Settings")
        # For its errors alone: settings of Kafka that don't fit together are refused here.
        self.kafka_security()
        for name in ("clickhouse_password", "clickhouse_reader_password"):
            if getattr(self, name) and getattr(self, f"{name}_file"):
                raise InputError(f"one of {name} and {name}_file must be set; got both")

    def topics(self) -> TopicSettings:
        """Return the layout of the topics."""
        return TopicSettings(self.topic_prefix, self.partitions, self.replicas)

    def kafka_security(self) -> KafkaSecurity:
        """Return who we are to Kafka; raises `InputError` if the settings don't fit together."""
        return KafkaSecurity(**{one.name: getattr(self, f"kafka_{one.name}") for one in fields(KafkaSecurity)})

    def clickhouse_login(self, *, is_reading: bool = False) -> tuple[str, str]:
        """Return user and password of ClickHouse: of who writes, or, where there is one, of who only reads.

        Raises `InputError` if the file of the password can't be read.
        """
        name = "clickhouse_reader" if is_reading and self.clickhouse_reader_user is not None else "clickhouse"
        path = getattr(self, f"{name}_password_file")
        password = getattr(self, f"{name}_password") if path is None else read_secret(path, f"{name}_password_file")
        return getattr(self, f"{name}_user"), password

    def to_environment(self) -> dict[str, str]:
        """Return the variables that give another process just these settings; holds the passwords."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        given = {
            f"{PREFIX}{name.upper()}": (",".join(value) if isinstance(value, tuple) else str(value))
            for name, value in values.items()
            if value is not None
        }
        # An empty file: the process must not find irregulars.toml in its working directory.
        return {CONFIG_VARIABLE: os.devnull, **given}


FIELDS: Final[Mapping[str, Field[Any]]] = {one.name: one for one in fields(Settings)}
_KINDS: Final = get_type_hints(Settings, include_extras=True)


def load_settings(
    flags: Mapping[str, object] | None = None,
    config: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    others: Collection[str] = (),
) -> Settings:
    """Read the settings from all sources.

    `flags`: from the command line, as text or typed; those that are `None` were not given. `config`: the TOML file;
    else the one that ``IRREGULARS_CONFIG`` names, else ``irregulars.toml`` where it exists. `others`: names in the
    file that are no settings, since something else reads them. Raises `InputError` if a file can't be read, a name is
    unknown, or a value has the wrong type or breaks its rule.
    """
    file = settings_file(config, environment)
    found = {} if file is None else read_toml(file, "settings file")
    values = {name: _accept(name, value, where) for _, name, value, where in _given(found, file, others, environment)}
    return Settings(**values | _from_flags(flags or {}))


def _given(
    found: Mapping[str, Any], file: Path | None, others: Collection[str], environment: Mapping[str, str]
) -> Iterator[tuple[str, str, Any, str]]:
    """Yield key or variable, name of the setting, value and place of all that file and environment set."""
    for name, value in found.items():
        if name not in others:
            yield name, name, value, f"{file}, key {name}"
    for variable, text in environment.items():
        if variable.startswith(PREFIX) and variable != CONFIG_VARIABLE:
            yield variable, variable.removeprefix(PREFIX).lower(), text, f"environment variable {variable}"


def parse_assignment(text: str) -> tuple[str, str]:
    """Split the ``key=value`` of a flag; raises `InputError` if there is no ``=``.

    >>> parse_assignment("delta=1.2")
    ('delta', '1.2')
    """
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InputError(f"flag --set must be key=value; got {text!r}")
    return name.strip(), value


def settings_file(config: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the file in force: the one that is named, else that of ``IRREGULARS_CONFIG``, else the usual one."""
    if config is not None:
        return config
    if environment.get(CONFIG_VARIABLE):
        return Path(environment[CONFIG_VARIABLE])
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _from_flags(flags: Mapping[str, object]) -> dict[str, Any]:
    for name in flags:
        if name in FIELDS and FIELDS[name].metadata["is_secret"]:
            raise InputError(
                f"{name} must not be given by a flag, which every process list shows; "
                f"set {PREFIX}{name.upper()} or {name}_file"
            )
    return {name: _accept(name, value, f"flag for {name}") for name, value in flags.items() if value is not None}


def _accept(name: str, value: object, where: str) -> Any:
    require_known(name, FIELDS, "setting", where, "infra/docs/settings.md lists them")
    if isinstance(value, str):
        kind = _KINDS[name]
        while get_args(kind) and get_origin(kind) is not tuple:  # the type under an annotation, and beside None
            kind = get_args(kind)[0]
        with suppress(ValueError):  # a text that can't be read stays, and is refused as a text
            value = _PARSERS.get(get_origin(kind) or kind, str)(value)
    return _check(name, value, where)


def _check(name: str, value: object, where: str) -> Any:
    try:
        return checked(value, _KINDS[name], name, where)
    except InputError:
        if not FIELDS[name].metadata["is_secret"]:
            raise
        # `from None`: the first error's text has the secret.
        raise InputError(f"{name} must be {describe(_KINDS[name])}; got a hidden value ({where})") from None


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


def _parse_list(text: str) -> tuple[str, ...]:
    """Split at commas outside brackets: options of a detector hold commas too."""
    return tuple(item.strip() for item in re.split(r",(?![^()]*\))", text) if item.strip())


_PARSERS: Final[Mapping[Any, Callable[[str], Any]]] = {
    int: int, float: float, bool: _parse_bool, Path: Path, tuple: _parse_list,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LenientSettings:
    """Settings that can be used, and the faults of the others."""

    settings: Settings | None  # those in force without what is refused; None: the rest does not fit together either
    refused: tuple[str, ...] = ()  # a text for each fault
    file: Path | None = None  # the file in force; None: there is none
    names: tuple[str, ...] = ()  # its keys


def load_leniently(
    flags: Mapping[str, object],
    config: Path | None,
    environment: Mapping[str, str] = os.environ,
    others: Collection[str] = (),
) -> LenientSettings:
    """Read the settings as `load_settings` does, without those of file and environment that it would refuse.

    Raises `InputError` if the call is wrong: a flag, or a file that it names and that can't be read.
    """
    # Raises for a wrong flag: that is an error of the call, which is refused and not reported.
    _from_flags(flags)
    file = settings_file(config, environment)
    values: dict[str, Any] = {}
    unreadable: list[str] = []
    if file is not None:
        try:
            values = read_toml(file, "settings file")
        except InputError as error:
            # The call named this file. One that was only found is reported, and left out.
            if config is not None:
                raise
            unreadable.append(str(error))
    faults: dict[str, str] = {}  # by key or variable
    for key, name, value, where in _given(values, file, others, environment):
        try:
            _accept(name, value, where)
        except InputError as error:
            faults[key] = str(error)
    usable = {name: text for name, text in environment.items() if name not in faults}
    if unreadable:
        # Else `load_settings` would find it again.
        usable[CONFIG_VARIABLE] = os.devnull
    refused = (*unreadable, *faults.values())
    try:
        left_out = (*others, *(name for name in faults if name in values))
        settings = load_settings(flags, config, usable, left_out)
    except InputError as error:  # each for itself is right, and they don't fit together
        return LenientSettings(None, (*refused, str(error)), file, tuple(values))
    return LenientSettings(settings, refused, file, tuple(values))
