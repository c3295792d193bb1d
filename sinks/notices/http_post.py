"""POST a message over HTTP, with a time limit and without ever showing a secret.

URLs, headers and bodies may hold secrets (a Slack webhook's URL is one), and the texts of urllib3's errors quote
URLs. So errors name the channel's host at most, the kind of the failure, and the other side's answer, with all
secrets struck out.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import urllib3
from msgspec import Meta
from urllib3.util import Timeout

from irregulars.errors import InputError, SinkBusy, SinkRejected
from irregulars.printing import printable
from irregulars.sinks.notices.notice import AWAY_S, NotArrived
from irregulars.toml_tables import key

Secret = Callable[[], str]  # gives a secret each time that it is needed: a file that holds it may change while we run
LONGEST_WAIT_S: Final = 3600.0  # most seconds that another side can make us wait by ``Retry-After``

# Refusals that may pass: a secret is being exchanged (401, 403, 407), or it was too early or too much
_PASSING: Final = frozenset({401, 403, 407, 408, 425, 429})

# Answers that say nothing of the notice itself, but that none is taken now
_AWAY: Final = frozenset({*_PASSING, 502, 503, 504})

# Errors before anything was sent
_NOT_SENT: Final = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.SSLError,
    urllib3.exceptions.ProxyError,
)

_CREDENTIALS: Final = frozenset({401, 403, 407})
_CREDENTIALS_S: Final = 60.0
_SHOWN: Final = 200
_LONG: Final = 8  # characters from which on a piece of a URL may be a secret
_MOST_BYTES: Final = 64 * 1024


Url = Annotated[str, Meta(pattern=r"\Ahttps?://[^\s/@]+(/\S*)?\Z", description="http:// or https://, no credentials")]
TimeLimit = Annotated[float, Meta(ge=0.1, le=300)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Options of every channel over HTTP."""

    timeout_s: TimeLimit = key(10.0, "Seconds for connecting, and again for each part of the answer")
    ca_file: Path | None = key(None, "Certificate authority of the other side (PEM); else the system's")
    proxy: Url | None = key(None, "Proxy on the way there; variables of the environment are not asked")


class HttpChannel:
    """A channel that posts by `HttpPost`."""

    _http: HttpPost

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()


class HttpPost:
    """Posts to one URL.

    `secrets`: those that no error may hold. `is_url_secret`: of the URL no more than its host is named, and it must
    be https, except on this machine and without a proxy. Raises `InputError` if the URL, or a file that is named,
    can't be used.
    """

    def __init__(
        self, url: Secret, settings: HttpOptions | None = None, secrets: Collection[Secret] = (), *,
        is_url_secret: bool = False,
    ) -> None:  # fmt: skip
        settings = settings or HttpOptions()
        self._url, self._secrets, self._is_url_secret = url, tuple(secrets), is_url_secret
        self._must_be_safe: Final = bool(secrets) or is_url_secret
        self._has_proxy: Final = settings.proxy is not None
        self._timeout: Final = Timeout(connect=settings.timeout_s, read=settings.timeout_s)
        self._pool: Final = _pool(settings)
        self._checked_url()

    def post(self, body: bytes, headers: Mapping[str, str], path: str = "") -> bytes:
        """Send `body` and return the beginning of the answer to it, if it was taken.

        Raises `SinkBusy` if no answer comes, or the other side says that it can't take it now; `SinkRejected` if it
        says that it will never take it.
        """
        url = self._checked_url() + path
        host = urlsplit(url).netloc
        try:
            # No redirect, which would take secrets along; the answer unread, so that `read` bounds it.
            answer = self._pool.request(
                "POST", url, body=body, headers=dict(headers), timeout=self._timeout, retries=False, redirect=False,
                preload_content=False,
            )  # fmt: skip
            try:
                status, found = answer.status, answer.read(_MOST_BYTES)
            finally:
                answer.close()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            text = f"{host} must answer; got {_kind_of(error)}"
            kind = NotArrived if isinstance(error, _NOT_SENT) else SinkBusy
            raise kind(text, AWAY_S) from None  # the error's own text quotes the URL
        retry_after = answer.headers.get("Retry-After")
        if 200 <= status < 300:
            return found
        reason = self.rejection(f"{host} must accept; got status {status}", found)
        if status in _CREDENTIALS:
            raise NotArrived(reason, max(_CREDENTIALS_S, retry_after_s(retry_after)))
        wait_s = max(retry_after_s(retry_after), AWAY_S if status in _AWAY else 0.0)
        if status in _PASSING:
            raise NotArrived(reason, wait_s)
        if status >= 500:  # 503: it says so itself; a gateway knows nothing of what became of it
            raise (NotArrived if status == 503 else SinkBusy)(reason, wait_s)
        raise SinkRejected(reason)

    def rejection(self, what: str, said: bytes | str) -> str:
        """Return a reason that quotes the answer, without secrets."""
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        try:
            hidden = [secret() for secret in self._secrets] + (_parts(self._url()) if self._is_url_secret else [])
        except InputError:  # a file that is exchanged just now: its secret can't be struck out of the answer
            return what
        # The longest first: a piece that is struck out before would break the whole up, and show its rest.
        for one in sorted(hidden, key=len, reverse=True):
            text = text.replace(one, "***")
        return f"{what}; got {printable(text[:_SHOWN])!r}"

    def close(self) -> None:
        """Let go of the connections."""
        self._pool.clear()

    def _checked_url(self) -> str:
        url = self._url()
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise InputError("url must be http://host or https://host, without credentials; got another one")
        is_here = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if self._must_be_safe and parts.scheme == "http" and (self._has_proxy or not is_here):
            rule = "https where a secret is sent, except to this machine without a proxy"
            raise InputError(f"url must be {rule}; got http ({parts.hostname})")
        return url


def retry_after_s(text: str | None) -> float:
    """Read ``Retry-After``: seconds or a date; 0 where it is neither.

    >>> retry_after_s("120"), retry_after_s(None), retry_after_s("soon"), retry_after_s("1e9")
    (120.0, 0.0, 0.0, 0.0)
    """
    if text is None:
        return 0.0
    if text.strip().isascii() and text.strip().isdecimal():
        return min(float(text), LONGEST_WAIT_S)
    try:
        wait_s = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return 0.0
    return min(max(wait_s, 0.0), LONGEST_WAIT_S)


def _pool(settings: HttpOptions) -> urllib3.PoolManager:
    if settings.ca_file is not None and not settings.ca_file.is_file():
        raise InputError(f"ca_file must be a readable file; got none ({settings.ca_file})")
    try:
        context = ssl.create_default_context(cafile=None if settings.ca_file is None else str(settings.ca_file))
    except (ssl.SSLError, OSError) as error:
        raise InputError(f"ca_file must hold certificates (PEM); got {type(error).__name__}") from error
    if settings.proxy is None:
        return urllib3.PoolManager(ssl_context=context)
    return urllib3.ProxyManager(settings.proxy, ssl_context=context)


def _kind_of(error: BaseException) -> str:
    """Name a failure without its text; of TLS, why the certificate was not believed."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLCertVerificationError):
            return f"a certificate that is not trusted: {inner.verify_message}"
        argument = next((one for one in inner.args if isinstance(one, BaseException)), None)
        inner = inner.__cause__ or inner.__context__ or argument
    return type(error).__name__


def _parts(url: str) -> list[str]:
    """Return the secret parts of a URL: all behind the host, in whole and in pieces.

    >>> _parts("https://hooks.example/services/T012345678?a=1")
    ['/services/T012345678?a=1', '/services/T012345678', 'services', 'T012345678']
    """
    parts = urlsplit(url)
    behind = url.partition(parts.netloc)[2]
    pieces = [one for one in parts.path.split("/") if len(one) >= _LONG]
    return [one for one in (behind, parts.path, *pieces) if len(one) >= _LONG]
