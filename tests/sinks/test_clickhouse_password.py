"""The password of a database that is not reached yet is read anew for each try."""

from __future__ import annotations

import pytest

from irregulars.errors import ServiceRefused
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
