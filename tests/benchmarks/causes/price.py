"""What recording pauses adds to a step, processor time: ``python -m tests.benchmarks.causes.price``.

A step here makes what a step of training makes of pauses: one batch is taken, the optimizer begins, the iteration
ends. Each is timed with all sources on and with none, in turn.
"""

from __future__ import annotations

import gc
import sys
import time
from statistics import median

from irregulars.producers.torch_hook import host_waits
from irregulars.producers.torch_hook.iterations import Iterations
from irregulars.producers.torch_hook.pauses import SOURCES, Pauses


class _BaseDataLoaderIter:
    """As torch's, whose module is not loaded here; it takes no time."""

    def __next__(self) -> None:
        return None


STEPS, ROUNDS, COLLECTIONS = 2000, 9, 2


def step_us(pauses: Pauses | None) -> float:
    """Return how long a step takes, µs of processor time; in a job another thread takes the rows."""
    iterations = Iterations(by_steps=False, pauses=pauses)
    batches = _BaseDataLoaderIter()
    began_ns = time.thread_time_ns()
    for number in range(STEPS):
        with iterations.mark(number):
            if pauses is not None:
                next(batches)
                pauses.read_host()
            for _ in range(COLLECTIONS):
                gc.collect(0)
    return (time.thread_time_ns() - began_ns) / STEPS / 1e3


def main() -> None:
    sys.modules["torch.utils.data.dataloader"] = sys.modules[__name__]
    host_waits.PRICE_SHARE = 1e9  # each step reads the host's counters, as steps of 20 ms and more do
    added = []
    for _ in range(ROUNDS):
        without_us = step_us(None)
        own = Pauses(SOURCES, print)
        own.start()
        own.take()
        added.append(step_us(own) - without_us)
        own.stop()
    print(f"pauses add {median(added):.1f} us to a step ({min(added):.1f} to {max(added):.1f}, {ROUNDS} rounds)")


if __name__ == "__main__":
    main()
