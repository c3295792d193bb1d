"""A generic webhook: the notice as JSON, signed where there is a key."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from typing import Final

from irregulars.sinks.notices.channels.http_post import HttpPost, HttpSettings, Secret
from irregulars.sinks.notices.notice import Notice, encode_notice, written

SIGNATURE: Final = "Irregulars-Signature"
TIMESTAMP: Final = "Irregulars-Timestamp"


class WebhookChannel:
    """Posts each notice to a URL.

    Every request has ``Idempotency-Key``, the same for the same notice. With a key it has `TIMESTAMP` (seconds since
    the epoch) and `SIGNATURE`, ``sha256=`` and the HMAC of the timestamp, a dot and the body, in hexadecimal digits:
    a receiver that refuses old timestamps can't be fooled with an old request.

    Parameters
    ----------
    token, key
        Give a bearer token, and the key of the signature; None: none is sent, nothing is signed.
    is_url_secret
        Whether the URL must stand in no error.
    now
        The time, seconds since the epoch.
    """

    def __init__(
        self,
        name: str,
        url: Secret,
        settings: HttpSettings | None = None,
        token: Secret | None = None,
        key: Secret | None = None,
        *,
        is_url_secret: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.name: Final = name
        self._token, self._key, self._now = token, key, now
        secrets = [one for one in (token, key) if one is not None]
        self._http: Final = HttpPost(url, settings, secrets, is_url_secret=is_url_secret)

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

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()


def signature_headers(body: bytes, key: str, time_s: int) -> dict[str, str]:
    """Return the two headers of a signed request.

    >>> signature_headers(b"{}", "key", 1)["Irregulars-Signature"][:20]
    'sha256=1ba6b8171186e'
    """
    digest = hmac.new(key.encode(), f"{time_s}.".encode() + body, hashlib.sha256).hexdigest()
    return {TIMESTAMP: str(time_s), SIGNATURE: f"sha256={digest}"}
