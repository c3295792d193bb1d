from __future__ import annotations

import logging

import pytest

from irregulars.errors import ServiceUnavailable
from irregulars.streams.health.broker_watch import BrokerWatch


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_an_outage_is_told_once_when_it_begins_and_once_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = BrokerWatch("kafka:9092", 300.0, clock)
    with caplog.at_level(logging.INFO):
        for clock.now_s in range(1, 46):
            watch.missed()
        assert watch.is_away
        watch.heard()
        watch.heard()
    assert [record.getMessage() for record in caplog.records] == [
        "event=broker_away bootstrap=kafka:9092 waits_s=300",
        "event=broker_back away_s=45.0",
    ]
    assert not watch.is_away


def test_a_broker_that_takes_a_moment_is_not_away(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = BrokerWatch("kafka:9092", 300.0, clock)
    for clock.now_s in (1.0, 4.0):
        watch.missed()
    watch.heard()
    assert caplog.records == []


def test_a_broker_that_stays_away_is_fatal_in_the_end() -> None:
    clock = Clock()
    watch = BrokerWatch("kafka:9092", 300.0, clock)
    clock.now_s = 300.0
    watch.missed()
    clock.now_s = 301.0
    with pytest.raises(ServiceUnavailable, match=r"^Kafka at kafka:9092 must answer within 300 s; got no answer"):
        watch.missed()


def test_a_broker_that_refuses_our_login_is_told_as_that(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = BrokerWatch("kafka:9092", 300.0, clock)
    clock.now_s = 6.0
    watch.missed("it refused the login of 'ada'")
    assert "reason=\"it refused the login of 'ada'\"" in caplog.text
    clock.now_s = 301.0
    with pytest.raises(ServiceUnavailable, match="it refused the login of 'ada'"):
        watch.missed("it refused the login of 'ada'")
