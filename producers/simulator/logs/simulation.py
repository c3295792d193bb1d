"""A job that runs, and what its ranks send: announcements, then batches, a part of the job at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import Batch
from irregulars.producers.simulator.job.settings import NS_PER_MS, NS_PER_S, SimulatorSettings
from irregulars.producers.simulator.logs.rows import JobRows
from irregulars.producers.simulator.run.bandwidth import BandwidthSampler
from irregulars.producers.simulator.run.calibration import calibrated
from irregulars.producers.simulator.run.engine import Engine, Run


def sources_of(settings: SimulatorSettings) -> tuple[str, ...]:
    """Schemas of the rows that a job sends."""
    return ("commops", "iterations", *(("bandwidth",) if settings.bandwidth_period_ms else ()))


@dataclass(frozen=True, slots=True)
class Part:
    """Some consecutive iterations: when they are over on all ranks (ns since the epoch), and what was sent.

    ``past`` is the iteration after them.
    """

    due_ns: int
    past: int
    batches: Iterator[Batch]


class Simulation:
    """Runs one job once.

    Parameters
    ----------
    settings
        The job.
    start_ns
        When it starts, ns since the epoch.

    Raises
    ------
    InputError
        If a fault does not fit the cluster.
    """

    def __init__(self, settings: SimulatorSettings, start_ns: int) -> None:
        settings = calibrated(settings)
        self._settings, self._start_ns = settings, start_ns
        self._last: Run | None = None
        self._engine = Engine(settings)
        self._sampler = BandwidthSampler(self._engine) if settings.bandwidth_period_ms else None
        self._rows = JobRows(self._engine, start_ns)

    def announcements(self, recorded_until_ns: int | None = None) -> Iterator[Announcement]:
        """Yield the announcement of each rank."""
        return self._engine.topology.announcements(sources_of(self._settings), recorded_until_ns)

    @property
    def recorded_until_ns(self) -> int | None:
        """When recording ended, ns since the epoch, if the job came to a standstill; known when all parts are out."""
        if self._last is None or not self._last.is_hung:
            return None
        return self._start_ns + round(self._last.last_ns + self._settings.recorded_after_hang_s * NS_PER_S)

    def parts(self, *, max_span_s: float, max_rows: int) -> Iterator[Part]:
        """Yield the job in parts of at least one iteration, which end at a span of time or a number of operators.

        A part must be used up before the next one is asked for: one part is in memory at a time.
        """
        iterations_at_most = max(max_rows // len(self._engine.plan.rows.step), 1)
        runs: list[Run] = []
        while not self._is_over:
            runs.append(self._advance())
            span_ns = runs[-1].last_ns - float(runs[0].start_ns.min())
            if self._is_over or len(runs) >= iterations_at_most or span_ns >= max_span_s * NS_PER_S:
                yield Part(self._start_ns + round(runs[-1].last_ns), self._engine.iteration, self._batches(runs))
                runs = []

    @property
    def _is_over(self) -> bool:
        return self._engine.iteration >= self._settings.iterations or self._engine.is_hung

    def _advance(self) -> Run:
        run = self._last = self._engine.advance()
        if self._sampler:
            self._sampler.add(run)
        return run

    def _batches(self, runs: list[Run]) -> Iterator[Batch]:
        yield from self._rows.commops(runs)
        if self._sampler:
            yield from self._rows.bandwidth(self._sampler.take(self._sampled_ns(runs[-1])))
        yield from self._rows.iterations(runs)

    def _sampled_ns(self, run: Run) -> float:
        """Until when the counters are final: the next iteration may begin on a rank before this one ends on all."""
        if self._is_over:  # to the first sample after the end, on each NIC
            return run.last_ns + 2 * self._settings.bandwidth_period_ms * NS_PER_MS
        return float(run.end_ns.min())
