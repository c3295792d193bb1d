"""Tokens for SASL OAUTHBEARER, from a file that is renewed from outside, or from an OAuth 2.0 token endpoint."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from irregulars.errors import InputError, IrregularsError, ServiceRefused, ServiceUnavailable
from irregulars.private_files import read_secret

_ANSWER_S: Final = 10.0
# Of an endpoint's answer. A longer one is cut, and fails as JSON: no other side shall fill our memory.
_MOST_BYTES: Final = 64 * 1024
_UNSTATED_S: Final = 60.0
"""How long a token that does not say when it expires is used before it is read again, seconds."""

_USED_SHARE: Final = 0.8  # share of its life after which a token is renewed, as librdkafka does it
_TOLD_LATE_S: Final = 30.0
"""A log-in that failed with an expired token may be reported this long after a new one has come, seconds. librdkafka
asks for a token every 10 s, and reports failures when it is polled."""


class Token(NamedTuple):
    """A bearer token and when it expires, seconds since 1970."""

    text: str
    expires_s: float


class TokenSource:
    """Gives a token that is not used up yet; keeps one for most of its life. Usable from several threads.

    It is what librdkafka wants as ``oauth_cb``.

    `fetch`: `token_of_file` or `TokenEndpoint`.

    `trouble`: why the last question gave no token; `None` where it gave one, or none was asked for yet.
    """

    def __init__(self, fetch: Callable[[], Token]) -> None:
        self._fetch = fetch
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renew_s = 0.0
        self._missed_s = float("-inf")
        self._asking: threading.Thread | None = None
        self.trouble: IrregularsError | None = None

    def __call__(self, _config: str = "") -> tuple[str, float]:
        """Return a token and when it expires, as confluent-kafka expects; raises as `fetch` does."""
        with self._lock:
            now_s = time.time()
            if self._token is None or now_s >= self._renew_s:
                try:
                    token = self._fetch()
                except IrregularsError as error:
                    self.trouble = error
                    # Only then: an endpoint that refuses us makes a failed login final (`is_missed`).
                    if isinstance(error, ServiceUnavailable):
                        self._missed_s = time.monotonic()
                    raise
                self.trouble = None
                self._token = token
                self._renew_s = now_s + _USED_SHARE * (self._token.expires_s - now_s)
            return self._token.text, self._token.expires_s

    def look(self) -> bool:
        """Return whether a token is there; where none is, ask for one in the background. Never waits.

        Raises the error of the last question if it does not mend itself: `InputError` or `ServiceRefused`.
        """
        if self._token is not None and time.time() < self._renew_s:
            return True
        if self.trouble is not None and not isinstance(self.trouble, ServiceUnavailable):
            raise self.trouble
        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=self._ask_aside, name="irregulars-token", daemon=True)
            self._asking.start()
        return False

    def _ask_aside(self) -> None:
        with suppress(IrregularsError):  # `trouble` tells of it
            self()

    @property
    def is_missed(self) -> bool:
        """Whether the token endpoint did not answer, now or just before: a log-in that fails then is no refusal."""
        is_lately = time.monotonic() - self._missed_s < _TOLD_LATE_S
        return is_lately or isinstance(self.trouble, ServiceUnavailable)


def token_of_file(path: Path) -> Token:
    """Read a token; a JWT says itself when it expires; raises `InputError`."""
    text = read_secret(path, "kafka_token_file")
    now_s = time.time()
    expires_s = _expiry(text) or now_s + _UNSTATED_S
    if expires_s <= now_s:
        raise InputError(
            f"token in kafka_token_file must be valid; it expired {now_s - expires_s:.0f} s ago ({path})"
        )
    return Token(text, expires_s)


class TokenEndpoint:
    """Asks an OAuth 2.0 endpoint for tokens, by the client credentials grant (RFC 6749, section 4.4).

    The client's id and `secret` go into the header ``Authorization`` alone. `scope`: `None`: the endpoint's default.
    `ca_file`: authority that is trusted beside the system's.

    Raises `InputError` if `ca_file` can't be read.
    """

    def __init__(
        self, url: str, client: str, secret: str, scope: str | None = None, ca_file: Path | None = None
    ) -> None:
        # RFC 6749, section 2.3.1: both are form-encoded before they are joined, since they may hold a colon.
        quoted = ":".join(urllib.parse.quote_plus(part) for part in (client, secret))
        fields = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        self._url, self._client = url, client
        self._request = urllib.request.Request(
            url,
            data=urllib.parse.urlencode(fields).encode(),
            headers={"Authorization": "Basic " + base64.b64encode(quoted.encode()).decode()},
            method="POST",
        )
        context = ssl.create_default_context()
        if ca_file is not None:
            try:
                context.load_verify_locations(ca_file)
            except (OSError, ssl.SSLError) as error:
                raise InputError(f"kafka_ca_file must be a readable file in PEM; got {error} ({ca_file})") from None
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))

    def __call__(self) -> Token:
        """Fetch a token; raises `ServiceRefused` or `ServiceUnavailable`."""
        begun_s = time.time()
        try:
            with self._opener.open(self._request, timeout=_ANSWER_S) as answer:
                found = json.loads(answer.read(_MOST_BYTES))
            return Token(str(found["access_token"]), begun_s + float(found.get("expires_in", _UNSTATED_S)))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (400, 401, 403):
                raise ServiceRefused(
                    f"token endpoint must accept client {self._client!r}; got status {error.code} ({self._url}). "
                    "Check kafka_user, its secret and kafka_token_scope"
                ) from None
            raise self._unavailable(f"HTTP status {error.code}") from None
        except http.client.HTTPException:  # its text is chosen by the other side
            raise self._unavailable("no answer in HTTP") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = getattr(error, "reason", None) or "no answer with an access_token"
            raise self._unavailable(str(reason)) from None

    def _unavailable(self, reason: str) -> ServiceUnavailable:
        return ServiceUnavailable(f"token endpoint must answer with a token; got {reason} ({self._url})")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the secret would go along to its target."""

    def redirect_request(self, *_: Any) -> None:
        """Let the answer be an error."""


def _expiry(text: str) -> float | None:
    """Return the claim ``exp`` of a JWT; `None` where there is none. Its signature is the broker's to check.

    >>> _expiry("eyJhbGciOiJub25lIn0.eyJleHAiOjE3fQ.")
    17.0
    >>> _expiry("opaque")
    """
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        # JWTs leave the padding of base64 out, and Python's decoder asks for it.
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    # An opaque token with two dots, or a claim that is no number: used for `_UNSTATED_S`.
    except (ValueError, KeyError, TypeError):
        return None
