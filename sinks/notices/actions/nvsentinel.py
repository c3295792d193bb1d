"""NVSentinel's health events of the actions of an incident, given to a file, standard output or an HTTP endpoint."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import IO, Any, Final
from urllib.parse import urlsplit

from irregulars.errors import InputError, RecordError, ServiceRefused, ServiceUnavailable
from irregulars.messages.kinds import device_kind
from irregulars.printing import json_text, printable
from irregulars.sinks.notices.actions.actions import Action, ActionsMessage, decode_actions, newer
from irregulars.sinks.notices.actions.feed import ActionFeed

EVENT_TYPE: Final = "com.nvidia.nvsentinel.health.v1"
CHECK: Final = "IrregularsStraggler"
AGENT: Final = "irregulars"


@dataclass(slots=True)
class HealthEvents:
    """Makes the events of one message after the other, and keeps the accusations that NVSentinel was given.

    An event says that a host's device is unhealthy, or healthy again; expired actions give none. Below
    `least_probability` no event says that a device is unhealthy. `is_executed`: whether NVSentinel may cordon, drain
    or repair by these events; else it only stores them.
    """

    cluster: str
    least_probability: float
    is_executed: bool = False
    _newest: dict[str, ActionsMessage] = field(default_factory=dict)
    # By host and action id: the accusations that were given, each as of the newest message of its incident
    _given: dict[str, dict[str, tuple[ActionsMessage, Action]]] = field(default_factory=dict)

    def of(self, message: ActionsMessage, now_ns: int) -> Iterator[dict[str, Any]]:
        """Yield the events of a message; none of one that is older than another of its incident."""
        if not newer(self._newest, message):
            return
        self._newest[message.verdict_id] = message
        named = {one.action_id: one for one in message.actions if one.action == "cordon"}
        for given in self._given.values():
            for action_id, (before, one) in given.items():
                if before.verdict_id == message.verdict_id:
                    given[action_id] = message, named.get(action_id, replace(one, state="withdrawn"))
        for action_id, one in named.items():
            host = one.suspect.host
            # Maybe given when another probability sufficed, or so long ago that the topic holds it no more
            if one.state == "withdrawn" and host is not None and host not in self._given:
                self._given[host] = {action_id: (message, one)}
            # Without a time nobody knows whether it still holds, as for `actor.plan_nodes`.
            is_sure = one.suspect.probability >= self.least_probability and (one.expires_at_ns or 0) >= now_ns
            if one.state == "proposed" and host is not None and is_sure:
                self._given.setdefault(host, {})[action_id] = message, one
                yield self._event(message, one, host, now_ns)
        for host, given in list(self._given.items()):
            # All devices of a host have one check: a healthy one would give back a node that another one holds.
            if all(one.state == "withdrawn" for _, one in given.values()):
                del self._given[host]
                for own, one in given.values():
                    yield self._event(own, one, host, now_ns)

    def _event(self, message: ActionsMessage, one: Action, host: str, now_ns: int) -> dict[str, Any]:
        is_healthy = one.state == "withdrawn"
        time_ns = now_ns if message.time_ns is None else message.time_ns
        whole_s, rest_ns = divmod(time_ns, 10**9)
        at = f"{datetime.fromtimestamp(whole_s, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"
        code = f"IRREGULARS_{message.kind.upper()}"
        kind = device_kind(one.suspect.device)
        action = "NONE" if is_healthy else kind.health_test
        # All values of its metadata are texts
        metadata = {
            "verdict_id": message.verdict_id, "revision": str(message.revision), "job": message.job,
            "action_id": one.action_id, "probability": f"{one.suspect.probability:.4f}",
        }  # fmt: skip
        if one.gpu_hours_lost is not None:
            metadata["gpu_hours_lost"] = f"{one.gpu_hours_lost:.6g}"
        part = None if kind.health_class is None else getattr(one.suspect, kind.identity[-1])
        entities = [] if part is None else [{"entityType": kind.health_class, "entityValue": str(part)}]
        event = {
            "version": 1, "agent": AGENT, "componentClass": kind.health_class or "Node",
            "checkName": CHECK, "isFatal": False, "isHealthy": is_healthy,
            "message": f"[{code}] {one.reason} - RecommendedAction: {action}", "recommendedAction": action,
            "errorCode": [] if is_healthy else [code], "entitiesImpacted": entities,
            "metadata": metadata, "generatedTimestamp": at, "nodeName": host,
            "quarantineOverrides": None, "drainOverrides": None,
            "processingStrategy": "EXECUTE_REMEDIATION" if self.is_executed else "STORE_ONLY",
        }  # fmt: skip
        return {
            "specversion": "1.0", "id": f"{one.action_id}/{message.revision}/{one.state}", "type": EVENT_TYPE,
            "source": f"nvsentinel://{self.cluster}/healthevents", "time": at, "datacontenttype": "application/json",
            "data": {"metadata": {"cluster": self.cluster}, "healthEvent": event},
        }  # fmt: skip


# Returns when all events are where they belong; raises `ServiceUnavailable` or `ServiceRefused`
Write = Callable[[Sequence[Mapping[str, Any]]], None]

AWAY_S: Final = 5.0
_POLL_S: Final = 0.5
_READ_S: Final = 20.0

# Statuses that blame the one event: bad request, too large, unprocessable. Those behind it may be taken; all others
# blame the address or our rights, and would be the answer to each event.
_EVENT_REFUSED: Final = frozenset({400, 413, 422})
# Different events refused in a row that blame the endpoint after all: it may expect another format, and skipping
# would lose each event without an end. 3: of a host that the endpoint does not know, an incident gives one or two.
_REFUSED_IN_A_ROW: Final = 3


def run_health_events(
    feed: ActionFeed, write: Write, cluster: str, least_probability: float, *, is_executed: bool, is_ending: bool
) -> None:
    """Give the events of each message, and only then note that it is done with.

    `is_ending`: stop at the newest message, and do not wait for an endpoint that is away. Raises `ServiceRefused`,
    `ServiceUnavailable` if Kafka or the endpoint refuses us; with `is_ending` also if the endpoint does not answer.
    """
    made = HealthEvents(cluster, least_probability, is_executed)
    while True:
        polled = feed.poll(_POLL_S)
        if polled.is_new_owner:
            made = HealthEvents(cluster, least_probability, is_executed)
        for message in polled.messages:
            is_done = feed.is_done(message)
            try:
                found = decode_actions(message.value())
            except RecordError as error:
                if not is_done:
                    reason = printable(error)
                    print(f"irregulars: message at offset {message.offset()} skipped: {reason}", file=sys.stderr)
            else:
                # Of a message that is done with the events were given about when it was written.
                now_ns = message.timestamp()[1] * 10**6 if is_done else time.time_ns()
                events = list(made.of(found, now_ns))
                if events and not is_done:
                    _deliver(write, events, is_waiting=not is_ending)
            if not is_done:
                feed.commit(message)
        if is_ending and polled.is_current:
            return


def _deliver(write: Write, events: Sequence[Mapping[str, Any]], *, is_waiting: bool) -> None:
    is_reported = False
    while True:
        try:
            return write(events)
        except ServiceUnavailable as error:
            if not is_waiting:
                raise
            if not is_reported:
                print(f"irregulars: {printable(error)}; trying until it does", file=sys.stderr)
            is_reported = True
            time.sleep(AWAY_S)


@contextmanager
def open_output(place: str) -> Iterator[Write]:
    """Open where events go: ``-`` is standard output, ``http://…`` or ``https://…`` an endpoint, else a file.

    Raises `InputError` if the file can't be written, or the address is none.
    """
    if place == "-":
        yield lambda events: _print(sys.stdout, events)
    elif "://" in place:
        yield _endpoint(place)
    else:
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except (OSError, ValueError) as error:
            raise InputError(f"--output must be a file that can be written; got {error} ({place!r})") from error
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            yield lambda events: _print(file, events)


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
    # Ids of the events refused since the last other answer: one that is tried again with its message counts once.
    refused: set[str] = set()

    def post(events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            try:
                body = json.dumps(event).encode()
                answer = pool.request("POST", url, body=body, headers=headers, redirect=False)
            except urllib3.exceptions.HTTPError as error:
                raise ServiceUnavailable(f"{where} must take events; got {type(error).__name__}") from error
            if answer.status in _EVENT_REFUSED:
                refused.add(event["id"])
            else:
                refused.clear()
            if 0 < len(refused) < _REFUSED_IN_A_ROW:
                event_id = printable(event["id"])
                print(f"irregulars: event {event_id} skipped: refused with status {answer.status}", file=sys.stderr)
            elif not 200 <= answer.status < 300:
                kind = ServiceUnavailable if answer.status == 429 or answer.status >= 500 else ServiceRefused
                raise kind(f"{where} must take events; got status {answer.status}")

    return post
