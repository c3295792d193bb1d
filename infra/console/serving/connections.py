"""One connection of a visitor, with limits on how long it may keep us waiting: uvicorn sets hardly any.

What uvicorn lacks, and this adds: a limit until a request has arrived whole, one until an answer is taken, one until
a TLS handshake is over, and a place in the `Crowd`, which a silent connection gives up to whoever comes.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Mapping
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from irregulars.infra.console.serving.crowd import Crowd


class Phase(enum.Enum):
    """What a connection is doing."""

    RECEIVING = "a request, or the handshake before the first one, is on its way to us"
    ANSWERING = "we make the answer"
    SENDING = "the visitor takes the answer more slowly than we give it"
    IDLE = "a request was answered, another one may come"


LIMITS_S: Final[Mapping[Phase, float | None]] = {
    Phase.RECEIVING: 15.0,  # the longest request is a form of 16 KiB
    Phase.ANSWERING: None,  # a question to the database has limits of its own
    Phase.SENDING: 30.0,  # without one byte taken
    Phase.IDLE: 30.0,
}
"""How long each may last, s."""


class BoundedConfig(uvicorn.Config):
    """How we serve: uvicorn's settings, and those of `BoundedConnection`.

    Parameters
    ----------
    tls
        Encrypts; None: plain HTTP. uvicorn is not told: it would let handshakes last a minute, in any number.
    limits_s
        Limits of the phases.
    """

    def __init__(
        self, app: ASGIApp, *, crowd: Crowd[BoundedConnection], tls: ssl.SSLContext | None = None,
        limits_s: Mapping[Phase, float | None] = LIMITS_S, **others: Any,
    ) -> None:  # fmt: skip
        # asyncio's own loop: uvloop reads on after pause_reading, and we would get what is for the handshake.
        super().__init__(app, http=BoundedConnection, loop="asyncio", **others)
        self.crowd: Final = crowd
        self.tls: Final = tls
        self.limits_s: Final = limits_s


class BoundedConnection(H11Protocol):
    """One connection."""

    def __init__(
        self, config: BoundedConfig, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, server_state, app_state, _loop)
        self._crowd: Final = config.crowd
        self._tls: Final = config.tls
        self._limits_s: Final = config.limits_s
        self._phase: Phase | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._socket: asyncio.Transport | None = None  # below TLS
        self._handshake: asyncio.Task[None] | None = None
        self._early = b""  # what arrived with the end of a handshake

    # --- what the event loop calls ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, and begin."""
        self._socket = transport
        self.connections.add(self)
        peer = transport.get_extra_info("peername") or ("",)
        leaving = self._crowd.enter(self, str(peer[0]))
        if leaving is not None:
            leaving.drop()
        self._pass_to(Phase.RECEIVING)
        if self._tls is None:
            super().connection_made(transport)
        else:
            transport.pause_reading()  # what comes now is for the handshake, not for us
            self._handshake = self.loop.create_task(self._shake_hands(transport, self._tls))

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        if self._handshake is not None:
            self._early += data
            return
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give up the place."""
        self._set_limit(None)
        self._crowd.leave(self)
        self.connections.discard(self)
        if self.transport is not None:
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the visitor takes the answer slowly."""
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        """Note that the visitor has taken most of it."""
        super().resume_writing()
        self._look()

    # --- what uvicorn calls -----------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._look()

    def shutdown(self) -> None:
        """End when the answer is given, or at once where none is due."""
        if self.transport is None:
            self.drop()
        else:
            super().shutdown()

    # --- ours -------------------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """End at once; what was not sent is lost."""
        self._set_limit(None)
        self._crowd.leave(self)
        self.connections.discard(self)  # the loop tells us of the end later, and others may come before that
        if self._socket is not None:
            self._socket.abort()

    async def _shake_hands(self, plain: asyncio.Transport, tls: ssl.SSLContext) -> None:
        limit_s = self._limits_s[Phase.RECEIVING]
        try:
            encrypted = await self.loop.start_tls(
                plain, self, tls, server_side=True, ssl_handshake_timeout=limit_s, ssl_shutdown_timeout=5.0
            )
        except OSError:  # ssl.SSLError and TimeoutError are such too
            encrypted = None
        if encrypted is None or plain.is_closing():
            self.drop()
            return
        self._handshake = None
        super().connection_made(encrypted)
        if self._early:
            self.data_received(self._early)
            self._early = b""

    def _look(self) -> None:
        """Find out what the connection does now."""
        theirs = self.conn.their_state
        if self.flow.write_paused or self.transport.is_closing():
            self._pass_to(Phase.SENDING)
        elif theirs is h11.IDLE and self.cycle is not None and not self.conn.trailing_data[0]:
            self._pass_to(Phase.IDLE)
        elif theirs in (h11.IDLE, h11.SEND_BODY):
            self._pass_to(Phase.RECEIVING)
        else:
            self._pass_to(Phase.ANSWERING)

    def _pass_to(self, phase: Phase) -> None:
        if phase is self._phase:
            return  # the limit counts from the beginning: a byte now and then does not move it
        self._phase = phase
        self._set_limit(self._limits_s[phase])
        if phase is Phase.ANSWERING:
            self._crowd.work(self)
        else:
            self._crowd.wait(self)

    def _set_limit(self, limit_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unsent_bytes = self._count_unsent()
        self._timer = None if limit_s is None else self.loop.call_later(limit_s, self._expire, limit_s)

    def _expire(self, limit_s: float) -> None:
        """End what took too long, unless the visitor has taken some of a long answer meanwhile."""
        if 0 < self._count_unsent() < self._unsent_bytes:
            self._set_limit(limit_s)
        else:
            self.drop()

    def _count_unsent(self) -> int:
        transports = {self._socket, self.transport} - {None}
        return sum(one.get_write_buffer_size() for one in transports if one is not None)
