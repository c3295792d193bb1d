"""Access to the console: token, cookies, a proxy that names people, names of hosts, and headers that bind browsers.

Beyond loopback the console refuses to listen without TLS, a proxy that logs people in, or ``console_plain_http``.
Limits on connections and on guesses are a proxy's; the token's length keeps guesses away.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from irregulars.errors import InputError
from irregulars.private_files import read_secret

Network = IPv4Network | IPv6Network

LEAST_TOKEN: Final = 16  # least length of a token or secret in a file: shorter ones can be guessed
SECRET_HEADER: Final = "X-Proxy-Secret"  # header in which a proxy shows that it is one, where `proxy_secret` is set
SESSION_S: Final = 12 * 3600  # how long a login lasts, s: a shift
MOST_NAME: Final = 100
# 192 random bits, which nobody guesses: tries need no limit.
_TOKEN_BYTES: Final = 24
_VERSION: Final = "1"

# Pages for machines. They hold nothing of jobs and change nothing: they need no login, and are answered under any
# name, as Prometheus may use a pod's address or a name inside a cluster that is in no setting.
OPEN: Final = ("/healthz", "/metrics")

# A browser loads and runs nothing but our own files: a job's name that got through as HTML would stay text
CONTENT_POLICY: Final = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data: blob:",
        "connect-src 'self'", "font-src 'self'", "manifest-src 'self'", "worker-src 'self'", "form-action 'self'",
        "base-uri 'none'", "frame-ancestors 'none'",
    )
)  # fmt: skip

_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_READING: Final = ("GET", "HEAD")


# --- settings -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Who gets in."""

    token: str | None = field(repr=False)  # lets people in; None: only proxies do
    secret: str = field(repr=False)  # signs cookies and forms: the token where there is one
    user_header: str | None = None  # in which proxies name people; None: they do not
    proxies: tuple[Network, ...] = ()  # whose `user_header` is believed
    proxy_secret: str | None = field(default=None, repr=False)  # in `SECRET_HEADER`; None: the address is enough
    names: frozenset[str] = frozenset()  # by which browsers may reach us, beside addresses
    port: int = 0
    is_encrypted: bool = False  # by TLS of our own

    @property
    def cookie(self) -> str:
        """Name of the cookie. It holds the port: browsers give the cookies of one host to all its ports."""
        return f"irregulars_console_{self.port}"


def make_policy(
    listen: tuple[str, int],
    *,
    token_file: Path | None = None,
    user_header: str | None = None,
    proxies: Sequence[str] = (),
    proxy_secret_file: Path | None = None,
    names: Sequence[str] = (),
    is_encrypted: bool = False,
    takes_plain: bool = False,
) -> AccessPolicy:
    """Return the policy for the settings.

    Without a `token_file` the token is a random one, unless a proxy names people; `takes_plain`: others may reach us
    unencrypted. Raises `InputError` if the settings would admit others than the intended users, or send secrets so.
    """
    networks = parse_networks(proxies)
    if not networks and (user_header is not None or proxy_secret_file is not None):
        raise InputError(
            "console_user_header and console_proxy_secret_file must be set together with console_proxies; got no "
            "proxy. Who can send the header from elsewhere could be anybody"
        )
    if not (is_loopback(listen[0]) or is_encrypted or user_header or takes_plain):
        raise InputError(
            f"console_listen must be on this machine alone where nothing is encrypted; got {listen[0]!r}. Set "
            "console_certificate_file and console_key_file, or a proxy (console_user_header, console_proxies), or "
            "say console_plain_http=true if the network in between is yours alone"
        )
    token = None
    if token_file is not None:
        token = _secret(token_file, "console_token_file")
    elif user_header is None:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
    proxy_secret = None if proxy_secret_file is None else _secret(proxy_secret_file, "console_proxy_secret_file")
    own = {"localhost", socket.gethostname().lower(), listen[0].lower()}
    known = frozenset(own | {name.lower() for name in names})
    # Forms are signed even where only a proxy admits people: then with a random key.
    secret = token or secrets.token_urlsafe(_TOKEN_BYTES)
    return AccessPolicy(token, secret, user_header, networks, proxy_secret, known, listen[1], is_encrypted)


def _secret(path: Path, name: str) -> str:
    secret = read_secret(path, name)
    if len(secret) < LEAST_TOKEN:
        raise InputError(f"{name} must hold at least {LEAST_TOKEN} signs; got {len(secret)} ({path})")
    return secret


def is_open_to_others(path: Path) -> bool:
    """Return whether others on this machine may read a file."""
    return bool(path.stat().st_mode & 0o077)


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Read addresses and networks of proxies.

    >>> parse_networks(["10.0.0.7", "fd00::/8"])
    (IPv4Network('10.0.0.7/32'), IPv6Network('fd00::/8'))

    Raises `InputError` if one is neither, or has bits behind its prefix, or is everybody.
    """
    try:
        networks = tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise InputError(f"console_proxies must be addresses or networks like 10.0.0.0/8; got {error}") from None
    everybody = [str(one) for one in networks if one.prefixlen == 0]
    if everybody:
        raise InputError(
            f"console_proxies must be networks that hold the proxies and few others; got {everybody[0]}, which is "
            "everybody: whoever sends the header could be anybody"
        )
    return networks


def has_loopback(networks: Sequence[Network]) -> bool:
    """Return whether programs of this machine can send from an address of these networks.

    >>> has_loopback(parse_networks(["127.0.0.1"])), has_loopback(parse_networks(["10.0.0.0/8"]))
    (True, False)
    """
    own = parse_networks(["127.0.0.0/8", "::1"])
    return any(one.version == other.version and one.overlaps(other) for one in networks for other in own)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address that is listened on.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    found = _parsed(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def is_known_host(header: str, names: Collection[str]) -> bool:
    """Return whether a browser that sends this ``Host`` header may be answered.

    A page of another site can point its own name at our address (DNS rebinding) and then read our pages as its own.
    The browser still sends the other site's name here. Addresses are safe: no site has one as its name.

    >>> is_known_host("127.0.0.1:8321", ()), is_known_host("evil.example", {"localhost"}), is_known_host("", ())
    (True, False, False)
    >>> is_known_host("[::1]:8321", ()), is_known_host("Console.Example:8321", {"console.example"})
    (True, True)
    """
    name = header.strip().lower()
    host = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
    return host in names or _parsed(host) is not None


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    # A socket for both families shows IPv4 clients as ::ffff:10.0.0.7, and settings name them as 10.0.0.7.
    return getattr(found, "ipv4_mapped", None) or found


# --- cookies --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Visitor:
    """A person who may read the console."""

    name: str  # empty: a person with the token who gave no name
    is_sure: bool  # a proxy names them; a name beside a token is not checked
    csrf: str  # a form must bring it back, so that no other site can send it


class Sessions:
    """Makes and reads cookies.

    A cookie is signed with a key that is made from the token. Nothing is kept: after a restart with the same token
    people stay logged in, and a new token ends all sessions.
    """

    def __init__(self, token: str) -> None:
        self._key: Final = hmac.digest(token.encode(), b"irregulars console session", "sha256")

    def cookie(self, name: str, now_s: float) -> str:
        """Return the cookie of a person who was let in."""
        packed = base64.urlsafe_b64encode(name[:MOST_NAME].encode(errors="replace")).decode().rstrip("=")
        body = f"{_VERSION}.{int(now_s) + SESSION_S}.{packed}"
        return f"{body}.{self._signed('cookie', body)}"

    def visitor(self, cookie: str, now_s: float) -> Visitor | None:
        """Return whose a cookie is; None: it is not ours, or its time is over."""
        body, _, signature = cookie.rpartition(".")
        if not same_word(self._signed("cookie", body), signature):
            return None
        # The signature is ours, and so the body has its three parts, as `cookie` made them.
        version, until_s, packed = body.split(".")
        if version != _VERSION or int(until_s) <= now_s:
            return None
        name = base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)).decode()
        return Visitor(name, is_sure=False, csrf=self._signed("form", cookie))

    def known_by_proxy(self, name: str) -> Visitor:
        """Return the visitor that a proxy names. Only we can make the form's word: it needs our key."""
        return Visitor(name[:MOST_NAME], is_sure=True, csrf=self._signed("proxy", name))

    def _signed(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\0{text}".encode(errors="replace"), "sha256").hexdigest()


def same_word(one: str, other: str) -> bool:
    """Compare two secrets in a time that depends on neither, nor on their lengths."""
    digests = (hashlib.sha256(text.encode(errors="replace")).digest() for text in (one, other))
    return hmac.compare_digest(*digests)


# --- requests -------------------------------------------------------------------------------------------------------


class Gate:
    """Lets a request pass to the pages, or answers it itself. Plain ASGI."""

    def __init__(self, app: ASGIApp, policy: AccessPolicy, sessions: Sessions) -> None:
        self._app: Final = app
        self._policy: Final = policy
        self._sessions: Final = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        # Start and end of the application; websockets are switched off.
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if self._policy.is_encrypted:
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
            await send(message)

        request = Request(scope)
        answer = None if path_of(request) in OPEN else self._refusal(request)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that must not pass; None: it may."""
        # First of all: under a strange name the browser may act for another site, with cookies or without.
        if not is_known_host(request.headers.get("host", ""), self._policy.names):
            return PlainTextResponse(
                "This console does not know the name by which you reach it. Is it right? Add it to console_hosts.\n",
                421,
            )
        if request.method not in _READING and not is_from_here(request.headers):
            return PlainTextResponse("This request comes from another site.\n", 403)
        request.scope["visitor"] = visitor = self._visitor(request)
        # The form and its files are for visitors who have not logged in yet.
        if visitor is not None or path_of(request) == "/login" or path_of(request).startswith("/static/"):
            return None
        is_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if not is_page or "x-live" in request.headers:
            # A script, or a part of a page, has no use for the redirect to a form.
            return PlainTextResponse("Log in first.\n", 401)
        wanted = quote(path_of(request)) + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse("/login" if wanted == "/" else f"/login?next={quote(wanted, safe='')}", 303)

    def _visitor(self, request: Request) -> Visitor | None:
        policy = self._policy
        if policy.user_header is not None and is_from_proxy(request, policy):
            names = request.headers.getlist(policy.user_header)
            if len(names) == 1 and names[0].strip():  # two show that the proxy lets one of its clients' through
                name = names[0].strip()
                with suppress(UnicodeError):  # ASGI gives one character a byte, and proxies mean UTF-8
                    name = name.encode("latin-1").decode()
                return self._sessions.known_by_proxy(name)
        cookie = request.cookies.get(policy.cookie)
        if policy.token is None or cookie is None:
            return None
        return self._sessions.visitor(cookie, time.time())


def address_of(connection: HTTPConnection) -> str:
    """Return the address from which a connection comes; empty: it has none."""
    return connection.client.host if connection.client is not None else ""


def is_from_proxy(connection: HTTPConnection, policy: AccessPolicy) -> bool:
    """Return whether a request comes from a believed proxy: by its address, and by its secret if one is set."""
    address = _parsed(address_of(connection))
    if address is None or not any(address in network for network in policy.proxies):
        return False
    # Exactly one: of two headers the first may be the client's own, which the proxy passed on.
    given = connection.headers.getlist(SECRET_HEADER)
    return policy.proxy_secret is None or (len(given) == 1 and same_word(given[0], policy.proxy_secret))


def path_of(request: HTTPConnection) -> str:
    """Return the path by which a page is found. `Request.url` won't do: ``Host`` goes into it, unchecked."""
    path: str = request.scope["path"]
    return path


def is_from_here(headers: Headers) -> bool:
    """Return whether a request that changes something was sent by a page of ours; programs send neither header."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:  # browsers know better than we do: a proxy may have changed Host
        return site in ("same-origin", "none")
    if origin is None:
        return True
    try:
        return origin != "null" and urlsplit(origin).netloc == headers.get("host", "")
    except ValueError:  # no address at all
        return False


def own_path(wanted: str) -> str:
    r"""Return a path of ours to go on to after a login; of anything else the first page.

    >>> own_path("/jobs/a?attempt=1"), own_path("//evil.example"), own_path("/\\evil.example"), own_path("https://x")
    ('/jobs/a?attempt=1', '/', '/', '/')
    """
    is_ours = wanted.startswith("/") and wanted[1:2] not in ("/", "\\") and wanted.isprintable()
    return wanted if is_ours else "/"
