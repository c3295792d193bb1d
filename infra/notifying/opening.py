"""The state of notices, opened for one command."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from irregulars.errors import TopicMismatch
from irregulars.infra.notifying.state_log import StateLog
from irregulars.streams.kafka.broker import open_admin
from irregulars.streams.kafka.topics import TopicSettings


@contextmanager
def opened(bootstrap: str, topics: TopicSettings, security: Mapping[str, Any], *needed: str) -> Iterator[StateLog]:
    """Open it, and close it at the end.

    Parameters
    ----------
    needed
        Topics that must be there, without the prefix.

    Raises
    ------
    ServiceError
        If Kafka does not answer, refuses us, or lacks a topic.
    """
    _, metadata = open_admin(bootstrap, security)
    missing = [name for name in map(topics.name, needed) if name not in metadata.topics]
    if missing:
        raise TopicMismatch(f"topic must exist; got none named {', '.join(missing)} (Kafka at {bootstrap}). "
                            "Run: irregulars topics create; where it is there, irregulars topics grant")  # fmt: skip
    log = StateLog(bootstrap, topics, security, threading.Event())
    try:
        yield log
    finally:
        log.close()
