"""The console as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from irregulars.infra.console.database import ConsoleDatabase
from irregulars.infra.console.pages.job import job_routes
from irregulars.infra.console.pages.rendering import make_templates
from irregulars.infra.console.static_files import read_static_files, static_route
from irregulars.sinks.connection import DatabaseSettings

_HEAT_MAP: Final = "irregulars.infra.console.heat_map.routes"


def make_app(settings: DatabaseSettings) -> Starlette:
    """Return the application.

    Parameters
    ----------
    settings
        The database that it reads.
    """
    database = ConsoleDatabase(settings)
    static = read_static_files()
    heat_map = _heat_map_routes(database)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        database.close()

    app = Starlette(routes=[static_route(static), *heat_map, *job_routes()], lifespan=lifespan)
    app.state.database = database
    app.state.templates = make_templates(has_heat_map="heat_map.js" in static and bool(heat_map))
    return app


def _heat_map_routes(database: ConsoleDatabase) -> list[BaseRoute]:
    if find_spec(_HEAT_MAP.rpartition(".")[0]) is None or find_spec(_HEAT_MAP) is None:
        return []
    module: Any = import_module(_HEAT_MAP)
    return list(module.heat_map_routes(database))
