"""A job that runs, and what its ranks send: announcements, then batches, a part of the job at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from producers.simulator.bandwidth import BandwidthSampler
from producers.simulator.engine import Engine, Run
from producers.simulator.rows import JobRows
from producers.simulator.settings import NS_PER_MS, SimulatorSettings
from streams.records import Announcement, Batch


@dataclass(frozen=True, slots=True)
class Part:
    """Some consecutive iterations: when they are over on all ranks (ns since the epoch), and what was sent."""

    due_ns: int
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
        self._settings, self._start_ns = settings, start_ns
        self._engine = Engine(settings)
        self._sampler = BandwidthSampler(self._engine) if settings.bandwidth_period_ms else None
        self._rows = JobRows(self._engine, start_ns)

    def announcements(self) -> Iterator[Announcement]:
        """Yield the announcement of each rank."""
        sources = ("commops", "iterations", *(("bandwidth",) if self._sampler else ()))
        return self._engine.topology.announcements(sources)

    def parts(self, *, max_span_s: float, max_rows: int) -> Iterator[Part]:
        """Yield the job in parts of at least one iteration, which end at a span of time or a number of operators.

        A part must be used up before the next one is asked for: one part is in memory at a time.
        """
        iterations_at_most = max(max_rows // len(self._engine.plan.rows.step), 1)
        runs: list[Run] = []
        while not self._is_over:
            runs.append(self._advance())
            span_ns = float(runs[-1].end_ns.max() - runs[0].start_ns.min())
            if self._is_over or len(runs) >= iterations_at_most or span_ns >= max_span_s * 1e9:
                yield Part(self._start_ns + round(runs[-1].end_ns.max()), self._batches(runs))
                runs = []

    @property
    def _is_over(self) -> bool:
        return self._engine.iteration >= self._settings.iterations

    def _advance(self) -> Run:
        run = self._engine.advance()
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
            return float(run.end_ns.max()) + 2 * self._settings.bandwidth_period_ms * NS_PER_MS
        return float(run.end_ns.min())
