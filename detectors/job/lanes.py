"""Lanes: where the time of a job is spent. All rooms above this one share the word.

A lane is something that is either quick or slow: the work of one rank, or a way that bytes take. Operators show three
kinds of them, and the counters of NICs one:

==============  =====================================================  ==============================================
kind            its time                                               written
==============  =====================================================  ==============================================
``work``        work of a rank between its operators (the gaps)        ``Lane("work", rank)``
``collective``  transfers of the collectives of one communicator       ``Lane("collective", code of communicator)``
``pair``        transfers of the messages from one rank to another     ``Lane("pair", sender, receiver)``
``nic``         traffic of one NIC, where no operators are known       ``Lane("nic", lowest rank on the NIC)``
==============  =====================================================  ==============================================

An example. Rank 0 computes for 80 ms and sends its activations to rank 1, which takes 5 ms. Rank 1 computes for
90 ms, and both reduce their gradients in communicator 7, which takes 20 ms. The iteration took 195 ms, which were
spent on four lanes:

===== ===========================
80 ms ``Lane("work", 0)``
5 ms  ``Lane("pair", 0, 1)``
90 ms ``Lane("work", 1)``
20 ms ``Lane("collective", 7)``
===== ===========================

Waiting is on no lane: rank 1 waited 80 ms for the activations, but that time was spent on ``Lane("work", 0)``.

Lanes are seen, devices are blamed. A device slows all lanes that it carries: a GPU the work of its rank, a NIC all
pairs and collectives of its ranks that leave the host, a link one pair. So the lanes that are slow, and those beside
them that are not, show which device it is (`irregulars.detectors.blame`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from irregulars.detectors.job.thresholds import JOB

LANE_KINDS: Final = ("work", "collective", "pair", "nic")


class Lane(NamedTuple):
    """A place where time is spent."""

    kind: str  # one of `LANE_KINDS`
    first: int  # the rank, the communicator by the job's code, or the sender
    second: int = -1  # the receiver of a ``pair``, else -1


EVERYBODY: Final = Lane("work", -1)
"""Work that takes all ranks longer by the same factor, as when sequences get longer."""


class UsualLane(NamedTuple):
    """The usual values for a lane, learned from iterations without a fault."""

    mean_ns: float  # mean time of one transfer
    noise_ns: float  # robust standard deviation of that mean from iteration to iteration
    size_bytes: float  # bytes of one transfer; NaN where not known
    most_ns: float = 0.0  # the largest mean of these iterations less `mean_ns`


class LaneExcess(NamedTuple):
    """The transfers of one lane in one iteration, compared with the usual values."""

    excess_ns: float  # how much longer than usual all of them took together
    usual_ns: float  # how long they usually take together
    noise_ns: float  # robust standard deviation of that from iteration to iteration
    size_bytes: float  # bytes that one rank gave to all of them; NaN where not known
    # Over how many of them the excess is spread: 1 if one transfer has all of it, `transfers` if all have the same.
    # It is the participation number (Σx)² / Σx² of their excesses x; at least `JOB.stray_transfers` if the excess is
    # that of a transfer which takes nearly all of the lane's usual time.
    slow_transfers: float = 1.0
    transfers: float = 1.0  # how many there were
    most_ns: float = 0.0  # the largest excess in iterations without a fault

    @property
    def is_beyond_noise(self) -> bool:
        """Whether they surely took longer than in any iteration without a fault."""
        return self.excess_ns > self.most_ns + self.noise_ns

    @property
    def is_stray(self) -> bool:
        """Whether one of several transfers has all of the excess: it hung, and what carries the lane is not slow."""
        return self.transfers > 1 and self.slow_transfers < JOB.stray_transfers
