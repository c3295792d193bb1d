"""The token that lets people in, and the cookie that remembers them. Pure: secrets and times are passed in.

A cookie is signed with a key that is made from the token. Nothing is kept: after a restart with the same token file
people stay logged in, and a new token ends all sessions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

SESSION_S: Final = 12 * 3600
"""How long a login lasts, s: a shift."""

MOST_NAME: Final = 100
_VERSION: Final = "1"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who may look.

    Parameters
    ----------
    name
        Who it is; empty: somebody with the token, who gave no name.
    is_sure
        Whether a proxy says so. A name beside a token is what somebody calls themselves.
    csrf
        What a form must bring back, so that no other site can send it.
    """

    name: str
    is_sure: bool
    csrf: str


class Sessions:
    """Knows the token, and makes and reads cookies.

    Parameters
    ----------
    token
        The secret that lets people in.
    """

    def __init__(self, token: str) -> None:
        self._token: Final = _digest(token.encode())
        self._key: Final = hmac.digest(token.encode(), b"irregulars console session", "sha256")

    def lets_in(self, token: str) -> bool:
        """Return whether a token is ours; takes equally long whatever it is."""
        return hmac.compare_digest(self._token, _digest(token.encode(errors="replace")))

    def cookie(self, name: str, now_s: float) -> str:
        """Return the cookie of somebody who was let in."""
        body = f"{_VERSION}.{int(now_s) + SESSION_S}.{_packed(name[:MOST_NAME])}"
        return f"{body}.{self._signed('cookie', body)}"

    def visitor(self, cookie: str, now_s: float) -> Visitor | None:
        """Return who a cookie is of; None: it is not ours, or its time is over."""
        body, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._signed("cookie", body).encode(), signature.encode(errors="replace")):
            return None
        version, until_s, name = body.split(".")
        if version != _VERSION or int(until_s) <= now_s:
            return None
        return Visitor(_unpacked(name), is_sure=False, csrf=self._signed("form", cookie))

    def known_by_proxy(self, name: str) -> Visitor:
        """Return the visitor that a proxy names. Nobody else can make the form's word: it needs our key."""
        return Visitor(name[:MOST_NAME], is_sure=True, csrf=self._signed("proxy", name))

    def _signed(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\0{text}".encode(errors="replace"), "sha256").hexdigest()


def same_word(one: str, other: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace"))


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _packed(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode(errors="replace")).decode().rstrip("=")


def _unpacked(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode(errors="replace")
    except binascii.Error:
        return ""
