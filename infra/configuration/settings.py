"""Settings: one frozen dataclass, read once at the start and passed down.

Sources, each stronger than the one before: defaults, a TOML file, the environment (``IRREGULARS_…``), flags. A
setting has one name in all of them: ``delta = 1.2`` in the file, ``IRREGULARS_DELTA=1.2``, ``--set delta=1.2``.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_type_hints

from irregulars.errors import InputError
from irregulars.infra.configuration.toml_file import read_toml, shown
from irregulars.streams.kafka.topics import TopicSettings

PREFIX: Final = "IRREGULARS_"
DEFAULT_FILE: Final = Path("irregulars.toml")
CONFIG_VARIABLE: Final = "IRREGULARS_CONFIG"
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
SEVERITIES: Final = ("note", "ticket", "page")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value must be, in words and as a test."""

    text: str
    holds: Callable[[Any], bool]


def _matches(pattern: str, text: str) -> Rule:
    return Rule(text, lambda value: re.fullmatch(pattern, value) is not None)


def _one_of(values: tuple[str, ...]) -> Rule:
    return Rule(f"one of {', '.join(values)}", lambda value: value in values)


def _at_least(limit: float) -> Rule:
    return Rule(f"{limit:g} or more", lambda value: limit <= value < float("inf"))


_SHARE: Final = Rule("0 to 1", lambda value: 0 <= value <= 1)
_ABOVE_ONE: Final = Rule("above 1", lambda value: 1 < value < float("inf"))
_ABOVE_ZERO: Final = Rule("above 0", lambda value: 0 < value < float("inf"))
_PORT: Final = Rule("1 to 65535", lambda value: 1 <= value <= 65535)
_SERVERS: Final = _matches(r"[^\s,]+:\d+(,[^\s,]+:\d+)*", "host:port, several with commas between")
_URL: Final = _matches(r"https?://[^\s/@]+(/\S*)?", "http://host:port or https://host:port, without credentials")
_TOPIC_PREFIX: Final = _matches(r"[A-Za-z0-9._-]{0,100}", "at most 100 of the signs A-Z a-z 0-9 . _ -")
_NAME: Final = _matches(r"[A-Za-z_][A-Za-z0-9_]*", "a name: letters, digits and _, no digit first")


def _setting(default: Any, about: str, rule: Rule | None = None, *, is_secret: bool = False) -> Any:
    metadata = {"about": about, "rule": rule, "is_secret": is_secret}
    return field(default=default, repr=not is_secret, metadata=MappingProxyType(metadata))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that can be set; ``infra/docs/settings.md`` lists names, defaults and meanings, made from this class.

    Raises
    ------
    InputError
        If a value breaks its rule.
    """

    kafka_bootstrap: str = _setting("127.0.0.1:9092", "Kafka brokers to ask first", _SERVERS)
    kafka_user: str | None = _setting(None, "SASL user; without it no SASL")
    kafka_password: str | None = _setting(None, "SASL password; better in the environment", is_secret=True)
    kafka_mechanism: str = _setting("SCRAM-SHA-512", "SASL mechanism", _one_of(MECHANISMS))
    kafka_tls: bool = _setting(False, "TLS to the brokers")
    kafka_ca_file: Path | None = _setting(None, "Certificate authority of the brokers (PEM); else the system's")  # noqa: RUF009
    topic_prefix: str = _setting("irregulars.", "Stands before each topic's name", _TOPIC_PREFIX)
    partitions: int = _setting(8, "Partitions of each topic that is created", _at_least(1))
    replicas: int = _setting(1, "Copies of each partition; 3 in production", _at_least(1))
    clickhouse_url: str = _setting("http://127.0.0.1:8123", "ClickHouse over HTTP", _URL)
    clickhouse_user: str = _setting("default", "ClickHouse user")
    clickhouse_password: str = _setting("", "ClickHouse password; better in the environment", is_secret=True)
    clickhouse_database: str = _setting("irregulars", "ClickHouse database", _NAME)
    delta: float = _setting(1.1, "An iteration is irregular above delta times the mean of its window", _ABOVE_ONE)
    window: int = _setting(50, "Iterations in that window", _at_least(10))
    grace_s: float = _setting(30.0, "How long later rows still change nothing, seconds of event time", _at_least(0))
    silence_s: float = _setting(
        600.0,
        "Seconds without a word after which a job's verdicts close, and it is asked whether it hangs",
        _ABOVE_ZERO,
    )
    snapshot_s: float = _setting(5.0, "Seconds between snapshots of a monitor", _ABOVE_ZERO)
    session_s: float = _setting(
        30.0, "Seconds without a sign of life after which a worker's partitions go to others", _at_least(6)
    )
    detectors: tuple[str, ...] = _setting(
        ("baseline", "peers"), "Detectors: entry points or package.module:Name, each with options in brackets"
    )
    alert_least_severity: str = _setting(
        "ticket", "Verdicts that are less urgent are stored, and give no alert", _one_of(SEVERITIES)
    )
    alert_least_seen: int = _setting(3, "A note: a verdict that was seen in fewer irregular iterations", _at_least(1))
    alert_least_lost_s: float = _setting(0.1, "A note too: fewer seconds of the job's time are lost", _at_least(0))
    alert_ticket_gpu_hours: float = _setting(
        1.0, "A ticket: GPU-hours that will be lost an hour from now, those lost so far included", _ABOVE_ZERO
    )
    alert_ticket_job_s: float = _setting(
        360.0, "A ticket too: seconds of the job's time that will be lost by then, whatever its size", _ABOVE_ZERO
    )
    alert_page_gpu_hours: float = _setting(
        12.0, "A page: GPU-hours that will be lost an hour from now, if all three limits are reached", _ABOVE_ZERO
    )
    alert_page_share: float = _setting(0.05, "A page: share of the job's time that is lost", _SHARE)
    alert_page_after_s: float = _setting(
        300.0, "A page: seconds of the job's time for which it has gone on", _at_least(0)
    )
    data_dir: Path = _setting(Path(".irregulars"), "Where a worker and the embedded services keep files")  # noqa: RUF009
    log_level: str = _setting("info", "Least level that is logged", _one_of(LOG_LEVELS))
    web_port: int = _setting(6066, "Port of a worker's metrics page, on 127.0.0.1", _PORT)

    def __post_init__(self) -> None:
        for one in fields(self):
            _require(one, getattr(self, one.name), "argument of Settings")
        if self.kafka_user is not None and self.kafka_password is None:
            raise InputError(
                "kafka_password must be set where kafka_user is; got none. Set IRREGULARS_KAFKA_PASSWORD"
            )

    def topics(self) -> TopicSettings:
        """How the topics are laid out."""
        return TopicSettings(self.topic_prefix, self.partitions, self.replicas)

    def kafka_client(self) -> dict[str, str]:
        """Return what librdkafka needs to connect; holds the password, so never log it."""
        values = {"bootstrap.servers": self.kafka_bootstrap, "security.protocol": self._protocol()}
        if self.kafka_user is not None:
            values |= {"sasl.mechanism": self.kafka_mechanism, "sasl.username": self.kafka_user}
            values["sasl.password"] = self.kafka_password or ""
        if self.kafka_ca_file is not None:
            values["ssl.ca.location"] = str(self.kafka_ca_file)
        return values

    def to_environment(self) -> dict[str, str]:
        """Return the variables that give another process just these settings; holds the passwords."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        given = {f"{PREFIX}{name.upper()}": _to_text(value) for name, value in values.items() if value is not None}
        return {CONFIG_VARIABLE: os.devnull, **given}

    def _protocol(self) -> str:
        return ("sasl_" if self.kafka_user is not None else "") + ("ssl" if self.kafka_tls else "plaintext")


FIELDS: Final[Mapping[str, Field[Any]]] = {one.name: one for one in fields(Settings)}
_TYPES: Final = get_type_hints(Settings)


def load_settings(
    flags: Mapping[str, object] | None = None,
    config: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    others: Collection[str] = (),
) -> Settings:
    """Read the settings from all sources.

    Parameters
    ----------
    flags
        Values from the command line, as text or typed; those that are `None` were not given.
    config
        The TOML file; else the one that ``IRREGULARS_CONFIG`` names, else ``irregulars.toml`` where it exists.
    environment
        Variables; those that begin with ``IRREGULARS_`` count.
    others
        Names in the file that are no settings: somebody else reads them.

    Raises
    ------
    InputError
        If a file can't be read, a name is unknown, or a value has the wrong type or breaks its rule; the text names
        the file or variable and the key.
    """
    values = (
        _from_file(_config_file(config, environment), others)
        | _from_environment(environment)
        | _from_flags(flags or {})
    )
    return Settings(**values)


def parse_assignment(text: str) -> tuple[str, str]:
    """Split the ``key=value`` of a flag; raises `InputError` if there is no ``=``.

    >>> parse_assignment("delta=1.2")
    ('delta', '1.2')
    """
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InputError(f"flag --set must be key=value; got {text!r}")
    return name.strip(), value


def _config_file(config: Path | None, environment: Mapping[str, str]) -> Path | None:
    if config is not None:
        return config
    if environment.get(CONFIG_VARIABLE):
        return Path(environment[CONFIG_VARIABLE])
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _from_file(path: Path | None, others: Collection[str]) -> dict[str, Any]:
    if path is None:
        return {}
    found = read_toml(path, "settings file")
    return {name: _accept(name, value, f"{path}, key {name}") for name, value in found.items() if name not in others}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    given = {name: text for name, text in environment.items() if name.startswith(PREFIX) and name != CONFIG_VARIABLE}
    names = {name: name.removeprefix(PREFIX).lower() for name in given}
    return {names[name]: _accept(names[name], text, f"environment variable {name}") for name, text in given.items()}


def _from_flags(flags: Mapping[str, object]) -> dict[str, Any]:
    return {name: _accept(name, value, f"flag for {name}") for name, value in flags.items() if value is not None}


def _accept(name: str, value: object, where: str) -> Any:
    if name not in FIELDS:
        near = difflib.get_close_matches(name, FIELDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "infra/docs/settings.md lists them"
        raise InputError(f"setting must be a known one; got {shown(name)} ({where}); {hint}")
    typed = _from_text(name, value, where) if isinstance(value, str) else _from_toml(name, value, where)
    _require(FIELDS[name], typed, where)
    return typed


def _from_text(name: str, text: str, where: str) -> Any:
    kind = _TYPES[name]
    try:
        return _PARSERS[kind](text)
    except ValueError as error:
        raise _wrong_type(name, text, where) from error


def _from_toml(name: str, value: object, where: str) -> Any:
    kind = _TYPES[name]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _wrong_type(name, value, where) from None
    if kind == tuple[str, ...] and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if (kind in (bool, float, Path) and isinstance(value, kind)) or (kind is int and type(value) is int):
        return value
    if kind == Path | None and isinstance(value, Path):
        return value
    raise _wrong_type(name, value, where)


def _wrong_type(name: str, value: object, where: str) -> InputError:
    found = "a hidden value" if FIELDS[name].metadata["is_secret"] else shown(value)
    return InputError(f"{name} must be {_KIND_NAMES[_TYPES[name]]}; got {found} ({where})")


def _require(one: Field[Any], value: object, where: str) -> None:
    rule: Rule | None = one.metadata["rule"]
    if rule is not None and not rule.holds(value):
        raise InputError(f"{one.name} must be {rule.text}; got {shown(value)} ({where})")


def _to_text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() in ("true", "1")


def _parse_list(text: str) -> tuple[str, ...]:
    """Split at commas outside brackets: options of a detector hold commas too."""
    return tuple(item.strip() for item in re.split(r",(?![^()]*\))", text) if item.strip())


_PARSERS: Final[Mapping[Any, Callable[[str], Any]]] = {
    str: str,
    str | None: str,
    int: int,
    float: float,
    bool: _parse_bool,
    Path: Path,
    Path | None: Path,
    tuple[str, ...]: _parse_list,
}
_KIND_NAMES: Final[Mapping[Any, str]] = {
    str: "text",
    str | None: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    Path | None: "a path",
    tuple[str, ...]: "a list of texts",
}


def settings_table() -> str:
    """Return the Markdown table of ``infra/docs/settings.md``."""
    rows = [f"| `{one.name}` | {_KIND_NAMES[_TYPES[one.name]]} | {_shown_default(one)} | {_about(one)} |"
            for one in FIELDS.values()]  # fmt: skip
    return "\n".join(["| name | value | default | meaning |", "|---|---|---|---|", *rows, ""])


def _shown_default(one: Field[Any]) -> str:
    if one.default in (None, ""):
        return "none"
    return f"`{', '.join(one.default) if isinstance(one.default, tuple) else str(one.default).lower()}`"


def _about(one: Field[Any]) -> str:
    rule: Rule | None = one.metadata["rule"]
    return one.metadata["about"] + (f"; {rule.text}" if rule is not None else "")
