"""The process without a broker: errors that a consumer gives it, and their effects."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from irregulars.kafka.topics import TopicSettings
from irregulars.sinks.notices import process
from irregulars.sinks.notices.delivery import Courier, Outcome, Retries
from irregulars.sinks.notices.ledger import Ledger
from irregulars.sinks.notices.policy import Rules
from irregulars.sinks.notices.process import Notifier
from irregulars.sinks.notices.settings import NotifySettings
from irregulars.sinks.notices.state_log import StateLog
from tests.sinks.notices.alerts import alert


class Gone:
    """The consumer's word that the broker has no message at the offset that it was to read."""

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._AUTO_OFFSET_RESET)


class PlayedConsumer:
    """Remembers where it reads."""

    def __init__(self) -> None:
        self.assigned: list[tuple[int, int]] = []
        self.messages: list[Any] = []

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return places

    def assign(self, places: list[TopicPartition]) -> None:
        self.assigned = [(one.partition, one.offset) for one in places]

    def consume(self, *_: object) -> list[Any]:
        found, self.messages = self.messages, []
        return found

    def commit(self, **_: object) -> None:
        pass

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return 0, 0


class PlayedLog:
    def mutes(self) -> list[Any]:
        return []

    def opinions(self) -> list[Any]:
        return []


def test_an_offset_that_is_gone_makes_it_load_anew_and_not_read_all_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = iter((90, 5))  # the topic was made anew meanwhile

    def load(_log: object, rules: Mapping[str, Any], *_: object) -> tuple[Ledger, dict[int, int]]:
        return Ledger(rules), {0: next(ends)}

    monkeypatch.setattr(process, "load", load)
    settings = NotifySettings(bootstrap="localhost:9092", topics=TopicSettings())
    played = PlayedConsumer()
    consumer, log = cast(Consumer, played), cast(StateLog, PlayedLog())
    notifier = Notifier(settings, (), {})
    notifier._assigned(consumer, [TopicPartition("alerts", 0)])
    notifier._turn(consumer, log)
    assert played.assigned == [(0, 90)]
    played.messages = [Gone()]
    notifier._turn(consumer, log)
    assert played.assigned == []
    notifier._turn(consumer, log)
    assert played.assigned == [(0, 5)]
    # The client must report it: by itself it would begin at the oldest alert, and open what ended long ago.
    assert process._consumer_config(settings)["auto.offset.reset"] == "error"


def test_the_outcome_of_a_try_for_an_earlier_ledger_is_left_out() -> None:
    """The topic was made anew meanwhile, and the present ledger does not know the incident: the process ended."""
    rules = {"c": Rules(hold_s=0.0)}
    before = Ledger(rules)
    before.apply_alert(alert(), 1)
    due = before.next_due("c", 2)
    assert due is not None
    notifier = Notifier(NotifySettings(bootstrap="localhost:9092", topics=TopicSettings()), (), rules)
    courier = notifier._couriers["c"] = cast(Courier, SimpleNamespace(is_busy=True, retries=Retries(60.0)))
    notifier._ledger = Ledger(rules)
    notifier._outcomes.put(Outcome("c", due))
    notifier._settle(cast(StateLog, PlayedLog()))
    assert not courier.is_busy
    assert notifier._ledger.unsettled(0) is None


def test_a_repetition_waits_for_no_record_so_that_alerts_outlast_an_absence_of_kafka() -> None:
    rules = {"c": Rules(hold_s=0.0, repeat_s=60.0)}
    ledger = Ledger(rules)
    ledger.apply_alert(alert(), 1)
    recorded: list[object] = []
    log = cast(StateLog, SimpleNamespace(record=lambda *one: recorded.extend(one)))
    notifier = Notifier(NotifySettings(bootstrap="localhost:9092", topics=TopicSettings()), (), rules)
    notifier._couriers["c"] = cast(Courier, SimpleNamespace(is_busy=True, retries=Retries(60.0)))
    notifier._ledger = ledger
    for now_ns, reference, records in ((2, "a", 1), (2 << 62, "a", 1), (3 << 62, "b", 2)):
        due = ledger.next_due("c", now_ns)
        assert due is not None
        notifier._outcomes.put(Outcome("c", due, reference))
        notifier._settle(log)
        assert len(recorded) == records
