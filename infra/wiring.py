"""Settings of the parts, made from the settings of the process."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from irregulars.infra.settings import FIELDS, Settings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from irregulars.producers.publishing.publisher import AgentSettings
    from irregulars.settings import JudgeSettings
    from irregulars.sinks.connection import DatabaseSettings
    from irregulars.streams.worker_settings import WorkerSettings

# What Faust calls the levels of the standard library.
_FAUST_LEVELS = {"warning": "warn", "critical": "crit"}


def agent_settings(settings: Settings, *, is_asking: bool = True) -> AgentSettings:
    """Return the settings of the publishing agent; see `KafkaSecurity.client` for `is_asking`."""
    from irregulars.producers.publishing.publisher import AgentSettings

    security = kafka_security(settings, is_asking=is_asking)
    return AgentSettings(settings.kafka_bootstrap, settings.topics(), security)


def database_settings(settings: Settings, wait_s: float = 10.0, *, is_reading: bool = False) -> DatabaseSettings:
    """Return the settings of the ClickHouse client, which waits `wait_s` seconds for a database that does not answer.

    Where it `is_reading`, the user is the reader, and the server is told to refuse writes.
    """
    from irregulars.sinks.connection import DatabaseSettings

    return DatabaseSettings(
        settings.clickhouse_url,
        *settings.clickhouse_login(is_reading=is_reading),
        settings.clickhouse_database,
        wait_s,
        settings.clickhouse_ca_file,
        is_reading,
        # Called when the server refuses us: the file may have another password by then.
        read_password=lambda: settings.clickhouse_login(is_reading=is_reading)[1],
    )


def runbook_url(settings: Settings) -> str | None:
    """Return where people find the runbook: the console serves it where no other place is set; None: not known."""
    served = settings.console_url and f"{settings.console_url.rstrip('/')}/docs/runbook"
    return settings.runbook_url or served


def keep_days(settings: Settings) -> dict[str, int]:
    """Return how many days which table keeps its rows, of those that are set."""
    days = {
        "operators": settings.keep_operators_days,
        "transfers": settings.keep_operators_days,
        "behaviour_patterns": settings.keep_operators_days,
        "rank_iterations": settings.keep_rank_iterations_days,
        "audits": settings.keep_rank_iterations_days,
        "pauses": settings.keep_rank_iterations_days,
        "detector_scores": settings.keep_rank_iterations_days,
        "bandwidth": settings.keep_samples_days,
        "gpu_health": settings.keep_samples_days,
        "events": settings.keep_rank_iterations_days,
    }
    return {table: count for table, count in days.items() if count is not None}


def monitor_settings(settings: Settings, *, has_detectors: bool = True) -> JudgeSettings:
    """Return the settings of the monitors.

    `has_detectors`: whether detectors score anything. If not, those that nobody chose are not even looked for. Raises
    `PluginError` if a detector can't be used.
    """
    from irregulars.settings import JudgeSettings, SeverityLimits

    detectors = {}
    if has_detectors or settings.detectors != FIELDS["detectors"].default:
        from irregulars.detectors.plugins.loading import load_detectors  # the command that needs none starts sooner

        detectors = load_detectors(settings.detectors)
    # Each limit is the setting ``alert_`` and its name.
    limits = {one.name: getattr(settings, f"alert_{one.name}") for one in fields(SeverityLimits)}
    return JudgeSettings(
        **_shared(JudgeSettings, settings),
        severity=SeverityLimits(**limits),
        operator_detectors=detectors.get("operator", ()),
        rank_detectors=detectors.get("rank", ()),
    )


def _shared(part: type[DataclassInstance], settings: Settings) -> dict[str, Any]:
    """Return the values of the settings that a part has under the same name."""
    return {one.name: getattr(settings, one.name) for one in fields(part) if one.name in FIELDS}


def worker_settings(settings: Settings, group: str) -> WorkerSettings:
    """Return the settings of a worker process of consumer group `group`."""
    from irregulars.streams.worker_settings import WorkerSettings

    own = _shared(WorkerSettings, settings) | {
        "data_directory": str(settings.data_dir / "worker"),
        "log_level": _FAUST_LEVELS.get(settings.log_level, settings.log_level),
    }
    security = kafka_security(settings, is_asking=False)
    return WorkerSettings(
        settings.kafka_bootstrap, **own, topics=settings.topics(), security=security, group=group,
        judge=monitor_settings(settings),
    )  # fmt: skip


def kafka_security(settings: Settings, *, is_asking: bool = True) -> dict[str, Any]:
    """Return librdkafka's settings of protocol and credentials; never log them. See `KafkaSecurity.client`."""
    return settings.kafka_security().client(is_asking=is_asking)
