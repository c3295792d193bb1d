"""Lanes: where time is spent. The word that all judgement shares."""

from __future__ import annotations

from typing import Final, NamedTuple

_STRAY_TRANSFERS: Final = 1.5  # one that hung, beside the noise of all others of its lane


LANE_KINDS: Final = ("work", "collective", "pair", "nic")


class Lane(NamedTuple):
    """Where time is spent: ``work`` of a rank, a collective of a communicator, or the way from one rank to another.

    ``first`` is the rank, the communicator's code, or the sender; ``second`` the receiver (-1 elsewhere). Work of the
    rank -1 is everybody's: what all ranks took longer, as when sequences get longer.
    """

    kind: str
    first: int
    second: int = -1


EVERYBODY: Final = Lane("work", -1)


class UsualLane(NamedTuple):
    """What a lane's mean transfer usually takes, and its robust standard deviation from iteration to iteration, ns.

    ``size_bytes`` are its bytes; NaN where not known. ``most_ns``: by how much it was exceeded at most in iterations
    that were as always.
    """

    mean_ns: float
    noise_ns: float
    size_bytes: float
    most_ns: float = 0.0


class LaneExcess(NamedTuple):
    """Transfers of one lane in one iteration: how much longer than usual, what is usual, and how noisy that is.

    ``size_bytes`` is what one rank gave to all of them; NaN where not known. ``slow_transfers`` says over how many of
    them the excess is spread: 1 where one transfer has it all, their number where all have the same. It is
    (Σx)² / Σx² of their excesses x, the participation number. ``transfers`` is how many there were. ``most_ns``: as
    much longer they took at most in iterations that were as always.
    """

    excess_ns: float
    usual_ns: float
    noise_ns: float
    size_bytes: float
    slow_transfers: float = 1.0
    transfers: float = 1.0
    most_ns: float = 0.0

    @property
    def is_stray(self) -> bool:
        """Whether one of several transfers has all of the excess: it hung, and what carries the lane is not slow."""
        return self.transfers > 1 and self.slow_transfers < _STRAY_TRANSFERS
