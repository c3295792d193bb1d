"""Many incidents of one job.

The healthy job runs once; each incident runs again only the iterations that its faults touch.

All incidents share every random draw with the healthy run, their *twin*. An iteration in which no fault acts, and in
which all ranks begin as far apart as in the twin, is the twin's, only later.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement
from irregulars.messages.records import Batch
from irregulars.producers.simulator.effects import NO_EFFECTS, Faults
from irregulars.producers.simulator.engine import Engine, Run
from irregulars.producers.simulator.faults import Fault, parse_fault
from irregulars.producers.simulator.rows import BandwidthSampler, JobRows, Samples
from irregulars.producers.simulator.settings import (
    FIELD,
    NS_PER_MS,
    NS_PER_S,
    OFF_CLOCKS,
    RECORDED_START_NS,
    SimulatorSettings,
    with_preset,
)
from irregulars.producers.simulator.source import sources_of
from irregulars.producers.simulator.truth import fit, label_of
from irregulars.producers.trace.writer import write_trace

_SPREADS: Final = (
    "gap_noise_ratio", "transfer_noise_ratio", "rank_spread_ratio", "replica_spread_ratio",
    "pause_probability", "elapsed_clock_ppm", "shared_clock_error_us", "compile_ms",
)  # fmt: skip
_SIZES: Final = (0.5, 1.5)
_ITERATION_SPREADS: Final = (0.004, 0.045)  # the other sorts add 1 to 3 %
_RESOLUTIONS_NS: Final = (1_000, 10_000, 1)
_FIELD: Final = 71  # apart from the generators of a job


def suite_case(settings: SimulatorSettings, number: int) -> SimulatorSettings:
    """Return a job of the suite: its noise, its own seed, and with every odd number clocks that are off.

    >>> [suite_case(SimulatorSettings(seed=100), n).clock for n in (0, 1)]
    ['shared', 'per_host']
    """
    noisy = with_preset(replace(settings, seed=settings.seed + number), "suite")
    return replace(noisy, **OFF_CLOCKS) if number % 2 else noisy


def field_case(settings: SimulatorSettings, number: int) -> SimulatorSettings:
    """Return a job as one may meet it: its own seed, and each untidiness of `FIELD` in a size of its own.

    Times are rounded to 1 ns, 1 µs or 10 µs in turn, and with every odd number clocks are off.

    >>> [field_case(SimulatorSettings(), n).time_resolution_ns for n in range(3)]
    [1000, 10000, 1]
    """
    seed = settings.seed + number
    draw = np.random.default_rng([seed, _FIELD]).uniform
    sizes = {name: FIELD[name] * draw(*_SIZES) for name in _SPREADS}
    sizes["iteration_spread_ratio"] = float(np.exp(draw(*np.log(_ITERATION_SPREADS))))
    # A replica that cuts its batch into fewer than four has more sequences in each, and they differ less.
    sizes["micro_batch_spread_ratio"] = draw(0.02, 0.12) * min(math.sqrt(settings.micro_batches / 4), 1.0)
    sizes["host_phase_ratio"] = draw(0.03, 0.045)  # hosts differ by a third: 2 to 6 %
    untidy = with_preset(replace(settings, seed=seed), "field")
    untidy = replace(untidy, **sizes, time_resolution_ns=_RESOLUTIONS_NS[number % len(_RESOLUTIONS_NS)])
    return replace(untidy, **OFF_CLOCKS) if number % 2 else untidy


Floats = NDArray[np.float64]

_SAME_NS: Final = 1.0
_CHUNK_ROWS: Final = 4_000_000


class Incidents:
    """A healthy job, and what happens to it.

    Parameters
    ----------
    settings
        The job without faults. Give only the iterations that are needed: they are kept in memory, some 20 bytes for
        each operator.
    start_ns
        When it starts, ns since the epoch.

    Raises `InputError` if the settings have faults.

    >>> job = Incidents(SimulatorSettings(iterations=6, seed=3))
    >>> incident = job.run("slow_rank:rank=5,from=2,to=4,excess=0.2")
    >>> incident.label()["rank"], incident.iteration_times_s().shape
    (5, (6,))
    """

    def __init__(self, settings: SimulatorSettings, *, start_ns: int = RECORDED_START_NS) -> None:
        if settings.faults:
            raise InputError(f"faults must be given to run; got {len(settings.faults)} (settings of incidents)")
        self.settings, self.start_ns = settings, start_ns
        self.engine = Engine(settings)
        self._healthy: list[Run] = []

    def healthy(self, iteration: int) -> Run:
        while len(self._healthy) <= iteration:
            self._healthy.append(self.engine.advance())
        return self._healthy[iteration]

    def run(self, *faults: Fault | str) -> Incident:
        """Run the job with these faults, calibrated where an excess is wanted; without any, it is the healthy job.

        Raises `InputError` if a fault is wrong, or does not fit the cluster.
        """
        given = [parse_fault(fault) if isinstance(fault, str) else fault for fault in faults]
        fitted = tuple(fit(self.engine, self.healthy, fault, number) for number, fault in enumerate(given))
        return Incident(self, fitted, tuple(self._runs(fitted)))

    def _runs(self, faults: Sequence[Fault]) -> Iterator[Run]:
        acting = Faults(self.engine.topology, self.engine.network, dict(enumerate(faults)))
        ready_ns = self.healthy(0).start_ns
        for iteration in range(self.settings.iterations):
            run = self._one(iteration, ready_ns, acting)
            yield run
            if run.is_hung:
                return
            ready_ns = self.engine.ready_after_ns(run)

    def _one(self, iteration: int, ready_ns: Floats, acting: Faults) -> Run:
        effects, twin = acting.effects(iteration), self.healthy(iteration)
        later_ns = ready_ns - twin.start_ns
        if effects is NO_EFFECTS and np.ptp(later_ns) < _SAME_NS:
            return _shifted(twin, float(later_ns[0])) if later_ns.any() else twin
        return self.engine.run(iteration, ready_ns, effects)


def _shifted(run: Run, by_ns: float) -> Run:
    times = ("start_ns", "end_ns", "arrival_ns", "departure_ns", "begin_ns")
    return replace(run, **{name: getattr(run, name) + by_ns for name in times})


@dataclass(frozen=True)
class Incident:
    job: Incidents  # the healthy job
    faults: tuple[Fault, ...]  # with their strengths
    runs: tuple[Run, ...]  # one per iteration; fewer if the job hung

    @property
    def settings(self) -> SimulatorSettings:
        return replace(self.job.settings, faults=self.faults)

    @property
    def recorded_until_ns(self) -> int | None:
        """When recording ended, ns since the epoch, if the job came to a standstill."""
        last = self.runs[-1] if self.runs else None
        if last is None or not last.is_hung:
            return None
        return self.job.start_ns + round(last.last_ns + self.settings.recorded_after_hang_s * NS_PER_S)

    def iteration_times_s(self) -> Floats:
        """Time of each iteration, the largest of its ranks'; infinite for the one that hung."""
        return np.array([run.elapsed_ns for run in self.runs]) / NS_PER_S

    def healthy_times_s(self) -> Floats:
        """Time of the same iterations without the faults."""
        return np.array([self.job.healthy(run.iteration).elapsed_ns for run in self.runs]) / NS_PER_S

    def announcements(self) -> Iterator[Announcement]:
        return self.job.engine.topology.announcements(sources_of(self.settings), self.recorded_until_ns)

    def batches(self) -> Iterator[Batch]:
        """Yield rows as `SimulatorSource` would send them, in batches of many iterations."""
        engine, period_ms = self.job.engine, self.settings.bandwidth_period_ms
        rows, sampler = JobRows(engine, self.job.start_ns), BandwidthSampler(engine) if period_ms else None
        size = max(_CHUNK_ROWS // len(engine.plan.rows.step), 1)
        for begin in range(0, len(self.runs), size):
            runs = self.runs[begin : begin + size]
            yield from rows.commops(runs)
            if sampler is not None:
                yield from rows.bandwidth(self._samples(sampler, runs))
            yield from rows.iterations(runs)

    def _samples(self, sampler: BandwidthSampler, runs: Sequence[Run]) -> Samples:
        """Samples of the next iterations; at the end of the job up to the first one after it."""
        for run in runs:
            sampler.add(run)
        if runs[-1] is self.runs[-1]:
            return sampler.take(runs[-1].last_ns + 2 * self.settings.bandwidth_period_ms * NS_PER_MS)
        return sampler.take(float(runs[-1].end_ns.min()))

    def label(self) -> dict[str, Any]:
        """Describe the truth, in the form of a recording's ``label.json``."""
        return label_of(self.settings, self.job.engine.topology, self.healthy_times_s(), self.iteration_times_s())

    def write(self, directory: Path | str) -> None:
        """Write a trace directory (contract, section 1) with ``label.json``; raises `OSError` if that fails."""
        write_trace(directory, self.announcements(), self.batches())
        (Path(directory) / "label.json").write_text(json.dumps(self.label(), indent=1) + "\n", encoding="utf-8")
