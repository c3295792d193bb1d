"""Gives NVSentinel's health events to a file, standard output or an HTTP endpoint, each at least once.

NVSentinel takes events over gRPC on a Unix socket. That would need a dependency (grpcio) on each machine; its
CloudEvents are JSON, and whatever relays them has the fields of its protocol by their names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final
from urllib.parse import urlsplit

from confluent_kafka import Message

from irregulars.errors import InputError, RecordError, ServiceRefused, ServiceUnavailable
from irregulars.infra.acting.action_feed import ActionFeed
from irregulars.printing import json_text, printable
from irregulars.sinks.notices.action_messages import decode_actions
from irregulars.sinks.notices.health_event import health_events

Write = Callable[[Sequence[Mapping[str, Any]]], None]
"""Returns when all events are where they belong; raises `ServiceUnavailable` or `ServiceRefused`."""

AWAY_S: Final = 5.0
_POLL_S: Final = 0.5
_READ_S: Final = 20.0


def run_health_events(
    feed: ActionFeed, write: Write, cluster: str, least_probability: float, *, is_executed: bool, is_ending: bool
) -> None:
    """Give the events of each message, and only then note that it is done with.

    Parameters
    ----------
    is_ending
        Stop at the newest message, instead of waiting for more; and do not wait for an endpoint that is away.

    Raises
    ------
    ServiceRefused, ServiceUnavailable
        If Kafka or the endpoint refuses us; with `is_ending` also if the endpoint does not answer.
    """
    while True:
        polled = feed.poll(_POLL_S)
        for message in polled.messages:
            events = _events(message, cluster, least_probability, is_executed)
            if events:
                _deliver(write, events, is_waiting=not is_ending)
            feed.commit(message)
        if is_ending and polled.is_current:
            return


def _events(message: Message, cluster: str, least_probability: float, is_executed: bool) -> list[dict[str, Any]]:
    try:
        found = decode_actions(message.value())
    except RecordError as error:
        print(f"irregulars: message at offset {message.offset()} skipped: {printable(error)}", file=sys.stderr)
        return []
    return list(health_events(found, cluster, least_probability, time.time_ns(), is_executed=is_executed))


def _deliver(write: Write, events: Sequence[Mapping[str, Any]], *, is_waiting: bool) -> None:
    is_told = False
    while True:
        try:
            return write(events)
        except ServiceUnavailable as error:
            if not is_waiting:
                raise
            if not is_told:
                print(f"irregulars: {printable(error)}; trying until it does", file=sys.stderr)
            is_told = True
            time.sleep(AWAY_S)


@contextmanager
def open_output(place: str) -> Iterator[Write]:
    """Open where events go: ``-`` is standard output, ``http://…`` or ``https://…`` an endpoint, else a file.

    Raises
    ------
    InputError
        If the file can't be written, or the address is none.
    """
    if place == "-":
        yield lambda events: _print(sys.stdout, events)
    elif "://" in place:
        yield _endpoint(place)
    else:
        with _appended(place) as file:
            yield lambda events: _print(file, events)


def _appended(place: str) -> IO[str]:
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except (OSError, ValueError) as error:
        raise InputError(f"--output must be a file that can be written; got {error} ({place!r})") from error
    return os.fdopen(descriptor, "a", encoding="utf-8")


def _print(file: IO[str], events: Sequence[Mapping[str, Any]]) -> None:
    for event in events:
        print(json_text(event), file=file)
    file.flush()


def _endpoint(url: str) -> Write:
    import urllib3

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise InputError(f"--output must be http://… or https://…, without credentials; got {parts.scheme}://…")
    pool = urllib3.PoolManager(timeout=_READ_S, retries=False)
    headers = {"Content-Type": "application/cloudevents+json"}
    where = f"{parts.scheme}://{parts.netloc}"  # what stands behind may be a secret

    def post(events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            try:
                body = json.dumps(event).encode()
                answer = pool.request("POST", url, body=body, headers=headers, redirect=False)
            except urllib3.exceptions.HTTPError as error:
                raise ServiceUnavailable(f"{where} must take events; got {type(error).__name__}") from error
            _require_taken(answer.status, where)

    return post


def _require_taken(status: int, where: str) -> None:
    if 200 <= status < 300:
        return
    kind = ServiceUnavailable if status == 429 or status >= 500 else ServiceRefused
    raise kind(f"{where} must take events; got status {status}")
