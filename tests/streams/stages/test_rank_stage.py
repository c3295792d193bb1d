from __future__ import annotations

import numpy as np
import pytest

from irregulars.errors import RecordError
from irregulars.messages.records import UNKNOWN, Batch, Header, encode_batch
from irregulars.streams.stages.rank_work import decode


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
