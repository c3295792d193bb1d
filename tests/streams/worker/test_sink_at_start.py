"""A database that was away when a worker started, and then can't be used, ends it, though there is no row yet."""

from __future__ import annotations

import asyncio

import pytest

from irregulars.errors import InputError
from irregulars.streams.worker.app import WorkerApp
from irregulars.streams.worker.running import make_app
from irregulars.streams.worker_settings import WorkerSettings
from tests.sinks.memory_sink import MemorySink


class NewerSink(MemorySink):
    """Has tables of a newer release."""

    def open(self) -> None:
        raise InputError("an applied migration must not be edited")


def test_what_no_waiting_mends_ends_a_worker_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    monkeypatch.setattr(WorkerApp, "fail", lambda _, error: failures.append(error))
    app = make_app(WorkerSettings("127.0.0.1:1"), NewerSink())
    try:
        asyncio.run(asyncio.wait_for(app.open_sink(), 30.0))
    finally:
        app.services.sink.close()
        app.services.outbox.close(0.0)
    assert [str(one) for one in failures] == ["an applied migration must not be edited"]
