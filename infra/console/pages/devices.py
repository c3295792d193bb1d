"""Devices, hosts and switches by the time that was lost on them, and the history of one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from irregulars.infra.console.database import ConsoleDatabase
from irregulars.infra.console.pages.cells import NAME, table_of
from irregulars.infra.console.pages.jobs_now import named
from irregulars.infra.console.pages.rendering import console_of, render
from irregulars.sinks.investigations import Answer, run

RANGES: Final = (1, 7, 30, 90, 365)  # days that can be chosen
_USUAL_DAYS: Final = 30
_MOST: Final = 1000  # devices that are added up to their hosts
_SHOWN: Final = 50
_SLOW_S: Final = 15.0

_DEVICE_COLUMNS: Final = (
    "device", "host", "gpu", "nic", "switch", "expected_gpu_hours_lost", "verdicts", "jobs", "open_verdicts",
    "last_seen_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostLoss:
    """What was lost on all devices of one host, GPU-hours."""

    host: str
    gpu_hours: float
    devices: int
    open_verdicts: int


def device_routes() -> list[BaseRoute]:
    """Return the routes of these pages."""
    return [
        Route("/devices", devices_page, name="devices"),
        Route("/devices/history", device_page, name="device"),
        Route(f"/hosts/{{host:{NAME}}}", host_page, name="host"),
    ]


async def devices_page(request: Request) -> Response:
    """Show where time was lost within so many days."""
    database, days = console_of(request).database, days_of(request.query_params.get("days"))
    devices, switches, offenders = await asyncio.gather(
        ask(database, "time_lost_by_device", days=days, limit=_MOST),
        ask(database, "cost_by_switch", days=days, limit=_SHOWN),
        ask(database, "repeat_offenders", days=days, limit=_SHOWN),
    )
    shown = Answer(devices.columns, devices.rows[:_SHOWN], devices.chosen, devices.empty)
    return render(
        request, "devices.html", days=days, ranges=RANGES, devices=table_of(shown, _DEVICE_COLUMNS),
        losses=[float(row["expected_gpu_hours_lost"] or 0) for row in named(shown)],
        hosts=hosts_of(named(devices))[:_SHOWN], switches=table_of(switches), offenders=table_of(offenders),
        total=sum(float(row["expected_gpu_hours_lost"] or 0) for row in named(devices)),
        left_out=max(0, len(devices.rows) - _SHOWN),
    )  # fmt: skip


async def device_page(request: Request) -> Response:
    """Show the history of one device, by its place."""
    given = {name: value for name, value in request.query_params.items() if name in ("host", "gpu", "nic", "switch")}
    if not given.get("host") and not given.get("switch"):
        raise HTTPException(404, "A device is found by its host, or is a switch.")
    history = await ask(console_of(request).database, "device_history", **given)
    title = " ".join(f"{'GPU' if name == 'gpu' else name} {value}" for name, value in given.items() if name != "host")
    return render(request, "device.html", title=title or "all devices", host=given.get("host"),
                  history=table_of(history), starts=None)  # fmt: skip


async def host_page(request: Request) -> Response:
    """Show which jobs ran on a host, and which verdicts accuse it or a device on it."""
    host, database = request.path_params["host"], console_of(request).database
    starts, history = await asyncio.gather(
        ask(database, "host_history", host=host), ask(database, "device_history", host=host)
    )
    if not host or not (starts.rows or history.rows):
        raise HTTPException(404, f"No host of the name {host!r} is known: no job ran on it, no verdict accuses it.")
    return render(request, "device.html", title=f"host {host}", host=None, history=table_of(history),
                  starts=table_of(starts))  # fmt: skip


async def ask(database: ConsoleDatabase, question: str, **values: Any) -> Answer:
    """Run a question that ships. Raises `InputError` for values that do not fit, and `ServiceError`."""
    key = (question, tuple(sorted(values.items())))
    return await database.ask(key, lambda client: run(client, question, values), _SLOW_S)


def days_of(text: str | None) -> int:
    """Return the days that were chosen, of `RANGES`.

    >>> days_of("7"), days_of(None), days_of("hostile")
    (7, 30, 30)
    """
    return next((days for days in RANGES if str(days) == text), _USUAL_DAYS)


def hosts_of(devices: Sequence[Mapping[str, Any]]) -> list[HostLoss]:
    """Add up what was lost on the devices of each host, the costliest first; what has no host is left out. Pure."""
    by_host: dict[str, list[Mapping[str, Any]]] = {}
    for row in devices:
        if row["host"] is not None and row["device"] != "switch":
            by_host.setdefault(row["host"], []).append(row)
    found = [
        HostLoss(host, sum(float(one["expected_gpu_hours_lost"] or 0) for one in own), len(own),
                 sum(int(one["open_verdicts"]) for one in own))
        for host, own in by_host.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one.gpu_hours, one.host))
