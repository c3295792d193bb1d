"""The heat map's and the chart's addresses, under ``/api/jobs/{job}/{attempt}``.

========================  ============================================================================
``heat-map``              the window: its iterations, the irregular ones, who is accused, the choices; from
                          ``first`` to the newest for a browser that follows a job and sends its ``version``
``heat-map/rows``         the ranks in one of the orders, with devices, and the borders of groups
``heat-map/tile``         a tile of bins as bytes (`levels.py`), or the part right of the ``skipped`` first bins
``heat-map/strangest``    the ranks that were furthest beyond usual
``heat-map/cell``         all that is stored of one rank in one iteration
``iteration-times``       times of up to 100,000 iterations, with references and verdicts; or those behind one
========================  ============================================================================

A tile's address names the version of its rows: it never changes, and browsers keep it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from irregulars.errors import InputError, IrregularsError
from irregulars.infra.console.heat_levels import (
    ORDERS,
    Names,
    Order,
    Places,
    compressed,
    order_of,
    orders_of,
    tile_bytes,
)
from irregulars.infra.console.heat_matrix import MOST_PER_BIN, QUANTITIES, TILE, HeatMatrix, Quantity
from irregulars.infra.console.heat_reading import (
    MOST_ITERATIONS,
    MOST_TIMES,
    Changed,
    HeatMapStore,
    Start,
    Version,
    read_cell,
    version_of,
)
from irregulars.infra.console.rendering import NAME

if TYPE_CHECKING:
    from irregulars.infra.console.database import ConsoleDatabase

_USUAL_ITERATIONS: Final = 1_000
_USUAL_TIMES: Final = 2_000
_GROWS: Final = 4  # a window that follows a job grows by a quarter before it begins anew further right
_FOREVER: Final = "private, max-age=86400, immutable"
_ASK_AGAIN: Final = "private, no-cache"
_FAR: Final = 1 << 62  # beyond any iteration

Answer = Callable[[Request, Start], Awaitable[Response]]


def heat_map_routes(database: ConsoleDatabase) -> list[BaseRoute]:
    """Return the routes."""
    pages = _Endpoints(HeatMapStore(database))
    return [
        Route(f"/api/jobs/{{job:{NAME}}}/{{attempt}}/{name}", _guarded(answer), methods=["GET"])
        for name, answer in {
            "heat-map": pages.window, "heat-map/rows": pages.rows, "heat-map/tile": pages.tile,
            "heat-map/strangest": pages.strangest, "heat-map/cell": pages.cell, "iteration-times": pages.times,
        }.items()
    ]  # fmt: skip


def _guarded(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Turn our errors into answers that a script can read."""

    async def endpoint(request: Request) -> Response:
        try:
            text = request.path_params["attempt"]
            if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < 1 << 63):
                raise InputError(f"attempt must be a number from 0 to below 2^63; got {text[:40]!r}")
            start = Start(request.path_params["job"], int(text))
            return await answer(request, start)
        except Changed:
            return _json(request, {"error": "these rows changed: ask for the window again"}, 410)
        except InputError as error:
            return _json(request, {"error": str(error)}, 400)
        except IrregularsError as error:
            return _json(request, {"error": str(error)}, 503)

    return endpoint


class _Endpoints:
    """One method an address."""

    def __init__(self, store: HeatMapStore) -> None:
        self._store = store

    async def window(self, request: Request, start: Start) -> Response:
        around = _number(request, "around")
        wanted = _needed(request, "iterations", 1, MOST_ITERATIONS, _USUAL_ITERATIONS)
        # A browser that follows a job names its first iteration and gets its own window, up to the newest iteration.
        # Where that would be too long (None), the window begins further right.
        begin = _number(request, "first")
        grown = None
        if begin is not None:
            grown = await self._store.from_first(start, begin, wanted + wanted // _GROWS)
        window, places = grown or await self._store.around(start, around, wanted)
        first, last = int(window.iterations[0]), int(window.iterations[-1])
        quantity = QUANTITIES[_choice(request, "quantity", QUANTITIES)]
        known = request.query_params.get("version", "")
        version, unchanged = self._store.told(start, quantity, window, places, known)
        # The browser asks for tiles next, and they need all cells: reading begins now.
        self._store.begin(start, quantity, (first, last), version)
        marks, (oldest, newest) = await asyncio.gather(self._store.marks(start, first, last), self._store.span(start))
        return _json(request, {
            "job": start.job, "attempt": start.attempt, "first": first, "last": last,
            "oldest": oldest, "newest": newest,
            "unchanged": unchanged,
            "version": version, "ranks": len(places.ranks), "tile": TILE,
            "iterations": _compact(window.iterations), "elapsed_ns": window.elapsed_ns.tolist(),
            "irregular": np.flatnonzero(window.is_irregular).tolist(),
            "untrained": np.flatnonzero(~window.is_train).tolist(),
            "marks": [
                {**one, "ranks": places.ranks[places.rows_of(one["ranks"])].tolist()} for one in marks
            ],
            "quantities": [
                {"name": one.name, "title": one.title, "explanation": one.explanation, "unit": one.unit,
                 "is_excess": one.is_excess}
                for one in QUANTITIES.values()
            ],
            "orders": [{"name": name, "title": ORDERS[name]} for name in orders_of(places)],
        })  # fmt: skip

    async def rows(self, request: Request, start: Start) -> Response:
        edges, quantity, version, name = _asked(request)
        if name == "strange":
            _, places, order = await self._ordered(request, start)
        else:  # no cell is needed
            window = await self._store.between(start, *edges)
            places = await self._store.places(start, window)
            if version_of(window, places) != Version.of_text(version, quantity.name).rows:
                raise Changed
            order = order_of(places, name)
        return _json(request, {
            "ranks": _compact(places.ranks[order.rows]), "borders": list(order.borders), "labels": list(order.labels),
            "gpu": places.gpu[order.rows].tolist(), "host": _named(places.host, order),
            "nic": _named(places.nic, order), "switch": _named(places.switch, order),
        }, cache=_FOREVER)  # fmt: skip

    async def tile(self, request: Request, start: Start) -> Response:
        matrix, places, order = await self._ordered(request, start)
        columns = matrix.levels.shape[0]
        per_bin = (_power(request, "ranks_per_bin"), _power(request, "iterations_per_bin"))
        row = _needed(request, "row", 0, max(0, len(places.ranks) - 1) // (per_bin[0] * TILE), 0)
        column = _needed(request, "column", 0, max(0, columns - 1) // (per_bin[1] * TILE), 0)
        left = TILE * per_bin[1] * column
        skipped = _needed(request, "skipped", 0, min(TILE, -(-(columns - left) // per_bin[1])) - 1, 0)
        bins = await run_in_threadpool(matrix.tile, order.rows, per_bin, (row, column), skipped)
        accepted = request.headers.get("accept-encoding", "")
        tile = await run_in_threadpool(tile_bytes, bins, matrix.scale, per_bin)
        body, encoding = await run_in_threadpool(compressed, tile, accepted)
        return _response(request, body, "application/octet-stream", encoding, cache=_FOREVER)

    async def strangest(self, request: Request, start: Start) -> Response:
        matrix, places, order = await self._ordered(request, start)
        place = np.empty(len(order.rows), dtype=np.int64)
        place[order.rows] = np.arange(len(order.rows))
        found = await run_in_threadpool(matrix.strangest)
        low, high = matrix.scale.ends
        return _json(request, {
            "low": low, "high": high,
            "cells": [
                {"row": int(place[one.row]), "rank": int(places.ranks[one.row]), "column": one.column,
                 "value": one.value, "times": one.times, "present": one.present}
                for one in found
            ],
        }, cache=_FOREVER)  # fmt: skip

    async def cell(self, request: Request, start: Start) -> Response:
        iteration = _needed(request, "iteration")
        rank = _needed(request, "rank", 0, (1 << 32) - 1)
        first, last = (_needed(request, name, default=iteration) for name in ("first", "last"))
        window = await self._store.between(start, first, last)
        found = await self._store.ask(
            ("cell", start, iteration, rank, window.version),
            lambda client: read_cell(client, start, iteration, rank, window.usual_iterations),
        )
        marks = await self._store.marks(start, iteration, iteration)
        verdicts = [
            {"verdict_id": one["verdict_id"], "kind": one["kind"], "state": one["state"], "name": one["name"]}
            for one in marks
            if rank in one["ranks"]
        ]
        return _json(request, {"iteration": iteration, "rank": rank, **found, "verdicts": verdicts})

    async def times(self, request: Request, start: Start) -> Response:
        after = _number(request, "after")
        around = _number(request, "around")
        wanted = _needed(request, "iterations", 1, MOST_TIMES, _USUAL_TIMES)
        window = (
            await self._store.times(start, around, wanted)
            if after is None else await self._store.behind(start, after, wanted)
        )  # fmt: skip
        oldest, newest = await self._store.span(start)
        first, last = (int(window.iterations[at]) if len(window.iterations) else newest for at in (0, -1))
        marks = await self._store.marks(start, _needed(request, "first", default=first), last)
        microseconds, irregular = np.round(window.reference_ns / 1e3), np.flatnonzero(window.is_irregular).tolist()
        return _json(request, {
            "oldest": oldest, "newest": newest, "iterations": _compact(window.iterations),
            "is_cut": after is not None and len(window.iterations) == wanted,
            "elapsed_us": np.round(window.elapsed_ns / 1e3).astype(np.int64).tolist(),
            "reference_us": [None if np.isnan(one) else int(one) for one in microseconds.tolist()],
            "irregular": irregular,
            "untrained": np.flatnonzero(~window.is_train).tolist(),
            # Of irregular ones, by their numbers: the range of a verdict holds others, which it does not explain.
            "verdicts": {
                str(window.iterations[at]): window.verdict_ids[at] for at in irregular if window.verdict_ids[at]
            },
            "marks": [
                {name: one[name] for name in ("verdict_id", "kind", "state", "first", "past", "name")}
                for one in marks
                if one["position"] == 0
            ],
        })  # fmt: skip

    async def _ordered(self, request: Request, start: Start) -> tuple[HeatMatrix, Places, Order]:
        edges, quantity, version, name = _asked(request)
        matrix, places = await self._store.matrix(start, quantity, edges, version)
        strangeness = matrix.strangeness() if name == "strange" else None
        return matrix, places, order_of(places, name, strangeness)


def _asked(request: Request) -> tuple[tuple[int, int], Quantity, str, str]:
    """Return the window's edges, the quantity, the version and the order of rows that a request is about."""
    edges = _needed(request, "first"), _needed(request, "last")
    quantity = QUANTITIES[_choice(request, "quantity", QUANTITIES)]
    return edges, quantity, request.query_params.get("version", ""), _choice(request, "order", ORDERS)


def _named(names: Names, order: Order) -> dict[str, Any]:
    return {"names": list(names.names), "codes": names.codes[order.rows].tolist()}


def _compact(numbers: np.ndarray) -> Any:
    """Return numbers that follow one another as their first and their count."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1 and (np.diff(numbers) == 1).all():
        return {"first": int(numbers[0]), "count": len(numbers)}
    return numbers.tolist()


def _number(
    request: Request, name: str, default: int | None = None, least: int = -_FAR, most: int = _FAR
) -> int | None:
    text = request.query_params.get(name)
    if text is None or not text:
        return default
    try:
        # A longer text counts as out of bounds, and so does one that is no number: one message for all.
        number = int(text) if len(text) < 24 else most + 1
    except ValueError:
        number = most + 1
    if not least <= number <= most:
        raise InputError(f"{name} must be a whole number from {least} to {most}; got {text[:40]!r}")
    return number


def _needed(request: Request, name: str, least: int = -_FAR, most: int = _FAR, default: int | None = None) -> int:
    number = _number(request, name, default, least, most)
    if number is None:
        raise InputError(f"{name} must be given; got none")
    return number


def _choice(request: Request, name: str, choices: Mapping[str, object]) -> str:
    text = request.query_params.get(name) or next(iter(choices))
    if text not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}; got {text[:40]!r}")
    return text


def _power(request: Request, name: str) -> int:
    number = _needed(request, name, 1, MOST_PER_BIN, 1)
    if number & (number - 1):
        raise InputError(f"{name} must be a power of two; got {number}")
    return number


def _json(request: Request, value: Any, status: int = 200, cache: str = _ASK_AGAIN) -> Response:
    body, encoding = compressed(orjson.dumps(value), request.headers.get("accept-encoding", ""))
    return _response(request, body, "application/json", encoding, status, cache)


def _response(
    request: Request, body: bytes, kind: str, encoding: str, status: int = 200, cache: str = _ASK_AGAIN
) -> Response:
    """Answer with an ETag, or that nothing has changed."""
    headers = {"Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff"}
    # An error may be over at the next request, whatever the cache of the answer.
    headers["Cache-Control"] = cache if status == 200 else "no-store"
    if encoding:
        headers["Content-Encoding"] = encoding
    if status == 200:
        headers["ETag"] = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
    return Response(body, status, headers, kind)
