"""Change the configuration of topics that exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public there, and not told to type checkers
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)


def alter_topics(
    admin: AdminClient, names: Sequence[str], wanted: Mapping[str, str], timeout_s: float
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Give topics a configuration, as far as they have another one.

    Returns
    -------
    The names of the topics that were changed; and of those that could not be (we may lack the right, and small
    brokers can't do it) what is still to be set, as ``key=value,…``.
    """
    altered, stale = [], {}
    for name in names:
        missing = _missing(admin, name, wanted, timeout_s)
        if missing:
            try:
                _alter(admin, name, missing, timeout_s)
                altered.append(name)
            except KafkaException:
                stale[name] = ",".join(f"{key}={value}" for key, value in missing.items())
    return tuple(altered), stale


def _missing(admin: AdminClient, name: str, wanted: Mapping[str, str], timeout_s: float) -> Mapping[str, str]:
    try:
        found = _result(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)], request_timeout=timeout_s))
    except KafkaException:
        return wanted
    return {key: value for key, value in wanted.items() if key not in found or not _is_equal(found[key].value, value)}


def _is_equal(found: str | None, wanted: str) -> bool:
    return found is not None and float(found) == float(wanted)


def _alter(admin: AdminClient, name: str, wanted: Mapping[str, str], timeout_s: float) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in wanted.items()]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    _result(admin.incremental_alter_configs([resource], request_timeout=timeout_s))


def _result(futures: Mapping[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result()
