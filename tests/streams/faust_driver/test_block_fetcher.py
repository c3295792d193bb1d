"""Messages of a partition travel through Faust in blocks."""

from __future__ import annotations

from irregulars.streams.faust_driver.block_fetcher import MOST_BYTES, MOST_MESSAGES, Record, cut_blocks


def records(*sizes_bytes: int) -> list[Record]:
    return [Record("commops", 3, 10 + place, 0.0, None, bytes(size)) for place, size in enumerate(sizes_bytes)]


def test_blocks_have_a_bounded_number_of_messages_and_bytes() -> None:
    large = MOST_BYTES // 2 + 1
    assert [len(block) for block in cut_blocks(records(*[1] * (MOST_MESSAGES + 1)))] == [MOST_MESSAGES, 1]
    assert [len(block) for block in cut_blocks(records(large, large, 1, 1))] == [1, 3]
    assert [len(block) for block in cut_blocks(records(3 * MOST_BYTES, 1))] == [1, 1]
    assert list(cut_blocks([])) == []


def test_blocks_keep_the_order() -> None:
    own = records(*range(200))
    assert [one for block in cut_blocks(own) for one in block] == own
