"""Messages that travel together are taken one by one, and acknowledged together."""

from __future__ import annotations

from irregulars.streams.faust_client.message_blocks import MOST_BYTES, MOST_MESSAGES, Record, cut_blocks, events_of


class Acknowledged:
    def __init__(self) -> None:
        self.count = 0

    def ack(self) -> None:
        self.count += 1


def records(*sizes_bytes: int) -> list[Record]:
    return [Record("commops", 3, 10 + place, 0.0, None, bytes(size)) for place, size in enumerate(sizes_bytes)]


def test_a_block_is_acknowledged_with_its_last_message() -> None:
    event = Acknowledged()
    events = events_of(records(1, 2, 3), event)
    assert [(one.message.offset, len(one.value or b"")) for one in events] == [(10, 1), (11, 2), (12, 3)]
    counts = []
    for one in events:
        one.ack()
        counts.append(event.count)
    assert counts == [0, 0, 1]


def test_blocks_have_a_bounded_number_of_messages_and_bytes() -> None:
    large = MOST_BYTES // 2 + 1
    assert [len(block) for block in cut_blocks(records(*[1] * (MOST_MESSAGES + 1)))] == [MOST_MESSAGES, 1]
    assert [len(block) for block in cut_blocks(records(large, large, 1, 1))] == [1, 3]
    assert [len(block) for block in cut_blocks(records(3 * MOST_BYTES, 1))] == [1, 1]
    assert list(cut_blocks([])) == []


def test_blocks_keep_the_order() -> None:
    own = records(*range(200))
    assert [one for block in cut_blocks(own) for one in block] == own
