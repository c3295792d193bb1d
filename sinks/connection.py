"""The connection to ClickHouse: settings, a bounded wait, and the client's errors as ours."""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import SplitResult, urlsplit

from irregulars.errors import InputError, ServiceRefused, ServiceUnavailable

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# ClickHouse error codes that mean "not you": read-only user, unknown user, wrong password, missing right
REFUSALS: Final = frozenset({164, 192, 193, 194, 497, 516})

# Those of them that mean the name or the password; a server of today says 516 for both
LOGIN_REFUSALS: Final = frozenset({192, 193, 194, 516})

LOG: Final = logging.getLogger("irregulars.database")
_UNKNOWN_DATABASE: Final = 81
_QUOTA_EXCEEDED: Final = 201

# ClickHouse error codes that blame the text of a query: syntax, unknown names, wrong types, missing parameters
_QUERY_ERRORS: Final = frozenset(
    {6, 10, 27, 36, 42, 43, 46, 47, 53, 60, 62, 63, 115, 179, 184, 207, 215, 386, 456, 457}
)

_READONLY: Final = 164
_NOT_GRANTED: Final = 497
# In ClickHouse's text to code 497: the right that was missing, if it is one to change something
_GRANT: Final = re.compile(r"have the grant (?!SELECT|SHOW|CLUSTER|READ)[A-Z]")

# Of ClickHouse's setting ``readonly``: nothing is written; settings of a query may be set, but not this one
_READING: Final = "2"

_PAUSE_S: Final = 0.25
_CONNECT_TIMEOUT_S: Final = 5


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Address and credentials of the database.

    Raises `InputError` if the URL is none of http or https, or holds credentials, or the database has no name, or
    there is an authority for a URL without TLS.
    """

    # ``http://host:port`` or ``https://host:port``, with a path where a proxy wants one, and without credentials:
    # addresses appear in texts
    url: str = "http://127.0.0.1:8123"
    # user, password: credentials; the password appears nowhere
    user: str = "default"
    password: str = field(default="", repr=False)
    database: str = "irregulars"  # name of the database; the sink creates it where it is missing
    wait_s: float = 30.0  # seconds to wait for the database to answer; 0: ask it once
    ca_file: Path | None = None  # certificate authority of a database over https (PEM); `None`: the system's
    # Tell the server to refuse whatever writes, also where the user might; it then takes no such setting back
    is_reading: bool = False
    answer_s: float = 60.0  # seconds that one request may take until its answer is there
    # Reads the password's file again: it may have been replaced. `None`: there is no file.
    read_password: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.username is not None or parts.password is not None:
            raise InputError("database url must hold no user or password; give them as settings of their own")
        if parts.scheme not in ("http", "https") or not parts.hostname or _port(parts) is None:
            raise InputError(f"database url must be http://host:port or https://host:port; got {self.url!r}")
        if self.ca_file is not None and parts.scheme != "https":
            raise InputError(f"clickhouse_url must be https://… where clickhouse_ca_file is set; got {self.url!r}")
        if not self.database:
            raise InputError("database must be a name; got an empty text")

    def with_new_password(self) -> DatabaseSettings | None:
        """Return the settings with the password that its file holds now; None: it is the same, or unreadable."""
        if self.read_password is None:
            return None
        try:
            password = self.read_password()
        except InputError as error:
            # It is being replaced, or gone: the old one may still do.
            LOG.debug("event=password_unread reason=%r", str(error))
            return None
        if password == self.password:
            return None
        LOG.warning("event=password_read_again service=database user=%r", self.user)
        return replace(self, password=password)

    @property
    def address(self) -> str:
        """The URL in the form that texts and logs show."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}:{_port(parts)}{parts.path.rstrip('/')}"


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port or (8443 if parts.scheme == "https" else 8123)
    except ValueError:
        return None


def connect(settings: DatabaseSettings, *, is_creating: bool = False) -> Client:
    """Wait for the database and return a client, usable from several threads at once.

    Proxies of the environment are not used: a database stands in one's own network. `is_creating`: create the
    database where it is missing. Raises `ServiceUnavailable` if it does not answer within ``settings.wait_s``;
    `ServiceRefused` if it refuses us, or has no database of that name and must not create it.
    """
    # It logs a traceback for each request that fails; whoever called says so in one line.
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
    pool = _pool(settings)
    try:
        _wait(pool, settings)
        return _logged_in(pool, settings, is_creating=is_creating)
    except BaseException:
        _drop(pool)
        raise


def _logged_in(pool: Any, settings: DatabaseSettings, *, is_creating: bool) -> Client:
    import clickhouse_connect

    with translated(settings):
        parts = urlsplit(settings.url)
        client: Client = clickhouse_connect.get_client(
            interface=parts.scheme,
            host=parts.hostname,
            port=_port(parts),
            username=settings.user,
            password=settings.password,
            proxy_path=parts.path,
            pool_mgr=pool,
            connect_timeout=_CONNECT_TIMEOUT_S,
            send_receive_timeout=settings.answer_s,
            client_name="irregulars",
            autogenerate_session_id=False,  # a session would serialise what several threads send
            show_clickhouse_errors="scrub",
        )
        if settings.is_reading:
            # A user whose profile says readonly (1 or 2) may not set it, not even to what it is.
            known = client.server_settings.get("readonly")
            if known is None or known.value == "0":
                client.set_client_setting("readonly", _READING)
        named = {"name": settings.database}
        # Asked first, so that a user without the right to create databases can use one that exists.
        has_database = client.command("EXISTS DATABASE {name:Identifier}", parameters=named)
        if is_creating and not has_database:
            client.command("CREATE DATABASE IF NOT EXISTS {name:Identifier}", parameters=named)
        elif not has_database:
            raise ServiceRefused(
                f"database must exist; got none named {settings.database!r} ({settings.address}). "
                "Start a worker on it, which creates it, or name another"
            )
        client.database = settings.database
    return client


def disconnect(client: Client) -> None:
    """Close a client of `connect`, and its connections, which it leaves open by itself: the pool is ours."""
    client.close()
    _drop(cast(Any, client).http)


def _drop(pool: Any) -> None:
    from clickhouse_connect.driver.httputil import all_managers

    # The library keeps each pool in it until the process ends, and with it the sockets: one for each failed try.
    all_managers.pop(pool, None)
    pool.clear()


def _pool(settings: DatabaseSettings) -> Any:
    from clickhouse_connect.driver.httputil import get_pool_manager

    if settings.ca_file is None:
        return get_pool_manager()
    try:
        ssl.create_default_context(cafile=settings.ca_file)  # urllib3 reads it at the first connection only
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"clickhouse_ca_file must be a readable file in PEM; got {error} ({settings.ca_file})"
        ) from None
    return get_pool_manager(ca_cert=str(settings.ca_file))


def _wait(pool: Any, settings: DatabaseSettings) -> None:
    # We ask /ping ourselves: the client library logs a warning for each failed attempt.
    from urllib3.exceptions import HTTPError

    deadline = time.monotonic() + settings.wait_s
    while True:
        try:
            status = pool.request("GET", settings.address + "/ping", timeout=_CONNECT_TIMEOUT_S, retries=False).status
            if status == 200:
                return
            reason = f"HTTP status {status} for /ping"
        except HTTPError as error:
            reason = reason_of(error)
        if time.monotonic() + _PAUSE_S > deadline:
            within = f" within {settings.wait_s:g} s" if settings.wait_s else ""
            raise ServiceUnavailable(
                f"database must answer{within}; got {reason} ({settings.address}). Is ClickHouse running there?"
            )
        time.sleep(_PAUSE_S)


@contextmanager
def connected(settings: DatabaseSettings, *, is_creating: bool = False) -> Iterator[Client]:
    """Give a client for one block, whose errors become ours; see `connect` and `translated`."""
    client = connect(settings, is_creating=is_creating)
    try:
        with translated(settings):
            yield client
    finally:
        disconnect(client)


@contextmanager
def translated(settings: DatabaseSettings) -> Iterator[None]:
    """Turn the client library's errors into ours.

    Raises `ServiceRefused` for wrong credentials, missing rights and unknown databases; `InputError` for a query that
    the database does not understand, and one that writes where we only read; `ServiceUnavailable` for a quota that is
    spent, and everything else that goes wrong between us and the database.
    """
    from clickhouse_connect.driver.exceptions import ClickHouseError

    try:
        yield
    except ClickHouseError as error:
        code, reason = getattr(error, "code", None), reason_of(error)
        # Before `REFUSALS`, which holds both codes: here the query is at fault, not the credentials.
        if settings.is_reading and (code == _READONLY or (code == _NOT_GRANTED and _GRANT.search(reason))):
            raise InputError(
                f"query must only read; got {reason}. `irregulars sql --write` lets it change what its user may"
            ) from error
        if code in REFUSALS:
            raise ServiceRefused(
                f"database must accept user {settings.user!r}; got {reason} ({settings.address}). "
                "Check user, password and rights"
            ) from error
        if code == _UNKNOWN_DATABASE:
            raise ServiceRefused(f"database must exist; got {reason} ({settings.address})") from error
        if code == _QUOTA_EXCEEDED:
            raise ServiceUnavailable(
                f"user {settings.user!r} must keep within its quota; got {reason} ({settings.address}). "
                "Ask again when the interval is over"
            ) from error
        if code in _QUERY_ERRORS:
            raise InputError(f"query must be SQL that the database understands; got {reason}") from error
        raise ServiceUnavailable(f"database must answer; got {reason} ({settings.address})") from error


def reason_of(error: BaseException) -> str:
    """Return an error's reason in one line, without ClickHouse's advice and the client's HTTP details."""
    text = _first_line(error)
    code = getattr(error, "code", None)
    _, found, message = text.partition("DB::Exception: ")
    if found:
        return f"{message} (ClickHouse code {code})"
    if error.__cause__ is None:
        return text
    # Of a broken connection the client gives no detail; urllib3's error, its cause, has all of them.
    said = _first_line(getattr(error.__cause__, "reason", None) or error.__cause__)
    return text if said in text else f"{text}: {said}"


_OBJECT: Final = re.compile(r"HTTPS?Connection(?:Pool)?\([^)]*\): |<[\w.]+ object at 0x[0-9a-f]+>:? ?")


def _first_line(error: object) -> str:
    """Return the first line of an error's text, without the objects of Python that urllib3 names in it."""
    lines = str(error).strip().splitlines()
    return _OBJECT.sub("", lines[0]).strip() if lines else type(error).__name__
