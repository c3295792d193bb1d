"""Generic webhooks: the notice as JSON, signed where there is a key, or inside a CloudEvents envelope."""

from __future__ import annotations

import hashlib
import hmac
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaError

from irregulars.errors import SinkBusy, SinkRejected
from irregulars.kafka.lasting_producer import BY_KEY, LastingProducer, Record
from irregulars.sinks.notices.http_post import HttpChannel, HttpOptions, HttpPost, Secret
from irregulars.sinks.notices.notice import AWAY_S, NotArrived, Notice, encode_notice, written
from irregulars.words import iso_time

SIGNATURE: Final = "Irregulars-Signature"
TIMESTAMP: Final = "Irregulars-Timestamp"


class WebhookChannel(HttpChannel):
    """Posts each notice to a URL.

    Every request has ``Idempotency-Key``, the same for the same notice. With a `key` it has `TIMESTAMP` (seconds
    since the epoch) and `SIGNATURE`, ``sha256=`` and the HMAC of the timestamp, a dot and the body, in hexadecimal:
    a receiver that refuses old timestamps can't be fooled with an old request. `is_url_secret`: the URL must stand in
    no error.
    """

    def __init__(
        self, name: str, url: Secret, settings: HttpOptions | None = None, token: Secret | None = None,
        key: Secret | None = None, *, is_url_secret: bool = False, now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.name: Final = name
        self._token, self._key, self._now = token, key, now
        secrets = [one for one in (token, key) if one is not None]
        self._http = HttpPost(url, settings, secrets, is_url_secret=is_url_secret)

    def deliver(self, notice: Notice) -> str | None:
        """Post it; see `Channel.deliver`."""
        body = written(encode_notice, notice)
        headers = {"Content-Type": "application/json", "Idempotency-Key": notice.idempotency_key}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token()}"
        if self._key is not None:
            headers |= signature_headers(body, self._key(), int(self._now()))
        self._http.post(body, headers)
        return None


def signature_headers(body: bytes, key: str, time_s: int) -> dict[str, str]:
    """Return the two headers of a signed request.

    >>> signature_headers(b"{}", "key", 1)["Irregulars-Signature"][:20]
    'sha256=1ba6b8171186e'
    """
    digest = hmac.new(key.encode(), f"{time_s}.".encode() + body, hashlib.sha256).hexdigest()
    return {TIMESTAMP: str(time_s), SIGNATURE: f"sha256={digest}"}


TYPE: Final = "irregulars.incident"
_NEVER: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD})


class CloudEventsChannel:
    """Produces a message for each notice, keyed by the incident: one incident's lie in order in one partition.

    The producer calls back within its own ``message.timeout.ms``; `source` becomes ``ce_source``.
    """

    def __init__(self, name: str, topic: str, producer: LastingProducer, source: str = "irregulars") -> None:
        self.name: Final = name
        self._topic, self._producer, self._source = topic, producer, source

    def deliver(self, notice: Notice) -> str | None:
        """Produce it, and wait for the acknowledgement; see `Channel.deliver`."""
        value, named = written(lambda one: (encode_notice(one), headers_of(one, self._source)), notice)
        headers = [(key, text.encode(errors="replace")) for key, text in named.items()]
        record = Record(self._topic, notice.incident.encode(), value, BY_KEY, headers)
        error = self._producer.deliver([record])  # ends: message.timeout.ms
        if error is None:
            return None
        text = f"topic {self._topic} must take the event; got {error.name()}"
        raise SinkRejected(text) if error.code() in _NEVER else SinkBusy(text, AWAY_S)

    def close(self) -> None:
        """Let go of the connection."""
        self._producer.flush(0)


def headers_of(notice: Notice, source: str) -> dict[str, str]:
    """Return the attributes as headers; `ce_id` is the same for the same notice."""
    headers = {
        "ce_specversion": "1.0", "ce_id": notice.idempotency_key, "ce_source": source,
        "ce_type": f"{TYPE}.{notice.event}", "ce_subject": notice.incident, "content-type": "application/json",
    }  # fmt: skip
    time_ns = notice.alert.get("time_ns")
    if isinstance(time_ns, int) and 0 <= time_ns < 1 << 62:
        headers["ce_time"] = iso_time(time_ns)
    return headers


NEVER: Final = 65  # status with which a program says that it will never take this notice (EX_DATAERR of sysexits.h)
_LONGEST_REFERENCE: Final = 200


class CommandChannel:
    """Runs a program for each notice, without a shell, in a process group of its own.

    Status 0: it took the notice; the first line of its output, if there is one, is the reference, which comes back in
    ``IRREGULARS_REFERENCE`` with the incident's next notice. `NEVER`: it never will. Any other: it is tried again.
    `timeout_s`: Seconds after which it is killed, with all that it started.
    """

    def __init__(self, name: str, argv: Sequence[str], timeout_s: float = 30.0) -> None:
        self.name: Final = name
        self._argv, self._timeout_s = tuple(argv), timeout_s

    def deliver(self, notice: Notice) -> str | None:
        """Run it; see `Channel.deliver`."""
        body = written(encode_notice, notice) + b"\n"
        environment = {**os.environ, "IRREGULARS_REFERENCE": notice.reference or ""}
        try:
            process = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
        except OSError as error:
            raise NotArrived(f"command must be one that can be started; got {error.strerror}", 0.0) from error
        with process:
            try:
                output = process.communicate(body, timeout=self._timeout_s)[0]
            except subprocess.TimeoutExpired:
                # The whole group, since children may hold the pipe; it may have ended by itself just now. The rest of
                # the output is not read: a child that has left the group may hold the pipe for as long as it likes.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise SinkBusy(f"command must end within {self._timeout_s:g} s; it was killed", 0.0) from None
        if process.returncode == NEVER:
            raise SinkRejected(f"command must take the notice; got status {NEVER}: never")
        if process.returncode != 0:
            raise SinkBusy(f"command must end with status 0; got {process.returncode}", 0.0)
        lines = output.decode(errors="replace").splitlines()
        return lines[0].strip()[:_LONGEST_REFERENCE] or None if lines else None

    def close(self) -> None:
        """Nothing is held."""
