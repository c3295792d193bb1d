"""The state of notices, opened for one command."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from irregulars.infra.notifying.state_log import StateLog
from irregulars.kafka.topic_admin import partitions_there
from irregulars.kafka.topics import TopicSettings


@contextmanager
def opened(
    bootstrap: str,
    topics: TopicSettings,
    security: Mapping[str, Any],
    *needed: str,
    is_stopping: threading.Event | None = None,
) -> Iterator[StateLog]:
    """Open it, and close it at the end.

    Parameters
    ----------
    needed
        Topics that must be there, without the prefix.
    is_stopping
        Ends the wait for a broker that went away meanwhile; None: it is waited for.

    Raises
    ------
    ServiceError
        If Kafka does not answer, refuses us, or lacks a topic.
    """
    partitions_there(bootstrap, topics, security, needed)
    log = StateLog(bootstrap, topics, security, is_stopping or threading.Event())
    try:
        yield log
    finally:
        log.close()
