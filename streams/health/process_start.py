"""What a worker process asks of its machine before it begins."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any, Final

from irregulars.errors import InputError
from irregulars.private_files import make_private_directory

LOG: Final = logging.getLogger("irregulars.worker")


def make_directory(name: str) -> None:
    """Make the worker's directory; raises `InputError` where that is not allowed."""
    try:
        make_private_directory(Path(name))
    except OSError as error:
        raise InputError(f"data_directory must be one that we can write; got {name!r} ({error.strerror})") from error


def free_port_or_none(host: str, port: int) -> int:
    """Return the port of a worker's page, or 0, with a line in the log, where it is taken: no worker ends for it."""
    if port == 0:
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            LOG.warning("event=no_page host=%s port=%d reason=%r", host, port, error.strerror)
            return 0
    return port


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, uvloop's if it is installed, which tells of stray errors in one line."""
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    loop.set_exception_handler(_tell)
    return loop


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tell of what a task raised that nobody awaits: Faust leaves some."""
    error = context.get("exception")
    LOG.info("event=stray_error error=%s reason=%r", type(error).__name__, str(error or context.get("message")))
