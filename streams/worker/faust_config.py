"""A worker's settings in Faust's words."""

from __future__ import annotations

from typing import Any, Final

from irregulars.streams.faust_driver.transport import SCHEME
from irregulars.streams.worker_settings import WorkerSettings

_MOST_BLOCKS: Final = 32


def faust_config(settings: WorkerSettings) -> dict[str, Any]:
    """Return the settings of the Faust app."""
    config: dict[str, Any] = {
        # The driver logs in and connects by the worker's settings; of this Faust only reads which driver it is.
        "broker": [f"{SCHEME}://{address.strip()}" for address in settings.bootstrap.split(",")],
        "datadir": settings.data_directory,
        "store": "memory://",
        "key_serializer": "raw",
        "value_serializer": "raw",
        "autodiscover": False,
        "broker_session_timeout": settings.session_s,  # Faust complains of rebalances that take longer
        "broker_request_timeout": 2 * settings.broker_away_s + settings.session_s,  # what it gives a restore
        # Of blocks: what is read ahead must be bounded in bytes.
        "stream_buffer_maxsize": _MOST_BLOCKS,
        "stream_wait_empty": False,  # a message that is cut off in a rebalance is read again
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_enabled": settings.web_port > 0,
        "web_bind": settings.web_host,
        "web_host": settings.web_host,
        "web_port": settings.web_port or 1,  # Faust takes no 0, even where it opens no port
        "worker_redirect_stdouts": False,
    }
    return config
