from __future__ import annotations

import logging

import pytest

from irregulars.errors import ServiceUnavailable
from irregulars.streams.health.broker_watch import BrokerWatch


class Watched(BrokerWatch):
    """Of a broker that must answer within 300 s, by a clock of the test."""

    now_s = 0.0

    def __init__(self) -> None:
        super().__init__("kafka:9092", 300.0, lambda: self.now_s)

    def missed_at(self, *times_s: float, why: str | None = None) -> None:
        for self.now_s in times_s:
            self.missed(why) if why else self.missed()


def test_an_outage_is_told_once_when_it_begins_and_once_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watched()
    with caplog.at_level(logging.INFO):
        watch.missed_at(*range(1, 46))
        assert watch.is_away
        watch.heard()
        watch.heard()
    assert [record.getMessage() for record in caplog.records] == [
        "event=broker_away bootstrap=kafka:9092 waits_s=300",
        "event=broker_back away_s=45.0",
    ]
    assert not watch.is_away


def test_a_broker_that_takes_a_moment_is_not_away(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watched()
    watch.missed_at(1.0, 4.0)
    watch.heard()
    assert caplog.records == []


def test_a_broker_that_stays_away_is_fatal_in_the_end() -> None:
    watch = Watched()
    watch.missed_at(300.0)
    with pytest.raises(ServiceUnavailable, match=r"^Kafka at kafka:9092 must answer within 300 s; got no answer"):
        watch.missed_at(301.0)


def test_a_broker_that_refuses_our_login_is_told_as_that(caplog: pytest.LogCaptureFixture) -> None:
    watch, refusal = Watched(), "it refused the login of 'ada'"
    watch.missed_at(6.0, why=refusal)
    assert f'reason="{refusal}"' in caplog.text
    with pytest.raises(ServiceUnavailable, match=refusal):
        watch.missed_at(301.0, why=refusal)
