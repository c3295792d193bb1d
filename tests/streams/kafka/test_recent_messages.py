"""What is kept of the messages that came last."""

from __future__ import annotations

import pytest

from irregulars.streams.kafka.recent_messages import RecentMessages


@pytest.mark.parametrize(("most_bytes", "kept"), [(0, []), (9, [3]), (10, [2, 3]), (14, [2, 3]), (15, [1, 2, 3])])
def test_the_newest_that_fit_are_kept(most_bytes: int, kept: list[int]) -> None:
    recent = RecentMessages(most_bytes)
    for offset in (1, 2, 3):
        recent.add(0, offset, b"55555")
    assert [offset for offset in (1, 2, 3) if recent.get(0, offset) is not None] == kept
    assert len(recent) == len(kept)


def test_one_that_is_added_again_counts_once_and_is_new_again() -> None:
    recent = RecentMessages(10)
    for offset in (1, 2, 1, 3):
        recent.add(0, offset, b"55555")
    assert (recent.get(0, 1), recent.get(0, 2), recent.get(0, 3)) == (b"55555", None, b"55555")


def test_partitions_have_offsets_of_their_own() -> None:
    recent = RecentMessages(10)
    recent.add(0, 7, b"a")
    recent.add(1, 7, b"b")
    assert (recent.get(0, 7), recent.get(1, 7), recent.get(2, 7)) == (b"a", b"b", None)
