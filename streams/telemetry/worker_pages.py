"""The pages of a worker, served from a thread of their own: metrics, health, readiness."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Final

from irregulars.pages import PageServer, metrics_page, parse_listen
from irregulars.streams.telemetry.observer import Observer
from irregulars.streams.telemetry.worker_metrics import WorkerCollector

LOG: Final = logging.getLogger("irregulars.worker")


def serve_pages(observer: Observer, listen: str) -> ExitStack:
    """Serve the pages until the returned stack is closed; ``off`` serves none.

    A port that is taken is no reason not to work: then it is any free one, and the log says which.

    Raises
    ------
    InputError
        If there is no such address here.
    """
    stack = ExitStack()
    address = parse_listen(listen)
    if address is not None:
        pages = {
            "/metrics": metrics_page(WorkerCollector(observer)),
            "/healthz": observer.healthz,
            "/readyz": observer.readyz,
        }
        server = PageServer(*address, pages, takes_other_port=True)
        stack.callback(server.close)
        LOG.info("event=metrics url=%s/metrics", server.url)
        if server.port != address[1] != 0:
            LOG.warning("event=metrics_port_taken wanted=%d port=%d", address[1], server.port)
    return stack
