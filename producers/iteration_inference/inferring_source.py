"""A live source whose ranks mark no iterations: they are inferred from the operators before anything is published.

The state of an inference is kept in a file, so that iteration numbers continue after the agent restarts. The file
holds its checksum: a state that a broken disk or a person has changed must not become numbers of iterations.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement, Heartbeat, decode_announcement, encode_announcement
from irregulars.messages.records import UNKNOWN, Batch, Header, decode_batch, encode_batch
from irregulars.private_files import replace_private_file
from irregulars.producers.iteration_inference.online import InferenceLimits, InferenceState, OnlineInference
from irregulars.producers.publishing.sources import PassingSource, Record, Source, key_of, take_records
from irregulars.state_codec import decode_state, encode_state
from irregulars.validation import first_line

# Raise it with each change of a state's classes but a new field with a default; versions 1 and 2 were JSON.
STATE_VERSION: Final = 4

_LOG: Final = logging.getLogger("irregulars.iterations")
PAUSE_S: Final = 30.0  # time without operators of a job after which held rows leave: it may hang
LEARNING_S: Final = 2.0
# Time that learning may take at first, and its share of all time after it: a job that repeats nothing must not keep
# the agent from its other sources.
LEARNING_RATIO: Final = 0.02
_SAVE_S: Final = 5.0  # between two brief states
_FORGET_ROWS_S: Final = 3600.0
# A job that pauses is not announced again: its cadence is kept for a week, its rows in memory for an hour.
_FORGET_S: Final = 7 * 86_400.0


def announces_no_iterations(announcement: Announcement) -> bool:
    """Whether a rank announces operators, and no rows of iterations."""
    return "commops" in announcement.sources and "iterations" not in announcement.sources


@dataclass(frozen=True, slots=True)
class JobState:
    """State of one attempt of a job: announcements as messages, and the number of rows so far of each rank."""

    job: str
    attempt: int
    announcements: tuple[bytes, ...]
    rows: Mapping[int, int]
    inference: InferenceState


@dataclass(frozen=True, slots=True)
class SourceState:
    """State of an `InferringSource`: its jobs, and schema and message of each batch that may leave."""

    jobs: tuple[JobState, ...] = ()
    ready: tuple[tuple[str, bytes], ...] = ()


@dataclass(slots=True)
class _Job:
    """One attempt of a job: its ranks without marks, and those of them that have ended."""

    inference: OnlineInference
    announcements: dict[int, Announcement] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    rows: dict[int, int] = field(default_factory=dict)  # taken in of each rank
    heard_s: float = 0.0  # when its last operators came, by the source's clock
    # Its ranks mark their iterations, and these marks are never changed, or its inference has failed: its batches
    # pass as they come from here on
    is_marked: bool = False

    def push(self, batch: Batch, *, may_learn: bool) -> list[Batch]:
        return self._tried(lambda: self._numbered(batch, may_learn=may_learn), batch)

    def flush(self, *, may_learn: bool) -> list[Batch]:
        return self._tried(lambda: self.inference.flush(may_learn=may_learn))

    def _tried(self, infer: Callable[[], list[Batch]], *batches: Batch) -> list[Batch]:
        """Return what may leave; where that fails all that was held, and these, as they came.

        Odd rows of one job must not end its node's agent.
        """
        came = [*self.inference.held, *batches]  # before: some of it may be on its way when it fails
        try:
            return infer()
        except Exception as error:
            job = next((one.job for one in self.announcements.values()), "")
            effect = "its operators get no iterations"
            _LOG.error("event=inference_failed job=%r reason=%r effect=%r", job, first_line(error), effect)
        self.is_marked = True
        self.inference.withdraw()
        self.inference.forget_rows()
        return came

    def _numbered(self, batch: Batch, *, may_learn: bool) -> list[Batch]:
        if (batch.columns["iteration"] != UNKNOWN).any():
            self.is_marked = True
            return [*self.inference.withdraw(), batch]
        rank, first, left = batch.header.rank, batch.header.rows_before, []
        known = self.rows.get(rank, first)
        if first < known:  # the source began anew: learn it anew
            left = self.inference.withdraw()
            before, self.rows = self.inference, {}
            self.inference = OnlineInference(before.limits, is_counted_apart=before.is_counted_apart)
            for announcement in self.announcements.values():
                self.inference.announce(announcement)
        elif first > known:
            self.inference.skip_rows(rank)
        self.rows[rank] = first + len(batch)
        return [*left, *self.inference.push(batch, may_learn=may_learn)]

    def state(self, job: str, attempt: int, *, is_brief: bool) -> JobState:
        announcements = tuple(map(encode_announcement, self.announcements.values()))
        return JobState(job, attempt, announcements, dict(self.rows), self.inference.state(is_brief=is_brief))

    @classmethod
    def from_state(cls, state: JobState, limits: InferenceLimits | None) -> _Job:
        known = {one.rank: one for one in map(decode_announcement, state.announcements)}
        return cls(OnlineInference.from_state(state.inference, limits), known, set(), dict(state.rows))


class InferringSource(PassingSource):
    """Numbers the operators of ranks that mark no iterations; everything else passes as it comes.

    Batches leave in the order of their rank, some later than they came (`OnlineInference` says when). A job in which
    an operator carries a number is left alone from there on. A restart of the job is another attempt, whose numbers
    begin anew; after a restart of this source alone they go on, if it has a state.

    `position` is that of the source behind. Held rows are in the state, so that both together resume after the
    last record polled.

    `state_path`: file of the state; None: none. All of it is written by `close`, and meanwhile, every few seconds,
    the part without which numbers could not go on. `is_counted_apart`: whether sequences count operators of each kind
    apart (`producers.iteration_inference.operators`).
    """

    def __init__(
        self,
        source: Source,
        is_unmarked: Callable[[Announcement], bool] = announces_no_iterations,
        state_path: Path | None = None,
        *,
        is_counted_apart: bool = False,
        limits: InferenceLimits | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(source)
        self._is_unmarked, self._state_path, self._limits, self._clock_s = is_unmarked, state_path, limits, clock_s
        self._is_counted_apart = is_counted_apart
        self._jobs: dict[tuple[str, int], _Job] = {}
        self._ready: deque[Record] = deque()
        self._saved_s = self._began_s = clock_s()
        self._spent_s = 0.0
        self._has_news = self._is_closed = False
        if state_path is not None:
            try:
                state = decode_state(state_path.read_bytes(), SourceState, STATE_VERSION)
                for one in state.jobs:
                    self._jobs[one.job, one.attempt] = _Job.from_state(one, self._limits)
                    self._jobs[one.job, one.attempt].heard_s = self._clock_s()
                self._ready += [decode_batch(value, schema) for schema, value in state.ready]
            except FileNotFoundError:
                pass  # the first start
            except (OSError, InputError, LookupError, TypeError, ValueError) as error:
                # Nothing of a broken state is used: some jobs of it may have been restored before it broke.
                self._jobs, self._ready = {}, deque()
                reason = f"{state_path}: {error}"
                _LOG.warning("event=inference_not_restored reason=%r effect='iterations are numbered anew'", reason)

    def poll(self, max_records: int) -> Sequence[Record]:
        """Return records that may leave, at most `max_records` announcements and rows."""
        if not self._ready:
            for record in super().poll(max_records):
                if isinstance(record, Batch):
                    self._ready += self._pass(record)
                    continue
                if isinstance(record, Announcement):
                    self._announce(record)
                else:
                    self._beat(record)
                self._ready.append(record)
            # Pass held rows on if nothing more comes: a job that hangs must be judged by them.
            now_s, is_over = self._clock_s(), super().is_exhausted
            for key, job in list(self._jobs.items()):
                silent_s = now_s - job.heard_s
                if job.inference.held_rows and (is_over or silent_s > PAUSE_S):
                    self._ready += job.flush(may_learn=self._may_learn())
                elif silent_s > _FORGET_S:
                    self._drop(key)
                elif silent_s > _FORGET_ROWS_S:
                    job.inference.forget_rows()
            if self._has_news and self._clock_s() - self._saved_s > _SAVE_S:
                self._save(is_brief=True)
        return take_records(self._ready, max_records)

    @property
    def is_exhausted(self) -> bool:
        """Whether the source behind has ended, and everything has left."""
        is_held = any(job.inference.held_rows for job in self._jobs.values())
        return super().is_exhausted and not self._ready and not is_held

    def close(self) -> None:
        """Store the held rows, and close the source."""
        if not self._is_closed:
            self._is_closed = True
            self._save(is_brief=False)
        super().close()

    def _pass(self, batch: Batch) -> list[Batch]:
        job = self._job_of(batch.header)
        if job is None or job.is_marked or batch.header.schema != "commops":
            return [batch]
        job.heard_s, self._has_news = self._clock_s(), True
        is_held = job.inference.held_rows > 0
        left = job.push(batch, may_learn=self._may_learn())
        if is_held or job.inference.held_rows:  # regular rows cost little: only learning counts
            self._spent_s += self._clock_s() - job.heard_s
        return left

    def _job_of(self, own: Header | Heartbeat) -> _Job | None:
        """Return the job of a rank's record; None: its rank marks iterations, or was announced anew since."""
        job = self._jobs.get((own.job, own.attempt))
        announced = None if job is None else job.announcements.get(own.rank)
        return job if announced is not None and key_of(announced) == key_of(own) else None

    def _may_learn(self) -> bool:
        return self._spent_s <= LEARNING_S + LEARNING_RATIO * (self._clock_s() - self._began_s)

    def _announce(self, announcement: Announcement) -> None:
        if not announcement.is_logged or not self._is_unmarked(announcement):
            return
        key = announcement.job, announcement.attempt
        # A restarted job: its earlier attempt may have been killed without a word, and sends no more.
        for other in [other for other in self._jobs if other[0] == key[0] and other[1] < key[1]]:
            self._drop(other)
        job = self._jobs.get(key)
        if job is None:
            inference = OnlineInference(self._limits, is_counted_apart=self._is_counted_apart)
            job = self._jobs[key] = _Job(inference, heard_s=self._clock_s())
        job.announcements[announcement.rank] = announcement
        job.ended.discard(announcement.rank)
        job.inference.announce(announcement)

    def _beat(self, heartbeat: Heartbeat) -> None:
        """Let all rows of a rank leave before it ends."""
        job = self._job_of(heartbeat)
        if job is None or heartbeat.state != "ended":
            return
        self._ready += job.flush(may_learn=self._may_learn())
        job.ended.add(heartbeat.rank)
        if job.ended.issuperset(job.announcements):
            self._drop((heartbeat.job, heartbeat.attempt))

    def _drop(self, key: tuple[str, int]) -> None:
        self._ready += self._jobs.pop(key).flush(may_learn=self._may_learn())
        self._has_news = True

    # --- across restarts --------------------------------------------------------------------------------------------

    def _save(self, *, is_brief: bool) -> None:
        if self._state_path is None:
            return
        self._saved_s, self._has_news = self._clock_s(), False
        # Marked jobs pass as they come, and need no state.
        jobs = tuple(job.state(*key, is_brief=is_brief) for key, job in self._jobs.items() if not job.is_marked)
        batches = [] if is_brief else [one for one in self._ready if isinstance(one, Batch)]
        ready = tuple((batch.header.schema, encode_batch(batch)) for batch in batches)
        try:
            replace_private_file(self._state_path, encode_state(SourceState(jobs, ready), STATE_VERSION))
        except OSError as error:
            _LOG.warning("event=inference_not_stored path=%s error=%r", self._state_path, error.strerror)
