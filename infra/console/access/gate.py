"""What stands before every page: headers for browsers, the check of ``Host``, and who may pass. Plain ASGI."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from irregulars.infra.console.access.addresses import is_in, is_known_host, sender_of
from irregulars.infra.console.access.policy import SECRET_HEADER, AccessPolicy
from irregulars.infra.console.access.sessions import Sessions, Visitor, same_word

OPEN: Final = ("/healthz", "/metrics")
"""Pages for machines. They tell nothing of jobs and change nothing: they need no login, and are answered under any
name, as Prometheus may use a pod's address or a name inside a cluster that nobody would think of setting."""

CONTENT_POLICY: Final = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data: blob:",
        "connect-src 'self'", "font-src 'self'", "manifest-src 'self'", "worker-src 'self'", "form-action 'self'",
        "base-uri 'none'", "frame-ancestors 'none'",
    )
)  # fmt: skip
"""A browser loads and runs nothing but our own files: a job's name that got through as HTML would stay text."""

_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_READING: Final = ("GET", "HEAD")


class Gate:
    """Lets a request pass to the pages, or answers it itself.

    Parameters
    ----------
    app
        The pages.
    policy, sessions
        Who gets in.
    clock
        Seconds since the epoch.
    """

    def __init__(
        self, app: ASGIApp, policy: AccessPolicy, sessions: Sessions, clock: Callable[[], float] = time.time
    ) -> None:
        self._app: Final = app
        self._policy: Final = policy
        self._sessions: Final = sessions
        self._clock: Final = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        answer = None if path_of(request) in OPEN else self._refusal(request)
        await (answer or self._app)(scope, receive, self._with_headers(send, request))

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request that must not pass; None: it may."""
        if not is_known_host(request.headers.get("host", ""), self._policy.names):
            return PlainTextResponse(
                "This console does not know the name by which you reach it. Is it right? Add it to console_hosts.\n",
                421,
            )
        if request.method not in _READING and not is_from_here(request.headers):
            return PlainTextResponse("This request comes from another site.\n", 403)
        request.scope["visitor"] = visitor = self._visitor(request)
        if visitor is not None or path_of(request) == "/login" or path_of(request).startswith("/static/"):
            return None
        return self._to_login(request)

    def _visitor(self, request: Request) -> Visitor | None:
        policy = self._policy
        if policy.user_header is not None and is_from_proxy(request, policy):
            names = request.headers.getlist(policy.user_header)
            if len(names) == 1 and names[0].strip():  # two say that the proxy lets one of its clients' through
                return self._sessions.known_by_proxy(_as_utf8(names[0].strip()))
        cookie = request.cookies.get(policy.cookie)
        if policy.token is None or cookie is None:
            return None
        return self._sessions.visitor(cookie, self._clock())

    def _to_login(self, request: Request) -> Response:
        is_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
        if not is_page or "x-live" in request.headers:
            return PlainTextResponse("Log in first.\n", 401)
        wanted = quote(path_of(request)) + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse("/login" if wanted == "/" else f"/login?next={quote(wanted, safe='')}", 303)

    def _with_headers(self, send: Send, request: Request) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                if self._policy.is_encrypted:
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
            await send(message)

        return send_with_headers


def address_of(connection: HTTPConnection) -> str:
    """Return the address from which a connection comes; empty: it has none."""
    return connection.client.host if connection.client is not None else ""


def is_from_proxy(connection: HTTPConnection, policy: AccessPolicy) -> bool:
    """Return whether a request comes from a believed proxy: by its address, and by its secret if one is set."""
    if not is_in(address_of(connection), policy.proxies):
        return False
    told = connection.headers.getlist(SECRET_HEADER)
    return policy.proxy_secret is None or (len(told) == 1 and same_word(told[0], policy.proxy_secret))


def visitor_address(connection: HTTPConnection, policy: AccessPolicy) -> str:
    """Return the address of who asks, behind the proxies that are believed."""
    peer = address_of(connection)
    if not is_from_proxy(connection, policy):
        return peer
    return sender_of(peer, connection.headers.getlist("x-forwarded-for"), policy.proxies)


def path_of(request: HTTPConnection) -> str:
    """Return the path by which a page is found. `Request.url` won't do: ``Host`` goes into it, unchecked."""
    path: str = request.scope["path"]
    return path


def _as_utf8(header: str) -> str:
    """Return a header's text as proxies mean it, where ASGI gives one character a byte."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        return header


def is_from_here(headers: Headers) -> bool:
    """Return whether a request that changes something was sent by a page of ours; programs send neither header."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:  # browsers know better than we do: a proxy may have changed Host
        return site in ("same-origin", "none")
    return origin is None or (origin != "null" and _host_of(origin) == headers.get("host", ""))


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # no address at all
        return None


def own_path(wanted: str) -> str:
    r"""Return a path of ours to go on to after a login; of anything else the first page.

    >>> own_path("/jobs/a?attempt=1"), own_path("//evil.example"), own_path("/\\evil.example"), own_path("https://x")
    ('/jobs/a?attempt=1', '/', '/', '/')
    """
    is_ours = wanted.startswith("/") and wanted[1:2] not in ("/", "\\") and wanted.isprintable()
    return wanted if is_ours else "/"
