"""A database that does not take us yet: each try reads the password anew, and leaves nothing behind."""

from __future__ import annotations

import pytest

from irregulars.errors import InputError, ServiceRefused
from irregulars.sinks import clickhouse
from irregulars.sinks.clickhouse import ClickHouseSink, DatabaseSettings


def test_a_sink_that_was_refused_opens_with_the_password_that_its_file_holds_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def connect(settings: DatabaseSettings, **_: object) -> None:
        asked.append(settings.password)
        raise ServiceRefused("no")

    monkeypatch.setattr(clickhouse, "connect", connect)
    in_file = ["old"]
    sink = ClickHouseSink(DatabaseSettings(password="old", read_password=lambda: in_file[0]))
    for password in ("old", "new", "new"):
        in_file[0] = password
        with pytest.raises(ServiceRefused):
            sink.open()
    assert asked == ["old", "new", "new"]


def test_a_sink_that_can_t_migrate_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def migrate(_client: object) -> None:
        raise InputError("edited")

    closed: list[object] = []
    monkeypatch.setattr(clickhouse, "connect", lambda *_, **__: "client")
    monkeypatch.setattr(clickhouse, "migrate", migrate)
    monkeypatch.setattr(clickhouse, "disconnect", closed.append)
    with pytest.raises(InputError, match="edited"):
        ClickHouseSink(DatabaseSettings()).open()
    assert closed == ["client"]
