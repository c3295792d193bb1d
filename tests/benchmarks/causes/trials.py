"""What goes wrong in real jobs, on which rank and when, and what a verdict should say of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = ("garbage_collection", "data_loader", "checkpoint_write", "cpu_throttled", "cpu_wait", "io_wait", "compute")
LAYERS = {
    "garbage_collection": "software", "data_loader": "data", "checkpoint_write": "software", "cpu_throttled": "host",
    "cpu_wait": "host", "io_wait": "host", "compute": "unknown",
}  # fmt: skip
"""Where each lies. ``compute``: nothing but the rank's own work is slow, and no pause tells why."""

WRITTEN_BYTES_PER_S = 20 << 20  # that the quota of a disk allows


@dataclass(frozen=True)
class Trial:
    """One recording; `ranks` is empty where all is well."""

    name: str
    kind: str  # of `KINDS`, or ``clean``
    ranks: tuple[int, ...]
    first: int  # step at which it begins
    past: int  # and the one before which it ends
    steps: int
    extra_s: float = 0.0  # how much longer a step takes, about
    share: float = 0.0  # of a processor that the quota allows

    @property
    def faulty(self) -> range:
        return range(self.first, self.past)


def draw(seed: int, count: int, ranks: int, kinds: tuple[str, ...] = KINDS) -> list[Trial]:
    drawn = random.Random(seed)
    trials = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        first = drawn.randrange(35, 50)
        trials.append(
            Trial(
                f"{kind.replace('_', '-')}-{seed}-{number}",
                kind,
                (drawn.randrange(ranks),),
                first,
                first + drawn.randrange(20, 31),
                90,
                drawn.uniform(0.03, 0.08),
                drawn.uniform(0.04, 0.08),
            )
        )
    return trials


def clean(seed: int, steps: int) -> Trial:
    return Trial(f"clean-{seed}", "clean", (), 0, 0, steps)
