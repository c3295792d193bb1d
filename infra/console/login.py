"""The way in and out."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from irregulars.infra.console.access import SESSION_S, AccessPolicy, Sessions, address_of, own_path
from irregulars.infra.console.rendering import read_form, read_own_form, render


class Login:
    """The pages ``/login`` and ``/logout``."""

    def __init__(self, policy: AccessPolicy, sessions: Sessions, note_wrong: Callable[[], None]) -> None:
        self._policy = policy
        self._sessions = sessions
        self._note_wrong = note_wrong

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route("/login", self.page, name="login"),
            Route("/login", self.enter, methods=["POST"]),
            Route("/session", self.session, name="session"),
            Route("/logout", self.leave, methods=["POST"], name="logout"),
        ]

    async def page(self, request: Request) -> Response:
        """Show the form."""
        return self._form(request, wanted=request.query_params.get("next", "/"))

    async def session(self, request: Request) -> Response:
        """Answer 204 to a logged-in visitor. A link from another site comes without the cookie, this call with it."""
        return Response(status_code=204)

    async def enter(self, request: Request) -> Response:
        """Log a visitor in who has the token."""
        fields = await read_form(request)
        if self._policy.token is None or not self._sessions.lets_in(fields.get("token", "").strip()):
            # No pause before the answer: requests that wait would leave no room for others.
            self._note_wrong()
            wrong = "That is not the token. It stands in the console's own output, or in console_token_file."
            return self._form(request, 403, wrong=wrong, wanted=fields.get("next", "/"))
        answer = RedirectResponse(own_path(fields.get("next", "/")), 303)
        cookie = self._sessions.cookie(fields.get("name", "").strip(), time.time())
        # Any proxy's header sets `secure`, also where a token lets people in and no proxy is believed: no site can
        # make a browser send it, and a client that forges it only gets a cookie that travels less.
        answer.set_cookie(
            self._policy.cookie, cookie, max_age=SESSION_S, httponly=True, samesite="strict",
            secure=self._policy.is_encrypted or request.headers.get("x-forwarded-proto") == "https",
        )  # fmt: skip
        return answer

    async def leave(self, request: Request) -> Response:
        """Log a visitor out."""
        await read_own_form(request)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(self._policy.cookie, httponly=True, samesite="strict")
        return answer

    def _form(self, request: Request, status: int = 200, *, wrong: str | None = None, wanted: str = "/") -> Response:
        return render(
            request, "login.html", status, wrong=wrong, wanted=own_path(wanted),
            has_token=self._policy.token is not None, header=self._policy.user_header, address=address_of(request),
            has_secret=self._policy.proxy_secret is not None,
        )  # fmt: skip
