"""Where partitions begin and end, asked of the broker with a client of its own.

confluent-kafka lets only one call at a time use a client, and a question about a partition that has no leader waits:
a client that is asked could not hear meanwhile that its session has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaException, TopicPartition
from faust.types import TP

from irregulars.errors import ServiceUnavailable
from irregulars.kafka.broker import client_config, service_error
from irregulars.kafka.login_password import new_consumer
from irregulars.streams.worker_settings import WorkerSettings

BEGIN: Final = OFFSET_BEGINNING
END: Final = OFFSET_END
_ANSWER_S: Final = 10.0
"""Those who ask do so again, and are answered one after the other: no caller waits for all of ``broker_timeout_s``
on behalf of one partition without a leader."""


class PartitionOffsets:
    """Asks in a thread of its own, which connects when it is first asked."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings: Final = settings
        self._answer_s: Final = min(_ANSWER_S, settings.broker_timeout_s)
        self._consumer: Consumer | None = None
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-offsets")

    async def ask(self, places: Collection[TP], which: int) -> dict[TP, int]:
        """Return where partitions `BEGIN` or `END`; raises `ServiceUnavailable` or `ServiceRefused`."""
        return await asyncio.wrap_future(self._thread.submit(self._ask, places, which))

    def close(self) -> None:
        """Let go of thread and connection, without waiting for a broker that does not answer."""
        # In the thread: a client serves one call at a time, and a question may still wait for its answer.
        self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=False)

    def _disconnect(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def _ask(self, places: Collection[TP], which: int) -> dict[TP, int]:
        own = self._settings
        try:
            self._consumer = self._consumer or new_consumer(
                client_config(own.bootstrap, own.security)
                | {
                    "group.id": "irregulars-offsets",  # librdkafka asks for one; nothing is ever committed to it
                    "isolation.level": "read_uncommitted",  # as `BlockFetcher` reads: it decides where they end
                    "reconnect.backoff.max.ms": 1000,
                }
            )
            found = self._consumer.offsets_for_times(
                [TopicPartition(*place, which) for place in places], timeout=self._answer_s
            )
        except KafkaException as error:
            # A busy broker may deny a partition, and a client believes that for minutes: a new one asks anew.
            self._disconnect()
            raise service_error(error.args[0], own.bootstrap, self._answer_s, own.security) from error
        bad = [one for one in found if one.error is not None or one.offset < 0]
        if bad:
            self._disconnect()
            raise ServiceUnavailable(
                f"Kafka at {own.bootstrap} must say where {bad[0].topic}/{bad[0].partition} begins and ends; "
                f"got {bad[0].error or 'no offset'}"
            )
        return {TP(one.topic, one.partition): one.offset for one in found}
