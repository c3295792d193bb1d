"""Changes of when things are said to have happened: resolution, clocks, a common shift.

Each takes a recording and chance, and returns the changed recording; it changes the columns of time and
``clock`` in ``job.json``, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.messages.records import UNKNOWN
from tests.benchmarks.metamorphic.recording import Changed, Recording

Array = np.ndarray

CLOCK_PPM: Final = 50.0
"""How far the clock of `elapsed` runs from that of `start`: what the specification of a common quartz allows."""

OFFSET_MS: Final = 5.0  # clocks of hosts are off by up to so much to either side: a poor NTP
DRIFT_PPM: Final = 20.0  # clocks of hosts gain or lose up to so much
SHIFT_NS: Final = 37 * 86_400 * 10**9  # 37 days
_MOMENTS: Final = {"commops": "start_ns", "iterations": "start_ns", "bandwidth": "time_ns"}
_SPANS: Final = ("commops", "iterations")


def round_times(step_ns: int) -> Callable[[Recording, np.random.Generator], Changed]:
    """Make the change that rounds starts, elapsed times and times of samples to a grid of `step_ns`.

    Each is first moved by up to 1 ns, as a log in nanoseconds does not know better: so rounding to 1 ns changes
    something, and start and elapsed are rounded apart.
    """

    def rounded(values: Array, random: np.random.Generator) -> Array:
        moved = values.astype(np.int64) + random.integers(-1, 2, len(values))
        return np.maximum((moved + step_ns // 2) // step_ns * step_ns, 0)

    def change(recording: Recording, random: np.random.Generator) -> Changed:
        for schema, moment in _MOMENTS.items():
            at_ns = recording.tables[schema][moment]
            later = np.where(at_ns == UNKNOWN, UNKNOWN, rounded(at_ns, random))
            recording = recording.with_columns(schema, **{moment: later})
        for schema in _SPANS:
            elapsed_ns = recording.tables[schema]["elapsed_ns"].astype(np.float64)
            known = rounded(np.nan_to_num(elapsed_ns), random)
            recording = recording.with_columns(schema, elapsed_ns=np.where(np.isnan(elapsed_ns), np.nan, known))
        return Changed(recording)

    return change


def run_elapsed_fast(recording: Recording, random: np.random.Generator) -> Changed:
    """All operators' elapsed times come from a clock that runs `CLOCK_PPM` fast."""
    return Changed(_with_elapsed(recording, np.full(recording.job.world_size, CLOCK_PPM)))


def run_elapsed_slow(recording: Recording, random: np.random.Generator) -> Changed:
    """All operators' elapsed times come from a clock that runs `CLOCK_PPM` slow."""
    return Changed(_with_elapsed(recording, np.full(recording.job.world_size, -CLOCK_PPM)))


def run_elapsed_apart(recording: Recording, random: np.random.Generator) -> Changed:
    """Each rank's elapsed times come from a clock of its own, up to `CLOCK_PPM` fast or slow."""
    return Changed(_with_elapsed(recording, random.uniform(-CLOCK_PPM, CLOCK_PPM, recording.job.world_size)))


def _with_elapsed(recording: Recording, ppm: Array) -> Recording:
    table = recording.tables["commops"]
    return recording.with_columns("commops", elapsed_ns=np.rint(table["elapsed_ns"] * (1 + ppm[table["rank"]] / 1e6)))


def shift(recording: Recording, random: np.random.Generator) -> Changed:
    until_ns = recording.job.recorded_until_ns
    job = replace(recording.job, recorded_until_ns=None if until_ns is None else until_ns + SHIFT_NS)
    return Changed(replace(_moved(recording, lambda _, at_ns: at_ns + SHIFT_NS), job=job))


def offset_clocks(recording: Recording, random: np.random.Generator) -> Changed:
    """Clocks of hosts are up to `OFFSET_MS` apart, and ``clock`` says so."""
    offset_ns = _draw_of_clocks(recording, random, OFFSET_MS * 1e6)
    return _with_own_clocks(recording, lambda rank, at_ns: at_ns + offset_ns[rank].astype(np.int64))


def drift_clocks(recording: Recording, random: np.random.Generator) -> Changed:
    """Clocks of hosts are up to `OFFSET_MS` apart and drift by up to `DRIFT_PPM`, and ``clock`` says so."""
    offset_ns = _draw_of_clocks(recording, random, OFFSET_MS * 1e6)
    ratio = _draw_of_clocks(recording, random, DRIFT_PPM / 1e6)
    moments = np.concatenate([recording.tables[schema][moment] for schema, moment in _MOMENTS.items()])
    first_ns = int(moments[moments != UNKNOWN].min(initial=np.iinfo(np.int64).max))

    def drifted(rank: Array, at_ns: Array) -> Array:
        return at_ns + np.rint(offset_ns[rank] + ratio[rank] * (at_ns - first_ns)).astype(np.int64)

    return _with_own_clocks(recording, drifted)


def _draw_of_clocks(recording: Recording, random: np.random.Generator, most: float) -> Array:
    """Per rank a value of its host's clock, -`most` to `most`; ranks whose host is not known have their own."""
    places = recording.job.places
    hosts = [places[rank].host if rank in places else None for rank in range(recording.job.world_size)]
    clocks = [f"rank {rank}" if host is None else f"host {host}" for rank, host in enumerate(hosts)]
    own, clock = np.unique(np.array(clocks), return_inverse=True)
    return random.uniform(-most, most, len(own))[clock]


def _with_own_clocks(recording: Recording, move: Callable[[Array, Array], Array]) -> Changed:
    return Changed(replace(_moved(recording, move), job=replace(recording.job, clock="per_host")))


def _moved(recording: Recording, move: Callable[[Array, Array], Array]) -> Recording:
    """Replace each known moment by what `move` makes of rank and ns since the epoch."""
    for schema, moment in _MOMENTS.items():
        table = recording.tables[schema]
        is_known = table[moment] != UNKNOWN
        later = table[moment].copy()
        later[is_known] = np.maximum(move(table["rank"][is_known], later[is_known]), 0)
        recording = recording.with_columns(schema, **{moment: later})
    return recording
