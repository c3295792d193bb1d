"""A worker's settings in Faust's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import faust
from faust.auth import OAuthCredentials

from irregulars.kafka.aiokafka_credentials import aiokafka_security
from irregulars.streams.worker_settings import WorkerSettings

_MOST_BLOCKS: Final = 32


def faust_config(settings: WorkerSettings) -> dict[str, Any]:
    """Return the settings of the Faust app."""
    config: dict[str, Any] = {
        "broker": [f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")],
        "broker_credentials": credentials(settings.security),
        "datadir": settings.data_directory,
        "store": "memory://",
        "key_serializer": "raw",
        "value_serializer": "raw",
        "autodiscover": False,
        "consumer_auto_offset_reset": "earliest",
        "broker_session_timeout": settings.session_s,
        "broker_heartbeat_interval": settings.session_s / 10,
        # Faust gives a restore no longer than this; requests themselves get less (`PatientThread`).
        "broker_request_timeout": 2 * settings.broker_away_s + settings.session_s,
        "broker_commit_interval": min(settings.snapshot_s, 2.8),
        # Of blocks: what is read ahead must be bounded in bytes.
        "stream_buffer_maxsize": _MOST_BLOCKS,
        # Events are held until a snapshot: a rebalance that waits for them would wait for ever.
        "stream_wait_empty": False,
        # With 0 Faust would let aiokafka assign partitions round robin, and scatter those that belong together.
        "table_standby_replicas": 1,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_enabled": settings.web_port > 0,
        "web_bind": settings.web_host,
        "web_host": settings.web_host,
        "web_port": settings.web_port or 1,  # Faust takes no 0, even where it opens no port
        "worker_redirect_stdouts": False,
    }
    return config


def credentials(security: Mapping[str, Any]) -> Any:
    """Return librdkafka's settings of protocol and credentials in Faust's words; None: plain text, no login."""
    found = aiokafka_security(security)
    if "sasl_oauth_token_provider" in found:
        return OAuthCredentials(oauth_cb=found["sasl_oauth_token_provider"], ssl_context=found.get("ssl_context"))
    if "sasl_mechanism" in found:
        return faust.SASLCredentials(
            username=found["sasl_plain_username"],
            password=found["sasl_plain_password"],
            mechanism=found["sasl_mechanism"],
            ssl_context=found.get("ssl_context"),
        )
    return faust.SSLCredentials(found["ssl_context"]) if "ssl_context" in found else None
