"""The heat map's routes alone, served as the console serves them, on a free port of this machine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from starlette.applications import Starlette

from irregulars.infra.console.database import ConsoleDatabase
from irregulars.infra.console.heat_map.routes import heat_map_routes
from irregulars.sinks.connection import DatabaseSettings


@contextmanager
def served(settings: DatabaseSettings) -> Iterator[httpx.Client]:
    """Serve until the block ends; yields a client that knows where."""
    database = ConsoleDatabase(settings)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = Starlette(routes=heat_map_routes(database))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 20
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", trust_env=False, timeout=60
            ) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(10)
            database.close()
