"""Announcements and heartbeats on the wire."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import RecordError
from irregulars.messages.announcements import (
    MAX_MEMBERS,
    Announcement,
    Communicator,
    Heartbeat,
    SourceProgress,
    decode_announcement,
    decode_heartbeat,
    encode_announcement,
    encode_heartbeat,
    ranks_to_runs,
)

PLAIN = Announcement("j", 1, 0, 8, 8, (Communicator("w", "world", (0, 1)),))


@given(st.lists(st.integers(0, 30), max_size=12))
def test_ranks_come_back_from_runs_in_their_order(ranks: list[int]) -> None:
    assert [rank for run in ranks_to_runs(ranks) for rank in range(*run)] == ranks


@pytest.mark.parametrize("record", [
    PLAIN,
    replace(PLAIN, communicators=(), sources=("commops", "iterations"), is_logged=False, clock="shared"),
    replace(PLAIN, host="δ", gpu=3, nic="mlx5_0", switch="leaf", lost_rows=9, recorded_until_ns=2**60),
    Heartbeat("j", 1, 0),
    Heartbeat("j", 1, 7, {"commops": SourceProgress(5, None), "bandwidth": SourceProgress(0, 2**60, 4)}),
    Heartbeat("j", 2, 7, state="ended", reason="finished"),
])  # fmt: skip
def test_announcements_and_heartbeats_come_back_as_they_went(record: Announcement | Heartbeat) -> None:
    if isinstance(record, Announcement):
        assert decode_announcement(encode_announcement(record)) == record
    else:
        assert decode_heartbeat(encode_heartbeat(record)) == record


def test_a_large_communicator_takes_few_bytes_and_a_larger_one_than_a_worker_holds_is_refused() -> None:
    large = replace(PLAIN, communicators=(Communicator("w", "world", tuple(range(8192))),))
    assert len(encode_announcement(large)) < len(encode_announcement(PLAIN)) + 10
    few, many = f"[0,{MAX_MEMBERS},1]", f"[0,{MAX_MEMBERS},1],[0,1,1]"
    message = encode_announcement(PLAIN).decode()
    assert len(decode_announcement(message.replace("[0,2,1]", few).encode()).communicators[0].ranks) == MAX_MEMBERS
    with pytest.raises(RecordError, match="must have at most"):
        decode_announcement(message.replace("[0,2,1]", many).encode())


def test_members_of_one_communicator_share_it() -> None:
    """So that a job's announcements take what its communicators take once, and not once for each of its ranks."""
    first, other = (decode_announcement(encode_announcement(replace(PLAIN, rank=rank))) for rank in (0, 1))
    assert first.communicators[0] is other.communicators[0]
    renamed = replace(PLAIN, communicators=(replace(PLAIN.communicators[0], kind="dp"),))
    assert decode_announcement(encode_announcement(renamed)) == renamed
