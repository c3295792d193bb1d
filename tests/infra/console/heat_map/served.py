"""The heat map's routes alone, served as the console serves them, on a free port of this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from starlette.applications import Starlette

from irregulars.infra.console.database import ConsoleDatabase
from irregulars.infra.console.heat_map.routes import heat_map_routes
from irregulars.sinks.connection import DatabaseSettings
from tests.infra.console.served_apps import serving


@contextmanager
def served(settings: DatabaseSettings) -> Iterator[httpx.Client]:
    """Serve until the block ends; yields a client that knows where."""
    database = ConsoleDatabase(settings)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        app = Starlette(routes=heat_map_routes(database))
        config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off")
        try:
            with serving(config, listening) as url, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
                yield client
        finally:
            database.close()
