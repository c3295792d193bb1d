"""A source without torch: the real ring, groups and iterations, filled by hand."""

from __future__ import annotations

import time
from collections.abc import Callable

from irregulars.messages.records import UNKNOWN
from irregulars.producers.torch_hook.hooks.groups import Groups
from irregulars.producers.torch_hook.hooks.ring import NO_PEER, PythonRing
from irregulars.producers.torch_hook.identity import Identity, Start
from irregulars.producers.torch_hook.iterations import Iterations
from irregulars.producers.torch_hook.source import TorchSource


class HandHook:
    """A hook that nothing is attached to; tests write into its ring."""

    def __init__(self, capacity: int) -> None:
        self.ring = PythonRing(capacity)

    def ask_devices(self) -> None:
        return


class Rank:
    """One rank of two, whose operators and iterations a test makes."""

    def __init__(
        self,
        rank: int,
        world_size: int = 2,
        *,
        capacity: int = 64,
        is_unmarked: bool = False,
        start: Callable[[int], Start] = lambda rank: Start(),
    ) -> None:
        self.hook, self.groups, self.iterations = HandHook(capacity), Groups(), Iterations()
        self.groups.add("0", range(world_size), world_size, "default_pg", 2)
        identity = Identity("job", host="node", gpu=rank, local_world_size=world_size)
        self.place: tuple[int, int] | None = (rank, world_size)
        self.source = TorchSource(
            self.hook, self.groups, self.iterations, identity, lambda: self.place, start,
            is_unmarked=is_unmarked,
        )  # fmt: skip
        self._sequence = 0

    def operate(self, iteration: int, *, is_ended: bool = True, size: int = 4) -> None:
        self._sequence += 1
        now_ns = time.monotonic_ns()
        ordinal = self.hook.ring.add(now_ns - 1_000, size, iteration, self._sequence, NO_PEER, 0, 0)
        if is_ended:
            self.hook.ring.finish(ordinal, now_ns)

    def train_unmarked(self, iterations: int) -> None:
        """Run iterations of two buckets of gradients and a loss, and say nothing of them."""
        for _ in range(iterations):
            time.sleep(0.002)
            for size in (1 << 20, 1 << 18, 4):
                self.operate(UNKNOWN, size=size)

    def train(self, iterations: int) -> None:
        """Run iterations of one operator each."""
        for number in range(iterations):
            with self.iterations.mark(number):
                self.operate(number)
