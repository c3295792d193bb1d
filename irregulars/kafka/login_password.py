"""The password with which we log in to Kafka: it may be in a file that an operator replaces while we run.

Kafka asks for a password when a connection is made, and never again. So connections that are there outlast its
change, and those that are made later, after a broker's restart for example, need the new one. A client of librdkafka
has a copy of its own: one that `new_consumer` or `new_producer` made looks for a new one whenever it is used.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakSet

from confluent_kafka import Consumer, KafkaError, Producer

from irregulars.errors import InputError
from irregulars.private_files import read_secret

LOG: Final = logging.getLogger("irregulars.kafka")
KEY: Final = "sasl.password"  # where it stands among librdkafka's settings
LOOK_S: Final = 2.0
"""Between two looks into the file, seconds. It is one line; a login that is refused is tried again each second."""

# Least seconds between two lines about a refused login, which librdkafka tries again each second.
_TOLD_AGAIN_S: Final = 30.0
START_S: Final = 10.0
"""A refusal so soon after the start ends the process, with a line that says why: a second line would say it twice."""

_REFUSALS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})


class TakesPassword(Protocol):
    """A client that logs in with the password that it was given last."""

    def set_sasl_credentials(self, username: str, password: str, /) -> None:
        """Log in with these from the next connection on."""


class LoginPassword(str):
    """A password as it was when the settings were read, which is the text that librdkafka sees.

    Usable from several threads.

    `user`: whose it is.
    `path`: the file that holds it; `None`: it does not change.
    """

    user: str
    path: Path | None

    def __new__(cls, text: str, user: str, path: Path | None = None) -> LoginPassword:
        """Take a password that was read a moment ago."""
        made = super().__new__(cls, text)
        made.user, made.path = user, path
        made._newest = str(text)
        made._clients = WeakSet()
        made._lock = threading.Lock()
        made._looked_s = made._begun_s = time.monotonic()
        made._refused_s = made._told_s = float("-inf")
        made._reason = ""
        made._was_right = False
        return made

    _newest: str
    _clients: WeakSet[TakesPassword]
    _lock: threading.Lock
    _looked_s: float
    _begun_s: float
    _refused_s: float
    _told_s: float
    _reason: str
    _was_right: bool

    def __repr__(self) -> str:
        """Show nothing of it."""
        return "LoginPassword(…)"

    def newest(self) -> str:
        """Return the password in the file, as of `LOOK_S` ago; the one before, where the file can't be read."""
        if self.path is not None and time.monotonic() > self._looked_s + LOOK_S:
            self._look(self.path)
        return self._newest

    def follow(self, client: TakesPassword) -> None:
        """Give a client each new password that `newest` finds, as long as the client lives."""
        with self._lock:
            self._clients.add(client)

    def _look(self, path: Path) -> None:
        # First of all: meanwhile other threads go on with the password that is known.
        self._looked_s = time.monotonic()
        try:
            text = read_secret(path, "kafka_password_file")
        except InputError as error:  # it is being replaced, or it is gone: what we have may still do
            LOG.debug("event=password_unread reason=%r", str(error))
            return
        with self._lock:
            if text == self._newest:
                return
            self._newest, clients = text, list(self._clients)
        for client in clients:
            client.set_sasl_credentials(self.user, text)
        LOG.warning("event=password_read_again service=kafka user=%r file=%r", self.user, str(path))

    def note(self, error: KafkaError) -> None:
        """Log, now and then, that the broker refuses our login, if an error of librdkafka means that."""
        if not is_login_refusal(error):
            return
        self._refused_s, self._reason = time.monotonic(), f"{error.name()}: {error.str()}"
        if self._refused_s > max(self._told_s + _TOLD_AGAIN_S, self._begun_s + START_S):
            self._told_s = self._refused_s
            LOG.warning("event=login_refused service=kafka user=%r advice=%r reason=%r", self.user, self.advice,
                        self._reason)  # fmt: skip

    def refusal(self, within_s: float) -> str | None:
        """Return the broker's reason if it refused a login of ours within the last seconds, else None."""
        if time.monotonic() > self._refused_s + within_s:
            return None
        return f"it refused the login of {self.user!r} ({self._reason}); {self.advice}"

    @property
    def may_change(self) -> bool:
        """Whether a login that is refused now may be let in later: a file holds it, and it was right before."""
        return self.path is not None and self._was_right

    def note_right(self) -> None:
        """Note that a broker has let us in."""
        self._was_right = True

    @property
    def advice(self) -> str:
        """The next step for an operator after a refusal."""
        if self.path is None:
            return "the password is read at the start: set the right one, and start it again"
        return f"put the right password into {self.path}, which is read again every {LOOK_S:g} s"


def is_login_refusal(error: KafkaError) -> bool:
    """Whether an error of librdkafka means that the broker refuses our credentials."""
    return error.code() in _REFUSALS


def password_of(security: Mapping[str, Any]) -> LoginPassword | None:
    """Return the password among librdkafka's settings, if we log in with one."""
    found = security.get(KEY)
    return found if isinstance(found, LoginPassword) else None


def _following(base: type[Any], names: Sequence[str]) -> type[Any]:
    """Return a class of clients that look for a new password whenever one of these methods is called.

    By the thread that uses the client: confluent-kafka lets one thread at a time use a consumer, and whoever waits
    for a thread that polls without end may never have its turn.
    """

    def looking(name: str) -> Callable[..., Any]:
        method = getattr(base, name)

        def call(self: Any, *args: Any, **options: Any) -> Any:
            newest = self.password.newest()
            if newest != self.known:
                self.known = newest
                self.set_sasl_credentials(self.password.user, newest)
            return method(self, *args, **options)

        return call

    return type(f"Following{base.__name__}", (base,), {name: looking(name) for name in names})


_CONSUMER: Final = _following(
    Consumer, ("poll", "consume", "list_topics", "get_watermark_offsets", "offsets_for_times", "committed")
)
_PRODUCER: Final = _following(Producer, ("poll", "flush", "list_topics"))


def new_consumer(config: Mapping[str, Any]) -> Consumer:
    """Make a consumer, which logs in with the newest password; use it by one thread at a time."""
    made: Consumer = _made(Consumer, _CONSUMER, config)
    return made


def new_producer(config: Mapping[str, Any]) -> Producer:
    """Make a producer, which logs in with the newest password."""
    made: Producer = _made(Producer, _PRODUCER, config)
    return made


def _made(plain: type[Any], following: type[Any], config: Mapping[str, Any]) -> Any:
    own, password = current(config), password_of(config)
    if password is None or password.path is None:
        return plain(own)
    made = following(own)
    made.password, made.known = password, own[KEY]
    return made


def current(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's settings with the newest password, and with `LoginPassword.note` for each refused login."""
    password = password_of(config)
    if password is None:
        return dict(config)
    also: Callable[[KafkaError], object] | None = config.get("error_cb")

    def note(error: KafkaError) -> None:
        password.note(error)
        if also is not None:
            also(error)

    return {**config, KEY: password.newest(), "error_cb": note}
