"""How long nobody read a partition: told by the topic ``progress``, where each worker says how far it is."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection
from itertools import pairwise

from confluent_kafka import Consumer, TopicPartition


class ProgressWatch:
    """Follows the topic ``progress`` from a thread; a ``with`` block begins and ends it.

    Parameters
    ----------
    bootstrap
        Brokers, reached on a way that no fault of the network meets.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        own = {"bootstrap.servers": bootstrap, "group.id": "chaos-watch", "auto.offset.reset": "earliest"}
        at_once = {"reconnect.backoff.max.ms": 200, "retry.backoff.max.ms": 200, "fetch.wait.max.ms": 100}
        self._consumer = Consumer({**own, **at_once, "enable.auto.commit": False})
        self._topic = topic
        self._told_s: dict[int, list[float]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress-watch", daemon=True)

    def recovered_s(self, since_s: float, partitions: Collection[int]) -> float | None:
        """Return how long after a moment all partitions had been told of once; None: not yet."""
        first = [next((at for at in self._told_s.get(one, ()) if at > since_s), None) for one in partitions]
        return None if None in first else max(at - since_s for at in first if at is not None)

    def wait(self, since_s: float, partitions: Collection[int], within_s: float) -> float | None:
        """Wait for `recovered_s`, for a while."""
        deadline = time.monotonic() + within_s
        while self.recovered_s(since_s, partitions) is None and time.monotonic() < deadline:
            time.sleep(0.2)
        return self.recovered_s(since_s, partitions)

    def longest_gap_s(self) -> float:
        """Return the longest time in which a partition was not told of."""
        gaps = (later - one for told in self._told_s.values() for one, later in pairwise(told))
        return max(gaps, default=0.0)

    def _follow(self) -> None:
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self._is_over.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and not message.error():
                partition = json.loads(message.value() or b"{}").get("partition")
                # By our own clock: those of the workers step.
                self._told_s.setdefault(partition, []).append(time.time())

    def __enter__(self) -> ProgressWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join(10)
        self._consumer.close()
