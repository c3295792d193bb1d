"""The pages of a worker on this machine."""

from __future__ import annotations

import http.client
import re
from typing import Final

from irregulars.errors import InputError
from irregulars.infra.doctor.checks.facts import WorkerPage
from irregulars.pages import parse_listen

_ANSWER_S: Final = 2.0
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where it listens, not where we do
_INFO: Final = re.compile(r'irregulars_worker_info\{group="(?P<group>[^"]*)",version="(?P<release>[^"]*)"\}')


def read_page(listen: str) -> WorkerPage | None:
    """Return what a worker says at ``metrics_listen``; None: none answers there, it may run on another machine."""
    try:
        address = parse_listen(listen)
    except InputError:
        return None
    if address is None or address[1] == 0:
        return None
    host, port = _EVERYWHERE.get(address[0], address[0]), address[1]
    try:
        metrics = _get(host, port, "/metrics")[1]
        health, ready = _get(host, port, "/healthz"), _get(host, port, "/readyz")
    except (OSError, http.client.HTTPException):
        return None
    found = _INFO.search(metrics)
    if found is None:
        return None
    used, limit = _number(metrics, "unstored_bytes"), _number(metrics, "unstored_limit_bytes")
    return WorkerPage(
        f"http://{host}:{port}", found["release"], found["group"], _reason(health), _reason(ready),
        _number(metrics, "unstored_seconds"), used / limit if used is not None and limit else None,
        "; ".join(health[1].splitlines()[1:]) or None,
    )  # fmt: skip


def _number(metrics: str, name: str) -> float | None:
    found = re.search(rf"^irregulars_worker_{name} (\S+)$", metrics, re.MULTILINE)
    return None if found is None else float(found[1])


def _get(host: str, port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20).decode(errors="replace")
    finally:
        connection.close()


def _reason(page: tuple[int, str]) -> str | None:
    return None if page[0] == 200 else page[1].partition("\n")[0]
