"""Classes of operators, and who sends to whom."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.path.operator_classes import (
    NO_RANK,
    is_p2p,
    pack_class,
    senders_and_receivers,
    unpack_class,
)
from irregulars.messages.records import OPERATOR_CODES, OPERATORS, RECV, SEND, UNKNOWN

ALL_REDUCE = OPERATOR_CODES["all_reduce"]


def test_a_message_has_a_sender_and_a_receiver_at_both_of_its_ends() -> None:
    operator, rank, peer = np.array([SEND, RECV, ALL_REDUCE]), np.array([0, 3, 5]), np.array([3, 0, UNKNOWN])
    sender, receiver = senders_and_receivers(operator, rank, peer)
    assert is_p2p(operator).tolist() == [True, True, False]
    assert (sender.tolist(), receiver.tolist()) == ([0, 0, NO_RANK], [3, 3, NO_RANK])


@given(
    communicator=st.integers(0, 2**16 - 1),
    operator=st.integers(0, len(OPERATORS) - 1),
    peer=st.one_of(st.none(), st.integers(0, 2**28)),
)
def test_a_class_unpacks_to_what_was_packed(communicator: int, operator: int, peer: int | None) -> None:
    values = {"communicator": communicator, "operator": operator, "peer": UNKNOWN if peer is None else peer}
    packed = pack_class({name: np.array([value]) for name, value in values.items()})
    assert [int(part[0]) for part in unpack_class(packed)] == [communicator, operator, -1 if peer is None else peer]
