"""Iterations of the training loop, as the script or its optimizer marks them."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final, SupportsFloat, SupportsInt

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.bounds import BOUNDS
from irregulars.messages.records import AUDIT, NUMERICS, PAUSE, PHASES, UNKNOWN, iteration_columns
from irregulars.producers.torch_hook.hooks.device_events import DeviceBoundary
from irregulars.producers.torch_hook.pauses import Pause, Pauses

_LOG: Final = logging.getLogger("irregulars.torch")

# Ended iterations that may wait to be taken: where the exporter is held up, the oldest give way.
_MOST_ROWS: Final = 1 << 14
TRAIN: Final = PHASES.index("train")
_FLOATS: Final = ("tokens", *NUMERICS[:-1])  # columns of figures; a checksum is an integer
_BOUNDS: Final = BOUNDS["iterations"]
_OF_TRAINERS: Final = tuple(phase for phase in PHASES if phase != "observed")


@dataclass(slots=True)
class HostBoundary:
    """A boundary of operators that run on the host, which the training thread itself passes."""

    host_ns: int = field(default_factory=time.monotonic_ns)

    def time_ns(self) -> int | None:
        """Return `host_ns`."""
        return self.host_ns


Boundary = HostBoundary | DeviceBoundary  # of two iterations


@dataclass(slots=True)
class _Row:
    iteration: int
    start: Boundary
    end: Boundary
    phase: int = TRAIN
    # By the name of its column. A device may still compute a value when it is set: it is read when the row is taken.
    figures: dict[str, SupportsFloat] = field(default_factory=dict)
    checksum: SupportsInt = UNKNOWN
    audits: list[tuple[int, SupportsInt]] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)


class Iterations:
    """The iteration that runs, and the rows of those that have ended.

    `on_change`: is given the number of each iteration that begins, and `UNKNOWN` when none runs. `by_steps`: whether
    an optimizer's steps end iterations, until the script marks one. `boundary`: makes a boundary, where the training
    thread passes from one iteration to the next. `pauses`: of the training thread.
    """

    def __init__(
        self,
        on_change: Callable[[int], None] = lambda _: None,
        *,
        by_steps: bool = True,
        boundary: Callable[[], Boundary] = HostBoundary,
        pauses: Pauses | None = None,
    ) -> None:
        self._on_change = on_change
        self._boundary = boundary
        self._pauses = pauses
        self._current: _Row | None = None
        self._rows: deque[_Row] = deque(maxlen=_MOST_ROWS)
        self._ended = 0
        self._phase: int | None = None
        self._steps = 0
        self._newest = UNKNOWN  # number of the iteration that ended last
        self._ahead = 0  # of a script's own number
        self._optimizer: Callable[[], object | None] = lambda: None
        self._is_marked = not by_steps
        self._is_auditing = False

    @contextmanager
    def mark(self, iteration: int | None = None) -> Iterator[None]:
        """Mark one iteration; from the first mark on, optimizer steps end none.

        Numbers that go back, as those of each epoch and after a roll-back, go on behind the last one: an iteration
        that is over takes no more rows. Raises InputError if no iteration has this number
        (`messages.bounds.LAST_ITERATION`).
        """
        number = self._steps if iteration is None else self._unused(int(iteration))
        if not self._is_marked:
            # The iteration that a step began is dropped: the script's marks have other boundaries.
            self._is_marked, self._current = True, None
        self._begin(number, self._boundary())
        try:
            yield
        finally:
            self._end(self._boundary())
            self._on_change(UNKNOWN)
            self._steps = number + 1

    def follow(self, optimizer: object) -> None:
        """End iterations by the steps of this optimizer; without a call, by those of the first that steps."""
        try:
            self._optimizer = weakref.ref(optimizer)
        except TypeError:  # its class allows no weak references: it lives as long as we do
            self._optimizer = lambda: optimizer

    def step(self, optimizer: object) -> None:
        """End one iteration and begin the next, if this optimizer's steps do.

        The beginning of the first iteration is not known: it gets no row, and its operators have no iteration. Where
        the optimizer that was followed is gone, the next that steps takes its place.
        """
        if self._is_marked:
            return
        if self._optimizer() is None:
            self.follow(optimizer)
        if self._optimizer() is not optimizer:  # another one, which steps within the same iteration
            return
        # One boundary for both: no time lies between two iterations.
        now = self._boundary()
        self._end(now)
        self._steps += 1
        self._begin(self._steps, now)

    @contextmanager
    def in_phase(self, phase: str) -> Iterator[None]:
        """Mark a phase; an iteration that holds any of it is of this phase.

        Raises InputError if the phase is none of `messages.records.PHASES`.
        """
        if phase not in _OF_TRAINERS:
            raise InputError(f"phase must be one of {', '.join(_OF_TRAINERS)}; got {phase!r}")
        before, self._phase = self._phase, PHASES.index(phase)
        self._mark_phase()
        pauses = self._pauses if phase == "checkpoint" else None
        try:
            with nullcontext() if pauses is None else pauses.during("checkpoint_write"):
                yield
        finally:
            self._mark_phase()
            self._phase = before

    def report(self, figures: Mapping[str, SupportsFloat | None], checksum: SupportsInt | None = None) -> None:
        """Set figures of the iteration that runs, by the names of their columns; None changes nothing."""
        row = self._current
        if row is None or self._is_auditing:
            return
        row.figures.update((name, value) for name, value in figures.items() if value is not None)
        row.checksum = row.checksum if checksum is None else checksum

    def reported(self, name: str) -> SupportsFloat | None:
        """Return a figure of the iteration that runs; None: there is none yet."""
        return None if self._current is None else self._current.figures.get(name)

    @contextmanager
    def auditing(self) -> Iterator[Callable[[int, SupportsInt], None]]:
        """Compute another rank's micro-batch, whose figures are not this rank's own; yields the result's receiver.

        It is given that rank and the checksum of the gradients. The iteration is of the phase ``eval``: it takes
        longer than others, and no device is to blame.
        """
        row = self._current
        self._is_auditing = True
        try:
            with self.in_phase("eval"):
                yield lambda of_rank, checksum: None if row is None else row.audits.append((of_rank, checksum))
        finally:
            self._is_auditing = False

    @property
    def running(self) -> int | None:
        """Number of the iteration that runs; None: none runs, or another rank's is computed."""
        return None if self._current is None or self._is_auditing else self._current.iteration

    @property
    def ended(self) -> int:
        """Number of iterations that have ended."""
        return self._ended

    def take(self, offset_ns: int, *, is_last: bool = False) -> dict[str, np.ndarray]:
        """Take the columns of ``iterations`` that ended since the last call, in their order.

        One whose end a device has not passed yet waits for the next call; the last call takes it by the host's time.
        """
        rows = []
        while self._rows and (is_last or self._rows[0].end.time_ns() is not None):
            rows.append(self._rows.popleft())
        # A row of an audit or pause has the times of its iteration, and goes before it: a reader may close it then.
        lines = [(row, event) for row in rows for event in (*row.audits, *row.pauses, None)]
        starts_ns, ends_ns = (
            np.array([one.host_ns if (time_ns := one.time_ns()) is None else time_ns for one in ones], dtype=np.int64)
            for ones in ([row.start for row, _ in lines], [row.end for row, _ in lines])
        )
        numbers = np.array([row.iteration for row, _ in lines], dtype=np.int64)
        phases = np.array([row.phase for row, _ in lines], dtype=np.uint8)
        elapsed_ns = np.maximum(ends_ns - starts_ns, 0).astype(np.float64)
        columns = iteration_columns(numbers, starts_ns + offset_ns, elapsed_ns, phases)
        for name in _FLOATS:
            own = [row.figures.get(name) if event is None else None for row, event in lines]
            columns[name] = np.array([math.nan if one is None else _figure(name, one) for one in own])
        checksums = (row.checksum if event is None else UNKNOWN for row, event in lines)
        columns["parameters_checksum"] = np.array(list(map(_checksum, checksums)), dtype=np.int64)
        for at, (_, event) in enumerate(lines):
            if isinstance(event, Pause):
                own_pause = event._replace(start_ns=event.start_ns + offset_ns)
                for name, value in zip(PAUSE, own_pause, strict=True):
                    columns[name][at] = value
            elif event is not None:
                columns[AUDIT[0]][at], columns[AUDIT[1]][at] = event[0], _checksum(event[1])
        return columns

    def _unused(self, given: int) -> int:
        """Return a script's number, further on by as much as an earlier one went back."""
        if given + self._ahead < self._newest:
            if not self._ahead:
                _LOG.warning(
                    "event=torch_comms_iterations_go_back newest=%d given=%d effect=%r",
                    self._newest, given, "they are numbered on from the newest",
                )  # fmt: skip
            self._ahead = self._newest + 1 - given
        number = given + self._ahead
        if given < 0 or not _BOUNDS["iteration"].holds(number):
            raise InputError(f"iteration must be {_BOUNDS['iteration']}; got {given}")
        return number

    def _begin(self, number: int, now: Boundary) -> None:
        self._current = _Row(number, now, now)
        self._mark_phase()
        self._on_change(number)

    def _end(self, now: Boundary) -> None:
        row, self._current = self._current, None
        # Taken also where no iteration ran: pauses from before it began are not those of the next one.
        pauses = [] if self._pauses is None else self._pauses.take()
        if row is not None:
            row.end, row.pauses = now, pauses
            self._rows.append(row)
            self._newest = row.iteration
            self._ended += 1

    def _mark_phase(self) -> None:
        if self._current is not None and self._phase is not None:
            self._current.phase = self._phase


def _checksum(value: SupportsInt) -> int:
    try:
        return int(np.int64(int(value)))
    except (RuntimeError, OverflowError):  # as below, or more bits than the column has
        return UNKNOWN


def _figure(name: str, value: SupportsFloat) -> float:
    """Return a figure as it is sent: infinity where it is no finite number, since NaN means unknown.

    A count out of its bounds is unknown: its column is of integers, and its row would be left out.
    """
    try:
        number = float(value)
    except RuntimeError:  # of a device that failed: the rows of a crash matter most
        return math.nan
    if name in _BOUNDS:
        return number if _BOUNDS[name].holds(number) else math.nan
    return number if math.isfinite(number) else math.inf
