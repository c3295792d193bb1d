"""The simulated job as a source of records, and as a trace directory with its truth.

Its ranks send announcements, then batches, a part of the job at a time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import Batch
from irregulars.producers.simulator.engine import Engine, Run
from irregulars.producers.simulator.rows import BandwidthSampler, JobRows
from irregulars.producers.simulator.settings import NS_PER_MS, NS_PER_S, RECORDED_START_NS, SimulatorSettings
from irregulars.producers.simulator.truth import calibrated, measure
from irregulars.producers.trace.source import TimedSource
from irregulars.producers.trace.writer import write_trace


def sources_of(settings: SimulatorSettings) -> tuple[str, ...]:
    """Schemas of the rows that a job sends."""
    return ("commops", "iterations", *(("bandwidth",) if settings.bandwidth_period_ms else ()))


class Part(NamedTuple):
    """Some consecutive iterations."""

    due_ns: int  # when they are over on all ranks, ns since the epoch
    past: int  # the iteration after them
    batches: Iterator[Batch]


class Simulation:
    """Runs one job once; InputError if a fault does not fit the cluster."""

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
            runs.append(self._engine.advance())
            self._last = runs[-1]
            if self._sampler:
                self._sampler.add(runs[-1])
            span_ns = runs[-1].last_ns - float(runs[0].start_ns.min())
            if self._is_over or len(runs) >= iterations_at_most or span_ns >= max_span_s * NS_PER_S:
                yield Part(self._start_ns + round(runs[-1].last_ns), self._engine.iteration, self._batches(runs))
                runs = []

    @property
    def _is_over(self) -> bool:
        return self._engine.iteration >= self._settings.iterations or self._engine.is_hung

    def _batches(self, runs: list[Run]) -> Iterator[Batch]:
        yield from self._rows.commops(runs)
        if self._sampler:
            # Counters are final up to then: the next iteration may begin on a rank before this one ends on all.
            final_ns = float(runs[-1].end_ns.min())
            if self._is_over:  # to the first sample after the end, on each NIC
                final_ns = runs[-1].last_ns + 2 * self._settings.bandwidth_period_ms * NS_PER_MS
            yield from self._rows.bandwidth(self._sampler.take(final_ns))
        yield from self._rows.iterations(runs)


_BATCH_SPAN_S: Final = 1.0
_BATCH_ROWS: Final = 1_000_000  # of all ranks: bounds the memory of large jobs
# Of one part of a trace: bounds the memory of `simulate_trace`.
_TRACE_ROWS: Final = 4_000_000


class SimulatorSource(TimedSource):
    """A `Source` of all that the ranks of one simulated job send.

    First come the announcements, then batches of about a second of the job each.

    `now_ns`: a clock in ns since the epoch: records come when their time has come. None: as fast as they are asked
    for. `position`: as of `TimedSource`; the job is run again up to there, nothing is stored. Raises InputError if a
    fault does not fit the cluster as well.
    """

    def __init__(
        self,
        settings: SimulatorSettings,
        *,
        start_ns: int = RECORDED_START_NS,
        now_ns: Callable[[], int] | None = None,
        position: str | None = None,
    ) -> None:
        self._now_ns, self._is_closed = now_ns, False
        self._simulation = Simulation(settings, start_ns)
        announced = ((start_ns, one) for one in self._simulation.announcements())
        parts = self._simulation.parts(max_span_s=_BATCH_SPAN_S, max_rows=_BATCH_ROWS)
        super().__init__(chain(announced, ((part.due_ns, one) for part in parts for one in part.batches)), position)

    @property
    def is_exhausted(self) -> bool:
        """True when the job has ended and everything was polled, or after `close`.

        A job that hangs stays silent, but not ended, as long as its settings say.
        """
        if self._next is not None or self._is_closed or self._now_ns is None:
            return self._next is None
        silent_until_ns = self._simulation.recorded_until_ns
        return silent_until_ns is None or self._now_ns() >= silent_until_ns

    def close(self) -> None:
        """End the job; nothing is polled after it."""
        super().close()
        self._is_closed = True

    def _until_ns(self) -> float:
        return math.inf if self._now_ns is None else self._now_ns()


def simulate_trace(
    directory: Path | str,
    settings: SimulatorSettings,
    *,
    on_part: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Write the whole job as a trace directory (contract, section 1), with ``label.json``.

    Memory does not grow with the number of iterations.

    `on_part`: called now and then with the number of iterations written. Returns the content of ``label.json``.
    Raises InputError if a fault does not fit the cluster; OSError if the directory can't be written.
    """
    truth = measure(settings)
    simulation = Simulation(truth.settings, RECORDED_START_NS)
    announcements = simulation.announcements(truth.recorded_until_ns)

    def batches() -> Iterator[Batch]:
        for part in simulation.parts(max_span_s=float("inf"), max_rows=_TRACE_ROWS):
            yield from part.batches
            if on_part is not None:
                on_part(part.past)

    write_trace(directory, announcements, batches())
    (Path(directory) / "label.json").write_text(json.dumps(truth.label, indent=1) + "\n", encoding="utf-8")
    return truth.label
