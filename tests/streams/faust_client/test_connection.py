"""What Faust's consumer may ask of the broker while partitions come and go."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.types import TP

from irregulars.streams.faust_client.connection import commit


def test_a_worker_that_has_lost_what_it_read_commits_nothing() -> None:
    async def lost() -> bool:
        consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1", group_id="workers")
        try:
            consumer.assign([TopicPartition("commops", 1)])
            return await commit(consumer, {TP("commops", 0): 7}, {TP("commops", 1)})
        finally:
            await consumer.stop()

    assert asyncio.run(lost()) is False
