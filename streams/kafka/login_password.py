"""The password with which we log in to Kafka: it may stand in a file that somebody replaces while we run.

Kafka asks for a password when a connection is made, and never again. So connections that are there outlast its
change, and those that are made later, after a broker's restart for example, need the new one. A client of librdkafka
has a copy of its own: whoever makes one with `new_consumer` or `new_producer` has it told of a new password.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakSet

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from irregulars.errors import InputError
from irregulars.secret_files import read_secret

LOG: Final = logging.getLogger("irregulars.kafka")
KEY: Final = "sasl.password"
"""Where it stands among librdkafka's settings."""

LOOK_S: Final = 2.0
"""Between two looks into the file, seconds. It is one line; a login that is refused is tried again each second."""

_TOLD_AGAIN_S: Final = 30.0
_REFUSALS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})


class TakesPassword(Protocol):
    """A client that logs in with the password that it was told last."""

    def set_sasl_credentials(self, username: str, password: str, /) -> None:
        """Log in with these from the next connection on."""


class LoginPassword(str):
    """A password as it was when the settings were read: what librdkafka and aiokafka take it for.

    Usable from several threads.

    Attributes
    ----------
    user
        Whose it is.
    path
        The file that holds it; `None`: it does not change.
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
        made._is_following = False
        made._refused_s = made._told_s = float("-inf")
        made._reason = ""
        return made

    _newest: str
    _clients: WeakSet[TakesPassword]
    _lock: threading.Lock
    _is_following: bool
    _refused_s: float
    _told_s: float
    _reason: str

    def __repr__(self) -> str:
        """Show nothing of it."""
        return "LoginPassword(…)"

    def newest(self) -> str:
        """Return what the file holds now; what it held before, where it can't be read."""
        self.look()
        return self._newest

    def follow(self, client: TakesPassword) -> None:
        """Tell a client of each new password, as long as it lives."""
        if self.path is None:
            return
        with self._lock:
            self._clients.add(client)
            if not self._is_following:
                self._is_following = True
                threading.Thread(target=self._watch, name="irregulars-password", daemon=True).start()

    def look(self) -> None:
        """Read the file, and tell all clients if it holds another password than before."""
        if self.path is None:
            return
        try:
            text = read_secret(self.path, "kafka_password_file")
        except InputError as error:  # it is being replaced, or it is gone: what we have may still do
            LOG.debug("event=password_unread reason=%r", str(error))
            return
        with self._lock:
            if text == self._newest:
                return
            self._newest, clients = text, list(self._clients)
        for client in clients:
            self._tell(client)
        LOG.warning("event=password_read_again service=kafka user=%r file=%r", self.user, str(self.path))

    def note(self, error: KafkaError) -> None:
        """Say, now and then, that the broker refuses our login, if that is what an error of librdkafka means."""
        if not is_login_refusal(error):
            return
        self._refused_s, self._reason = time.monotonic(), f"{error.name()}: {error.str()}"
        if self._refused_s > self._told_s + _TOLD_AGAIN_S:
            self._told_s = self._refused_s
            LOG.warning("event=login_refused service=kafka user=%r advice=%r reason=%r", self.user, self.advice,
                        self._reason)  # fmt: skip

    def refusal(self, within_s: float) -> str | None:
        """Return what the broker said if it refused a login of ours within the last seconds, else None."""
        if time.monotonic() > self._refused_s + within_s:
            return None
        return f"it refused the login of {self.user!r} ({self._reason}); {self.advice}"

    @property
    def advice(self) -> str:
        """What to do about a refusal."""
        if self.path is None:
            return "the password is read at the start: set the right one, and start it again"
        return f"put the right password into {self.path}, which is read again every {LOOK_S:g} s"

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                if not self._clients:
                    self._is_following = False
                    return
            self.look()

    def _tell(self, client: TakesPassword) -> None:
        try:
            client.set_sasl_credentials(self.user, self._newest)
        except (RuntimeError, KafkaException) as error:  # it was closed meanwhile
            LOG.debug("event=password_not_told reason=%r", str(error))


def is_login_refusal(error: KafkaError) -> bool:
    """Whether an error of librdkafka means that the broker refuses who we say that we are."""
    return error.code() in _REFUSALS


def password_of(security: Mapping[str, Any]) -> LoginPassword | None:
    """Return the password among librdkafka's settings, if we log in with one."""
    found = security.get(KEY)
    return found if isinstance(found, LoginPassword) else None


class _Consumer(Consumer):
    """As its base, and it can be referred to weakly."""


class _Producer(Producer):
    """As its base, and it can be referred to weakly."""


def new_consumer(config: Mapping[str, Any]) -> Consumer:
    """Make a consumer, which is told of a new password."""
    made = _Consumer(current(config))
    _follow(made, config)
    return made


def new_producer(config: Mapping[str, Any]) -> Producer:
    """Make a producer, which is told of a new password."""
    made = _Producer(current(config))
    _follow(made, config)
    return made


def current(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's settings with the newest password, and with word to us of a login that is refused."""
    password = password_of(config)
    if password is None:
        return dict(config)
    return {**config, KEY: password.newest(), "error_cb": _noting(password, config.get("error_cb"))}


def _noting(password: LoginPassword, also: Callable[[KafkaError], object] | None) -> Callable[[KafkaError], object]:
    def note(error: KafkaError) -> None:
        password.note(error)
        if also is not None:
            also(error)

    return note


def _follow(client: Any, config: Mapping[str, Any]) -> None:
    password = password_of(config)
    if password is not None:
        password.follow(client)
