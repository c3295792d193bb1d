"""Classes of operators: those with the same communicator, operator and peer, which a rank may run many times."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from irregulars.dtypes import Column, Flags, Ints
from irregulars.messages.records import RECV, SEND, UNKNOWN

NO_RANK = -1  # sender and receiver of a row that is no message


def pack_class(columns: Mapping[str, Column]) -> Ints:
    """Pack communicator, operator and peer of each row into one int64 (peers and communicators below 2**28)."""
    peer = np.where(columns["peer"] == UNKNOWN, -1, columns["peer"]) + 1
    return np.asarray((columns["communicator"] << 33) | (columns["operator"] << 29) | peer)


def class_parts(columns: Mapping[str, Column]) -> list[Ints]:
    """Return communicator, operator and peer of each row, which sort as `pack_class` does, in few bits."""
    return [columns["communicator"], columns["operator"], np.maximum(columns["peer"], -1)]


def unpack_class(packed: Ints) -> tuple[Ints, Ints, Ints]:
    """Undo `pack_class`: return communicators, operators, and peers (-1 for collectives)."""
    return packed >> 33, (packed >> 29) & 15, (packed & ((1 << 29) - 1)) - 1


def is_p2p(operator: Ints) -> Flags:
    """Return for each row whether it is a send or a recv."""
    return np.asarray((operator == SEND) | (operator == RECV))


def senders_and_receivers(operator: Ints, rank: Ints, peer: Ints) -> tuple[Ints, Ints]:
    """Return the sending and the receiving rank of each send and recv; `NO_RANK` for collectives.

    >>> senders_and_receivers(np.array([SEND, RECV]), np.array([0, 3]), np.array([3, 0]))
    (array([0, 0]), array([3, 3]))
    """
    has_peer, is_send = is_p2p(operator), operator == SEND
    sender = np.where(has_peer, np.where(is_send, rank, peer), NO_RANK)
    return sender, np.where(has_peer, np.where(is_send, peer, rank), NO_RANK)
