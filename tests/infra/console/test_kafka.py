"""The thread that follows alerts goes on, whatever happens to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from irregulars.errors import ServiceUnavailable
from irregulars.infra.console.database import KafkaAddress, RecentAlerts
from irregulars.kafka.topics import TopicSettings


class Followed(RecentAlerts):
    """Reads a topic whose reading fails in one way after the other, and is then closed."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__(KafkaAddress("127.0.0.1:1", TopicSettings()))
        self._failures = iter(failures)
        self.troubles: list[str | None] = []

    def _messages(self) -> Iterator[Any]:
        self.troubles.append(self.trouble)
        for failure in self._failures:
            raise failure
        self._is_over.set()
        yield b"no alert"


def test_a_fault_is_told_and_the_topic_read_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("irregulars.infra.console.database._RETRY_S", 0.01)
    found = Followed(ServiceUnavailable("Kafka must answer"), KeyError("alerts"))
    found.start()
    found._thread.join(10)
    found.close()
    assert found.troubles == [None, "Kafka must answer", "alerts must be readable; reading them raised KeyError"]
