"""What one recording is: a job, where it runs, and what is done to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tests.benchmarks.recordings.faults import Fault, Truth, Work
from tests.benchmarks.recordings.job_shape import JobShape
from tests.benchmarks.recordings.layout import Layout

ITERATIONS: Final = 70
SETTLING: Final = 3
"""First iterations of a recording that no figure is taken from."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording to make.

    Parameters
    ----------
    faults
        What is done; the first is what the label tells.
    is_sampled
        Whether NIC counters are recorded.
    """

    name: str
    shape: JobShape
    layout: Layout
    faults: tuple[Fault, ...] = field(default=(Fault(),))
    iterations: int = ITERATIONS
    is_sampled: bool = True

    def __post_init__(self) -> None:
        if self.shape.world_size != self.layout.world_size:
            raise ValueError(f"{self.name}: world size must be that of the layout; got {self.shape.world_size}")

    @property
    def is_from_start(self) -> bool:
        """Whether the fault was there before the first recorded iteration, and never ended."""
        return any(span == (0, self.iterations) for span in self.faults[0].spans)

    @property
    def truth(self) -> Truth:
        """What the label tells."""
        return self.faults[0].truth(self.layout)

    @property
    def window(self) -> tuple[int, int]:
        """From the first iteration in which the fault acts to past the last; (0, 0) without a fault."""
        spans = self.faults[0].spans
        if self.truth.kind == "none":
            return 0, 0
        return spans[0][0], (spans[-1][1] if self.truth.kind != "hang" else spans[0][0] + 1)

    def work(self, rank: int, iteration: int) -> Work:
        """Give what a rank does in an iteration."""
        work = Work()
        for fault in self.faults:
            work = fault.work(rank, iteration, work, self.layout)
        return work

    def label(self) -> dict[str, Any]:
        """Give the label, without what is measured."""
        spans = [list(span) for span in self.faults[0].spans]
        return self.truth.to_json() | {
            "iterations": list(self.window),
            "spans": spans,
            "communicator": None,
            "world_size": self.shape.world_size,
            "dims": self.shape.dims,
            "job": self.shape.describe(),
        }
