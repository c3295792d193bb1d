"""Static files: read once at the start and served from memory, so that no path leads anywhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from irregulars.infra.showing.chart_style import themed

FOLDERS: Final = (("infra", "console", "static"), ("infra", "console", "heat_map", "static"))
"""Folders whose files stand under ``/static/``; of one name in several the first counts."""

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file: its bytes, and what browsers are told of it."""

    body: bytes
    content_type: str
    tag: str


def read_static_files() -> dict[str, StaticFile]:
    """Return the files by name; one of a type that browsers do not need (Python, a licence) is left out."""
    found = {"charts.css": _file(themed().encode(), _TYPES[".css"])}
    for folder in FOLDERS:
        place = files("irregulars").joinpath(*folder)
        for name, file in _each(place) if place.is_dir() else ():
            kind = _TYPES.get(f".{name.rpartition('.')[2]}")
            if kind is not None and name not in found:
                found[name] = _file(file.read_bytes(), kind)
    return found


def _file(body: bytes, content_type: str) -> StaticFile:
    return StaticFile(body, content_type, f'"{hashlib.sha256(body).hexdigest()[:20]}"')


def _each(folder: Traversable, before: str = "") -> Iterator[tuple[str, Traversable]]:
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            yield from _each(one, f"{before}{one.name}/")
        else:
            yield f"{before}{one.name}", one


def static_route(known: dict[str, StaticFile]) -> BaseRoute:
    """Return the route of the files. A browser asks each time, and is told that it has the newest (304)."""

    async def static(request: Request) -> Response:
        one = known.get(request.path_params["name"])
        if one is None:
            raise HTTPException(404)
        headers = {"ETag": one.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == one.tag:
            return Response(status_code=304, headers=headers)
        return Response(one.body, headers=headers, media_type=one.content_type)

    return Route("/static/{name:path}", static, name="static")
