"""All changes after which a recording must be judged as before, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.benchmarks.metamorphic import evaluation, names, times
from tests.benchmarks.metamorphic.recording import Changed, Delivery, Recording

Apply = Callable[[Recording, np.random.Generator], Changed | None]
"""Changes a recording, or gives `None` where it does not apply. All chance comes from the generator."""


@dataclass(frozen=True, slots=True)
class Change:
    about: str  # what is different afterwards; one line
    apply: Apply


def _deliver(delivery: Delivery) -> Apply:
    return lambda recording, _: Changed(recording, delivery=delivery)


CHANGES: Final[Mapping[str, Change]] = {
    "round-1ns": Change("start and elapsed are rounded apart, to 1 ns", times.round_times(1)),
    "round-1us": Change("start and elapsed are rounded apart, to 1 µs", times.round_times(1_000)),
    "round-10us": Change("start and elapsed are rounded apart, to 10 µs", times.round_times(10_000)),
    "elapsed-fast": Change("elapsed comes from a clock 50 ppm faster than that of start", times.run_elapsed_fast),
    "elapsed-slow": Change("elapsed comes from a clock 50 ppm slower than that of start", times.run_elapsed_slow),
    "elapsed-apart": Change("each rank's elapsed comes from its own clock, up to ±50 ppm", times.run_elapsed_apart),
    "shift": Change("everything happened 37 days later", times.shift),
    "clock-offsets": Change("hosts' clocks are up to ±5 ms off; job.json says per_host", times.offset_clocks),
    "clock-drift": Change("they are, and drift by up to ±20 ppm besides", times.drift_clocks),
    "row-order": Change("the files have their rows in another order", names.mix_rows),
    "row-copies": Change("1 % of the rows are there twice", names.copy_rows),
    "row-loss": Change("0.5 % of the rows are missing", names.lose_rows),
    "ranks-permuted": Change("ranks other than 0 get numbers drawn anew", names.permute_ranks),
    "ranks-dealt": Change("ranks are numbered as cards are dealt to three hands", names.deal_ranks),
    "devices-renamed": Change("hosts, NICs and switches have other names", names.rename_devices),
    "communicators-renamed": Change("communicators have other ids", names.rename_communicators),
    "iterations-later": Change("iterations are numbered from 1,000 more", names.number_iterations_later),
    "sequences-later": Change("sequences begin elsewhere on each communicator", names.number_sequences_later),
    "evaluation": Change("five marked evaluations come in between", evaluation.insert_evaluation),
    "batches-of-29": Change("it streams in batches of 29 rows", _deliver(Delivery(29, 0.05))),
    "batches-of-1500": Change("it streams in batches of 1,500 rows or a second", _deliver(Delivery())),
    "batches-of-20000": Change("it streams in batches of 20,000 rows or 600 s", _deliver(Delivery(20_000, 600))),
}
"""By name, as ``--changes`` takes it."""
