"""What the outbox makes of the broker's answers; `tests/integration/test_log_reading.py` has it on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Message

from irregulars.errors import SendingGivenUp, ServiceUnavailable
from irregulars.infra.runs.child_process import free_port
from irregulars.kafka.outbox import Outbox


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    """An outbox without a broker: what it sends waits in its queue."""
    outbox = Outbox(f"127.0.0.1:{free_port()}", {})
    yield outbox
    outbox.close(timeout_s=0.1)


def send(outbox: Outbox, count: int) -> None:
    for number in range(count):
        asyncio.run(outbox.send("topic", b"key", b"%d" % number))


def answer(outbox: Outbox, span: int, message: Message, error: KafkaError | None = None) -> None:
    """Do as librdkafka does when the broker has answered."""
    outbox._settle(outbox._line, span, message.topic() or "topic", error, message)


def has_passed(outbox: Outbox) -> bool:
    """Whether a barrier returns at once."""

    async def wait() -> bool:
        try:
            await asyncio.wait_for(outbox.barrier(), 0.05)
        except TimeoutError:
            return False
        return True

    return asyncio.run(wait())


def test_a_barrier_waits_until_all_that_was_sent_before_it_is_acknowledged(outbox: Outbox) -> None:
    async def wait() -> None:
        barrier = asyncio.ensure_future(outbox.barrier())
        await asyncio.sleep(0)  # let it begin
        for offset in (4, 5):
            assert not barrier.done()
            answer(outbox, 0, Message(topic="topic", partition=0, offset=offset))
        await asyncio.wait_for(barrier, 20.0)

    send(outbox, 2)
    asyncio.run(wait())


def test_a_barrier_does_not_wait_for_what_is_sent_after_it(outbox: Outbox) -> None:
    assert has_passed(outbox)
    send(outbox, 1)  # of the second span
    answer(outbox, 1, Message(topic="topic", partition=0, offset=0))
    assert has_passed(outbox)


def test_the_end_is_behind_the_newest_message_of_each_partition(outbox: Outbox) -> None:
    send(outbox, 3)
    for partition, offset in ((0, 4), (1, 9), (0, 5)):
        answer(outbox, 0, Message(topic="topic", partition=partition, offset=offset))
    assert [outbox.end_offset("topic", partition) for partition in range(3)] == [6, 10, None]


def test_a_message_that_the_broker_already_had_is_delivered_and_moves_no_end(outbox: Outbox) -> None:
    """It was sent twice, since its first acknowledgement was lost: librdkafka does not know at which offset it is."""
    send(outbox, 2)
    answer(outbox, 0, Message(topic="topic", partition=0, offset=4))
    answer(outbox, 0, Message(topic="topic", partition=0))
    assert has_passed(outbox)
    assert outbox.end_offset("topic", 0) == 5


def test_one_message_that_cannot_be_delivered_fails_all_that_comes_after(outbox: Outbox) -> None:
    send(outbox, 1)
    answer(outbox, 0, Message(topic="topic", partition=0), KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises(ServiceUnavailable, match="MSG_TIMED_OUT"):
        send(outbox, 1)
    with pytest.raises(ServiceUnavailable, match="MSG_TIMED_OUT"):
        asyncio.run(outbox.barrier())


def test_a_topic_that_is_gone_is_named_and_no_address_is_doubted(outbox: Outbox) -> None:
    send(outbox, 1)
    answer(outbox, 0, Message(topic="topic", partition=0), KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(
        ServiceUnavailable, match=r"must have topic; got UNKNOWN_TOPIC_OR_PART: .* made anew"
    ) as caught:
        asyncio.run(outbox.barrier())
    assert "address" not in str(caught.value)


def test_who_waits_for_what_was_given_up_learns_so_and_what_is_sent_later_counts_by_itself(outbox: Outbox) -> None:
    async def wait() -> None:
        barrier = asyncio.ensure_future(outbox.barrier())
        await asyncio.sleep(0)  # let it begin
        outbox.give_up()
        with pytest.raises(SendingGivenUp, match="must be sent before others take over"):
            await asyncio.wait_for(barrier, 20.0)

    send(outbox, 2)
    old = outbox._line
    asyncio.run(wait())
    assert has_passed(outbox), "nothing is on its way any more"
    send(outbox, 1)
    outbox._settle(old, 0, "topic", None, Message(topic="topic", partition=0, offset=4))
    assert not has_passed(outbox), "a late answer to what was given up says nothing of what is sent now"
    assert outbox.end_offset("topic", 0) is None


def test_a_broker_that_is_not_there_does_not_answer(outbox: Outbox) -> None:
    assert not outbox.is_answered(0.2)
