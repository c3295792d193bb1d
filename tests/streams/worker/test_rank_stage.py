from __future__ import annotations

import numpy as np
import pytest

from irregulars.errors import RecordError
from irregulars.streams.kafka.topics import MAX_MESSAGE_BYTES
from irregulars.streams.messages.announcements import Announcement, Communicator
from irregulars.streams.messages.evidence import Membership, decode_evidence
from irregulars.streams.messages.records import UNKNOWN, Batch, Header, encode_batch
from irregulars.streams.worker.rank_stage import decode, encode_within_limit


def batch_of(rank: int) -> bytes:
    columns = {
        "communicator": np.zeros(1, np.uint16), "operator": np.zeros(1, np.uint8), "sequence": np.zeros(1, np.int64),
        "peer": np.full(1, UNKNOWN), "start_ns": np.zeros(1, np.int64), "elapsed_ns": np.ones(1),
        "size_bytes": np.ones(1), "iteration": np.zeros(1, np.int64),
    }  # fmt: skip
    return encode_batch(Batch(Header("commops", "job", 0, rank, names=("world",)), columns))


def test_the_key_must_name_the_rank_inside() -> None:
    assert decode("commops", b"job/3", batch_of(3))
    with pytest.raises(RecordError, match=r"key must be b'job/3', the rank inside; got b'job/4'"):
        decode("commops", b"job/4", batch_of(3))
    with pytest.raises(RecordError, match="got None"):
        decode("commops", None, batch_of(3))


def test_a_batch_on_another_topic_is_refused() -> None:
    with pytest.raises(RecordError, match="schema must be 'bandwidth'"):
        decode("bandwidth", b"job/3", batch_of(3))


def test_evidence_is_split_at_the_size_limit_and_keeps_its_order() -> None:
    ranks = tuple(int(rank) for rank in np.random.default_rng(0).permutation(6000))
    world = (Communicator("world", "world", ranks),)
    rows = [Membership("job", 0, rank, Announcement("job", 0, rank, 6000, 6000, world)) for rank in range(100)]
    values = encode_within_limit(rows, "job")
    assert len(values) > 1
    assert max(map(len, values)) <= MAX_MESSAGE_BYTES
    assert [row for value in values for row in decode_evidence(value)] == rows
