"""A running job by its RAS service, as a source for the agent: hangs are found without any hook.

A thread asks; `RasSource.poll` only returns the records that it has made of the answers.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from irregulars.errors import InputError
from irregulars.private_files import replace_private_file
from irregulars.producers.importers.ras_answers import Answer, RasAway, read_answer
from irregulars.producers.importers.ras_records import JobRun, StandstillWatch, find_world
from irregulars.producers.publishing.sources import Record, take_records

_LOG: Final = logging.getLogger("irregulars.ras")
# Looks in a row without a service after which the job has ended. While a job starts, or RAS is busy, the service may
# not answer for a moment.
AWAY_LOOKS: Final = 4
_ANY_PORT: Final = 9
_NO_RUN: Final = b"{}"  # state while no run of the job is seen
_MOST_WAITING: Final = 1 << 17  # records that wait to be polled: above it looks are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class RasSettings:
    """Which job is looked for, and when it counts as standing still."""

    job: str  # its name
    world_size: int  # how many ranks it has: the communicator of that size gives each process its global rank
    every_s: float = 10.0  # time between two looks, seconds
    # After this time without movement the operators in which ranks wait are published, seconds. Judgement then waits
    # for ``silence_s``.
    standing_s: float = 30.0
    # A job that ends while it stands still hung if it stood for this time, seconds. Else its operators are published
    # as ended: before its end a job often waits for a last checkpoint of one rank.
    hang_s: float = 300.0


class RasWatch:
    """Makes records of successive answers about one job; no thread, no clock.

    `is_ours`: whether a host is the one on which this agent runs; the agent beside rank 0 speaks for the job.
    `restored`: the run that an earlier agent saw last; None: there was none.
    """

    def __init__(self, settings: RasSettings, is_ours: Callable[[str], bool], restored: JobRun | None) -> None:
        self._settings, self._is_ours, self._restored = settings, is_ours, restored
        self.run: JobRun | None = None  # the present one of the job
        self._watch: StandstillWatch | None = None
        self._missed = 0
        self._last_note = ""

    def hear(self, answer: Answer, now_ns: int) -> list[Record]:
        """Return the records to publish after an answer."""
        world = find_world(answer, self._settings.world_size)
        if world is None:  # the communicator of all ranks is not there yet, or any more: as if no answer came
            largest = max((one.size for one in answer.communicators), default=0)
            rule = f"a communicator of {self._settings.world_size} ranks; the largest has {largest}"
            self._log_once("ras_no_world", f"RAS of NCCL {answer.version} must know {rule}")
            return self.miss()
        self._missed, workers = 0, world.workers
        # A communicator may have an earlier one's hash, but never the same processes.
        name = f"{world.id}/{workers[0].host}/{workers[0].pid}"
        if self._watch is not None and self.run is not None and self.run.world == name:
            self._watch.compare(answer, now_ns)
            return [*self._follow(self.run, self._watch, now_ns)]
        ended = [*self._end_run("restarted")]
        if not self._is_ours(workers[0].host):
            self._log_once("ras_left_to_another", f"rank 0 is on {workers[0].host}")
            return ended
        self._watch = StandstillWatch({one: rank for rank, one in workers.items()})
        self._watch.compare(answer, now_ns)
        before, self._restored = self._restored, None  # any later run is another one
        if before is not None and (before.job, before.world) == (self._settings.job, name):
            self.run = replace(before, workers=workers)
        else:  # an attempt later than that of any run before, also where no state was kept
            members = self._watch.members
            self.run = JobRun(self._settings.job, now_ns // 10**9, workers, members, now_ns, name)
        self._log_once("ras_job_found", f"NCCL {answer.version}, {len(workers)} ranks, attempt {self.run.attempt}")
        return [*ended, *self.run.announce()]

    def miss(self) -> list[Record]:
        """Return the records to publish where the service can't be reached."""
        self._missed += 1
        if self.run is None or self._missed < AWAY_LOOKS:
            return []
        _LOG.info("event=ras_job_ended job=%s attempt=%d", self.run.job, self.run.attempt)
        return [*self._end_run("finished")]

    # --- a job's run ------------------------------------------------------------------------------------------------

    def _end_run(self, reason: str) -> Iterator[Record]:
        """End the run. A standstill counts as a hang only if it lasted."""
        if self.run is None:
            return
        still_ns = 0 if self._watch is None else self._watch.still_ns
        if still_ns < self._settings.hang_s * 1e9:
            yield from self.run.leave(self.run.told)
        yield from self.run.end(reason)
        self.run = self._watch = None

    def _follow(self, run: JobRun, watch: StandstillWatch, now_ns: int) -> Iterator[Record]:
        ended = watch.find_over(run.told)
        if run.told and not ended and watch.moved_ns <= run.told_ns:
            return  # judgement waits for silence: any record would delay it
        if ended:
            _LOG.info("event=ras_moves_again job=%s attempt=%d", run.job, run.attempt)
            yield from run.leave(ended)
        yield from run.observe(now_ns)
        found = watch.find_open() if watch.still_ns >= self._settings.standing_s * 1e9 else []
        if not found:
            return
        if any(one.communicator not in run.members for one in found):
            # Judgement holds to the communicators that a run announced first, and these were made later.
            yield from run.end("restarted")
            began_ns = now_ns - round(self._settings.every_s * 1e9)
            attempt = max(now_ns // 10**9, run.attempt + 1)
            run = JobRun(run.job, attempt, run.workers, watch.members, began_ns, run.world)
            self.run = run
            yield from run.announce()
            yield from run.observe(now_ns)
        waiting = len({one.rank for one in found})
        _LOG.warning(
            "event=ras_stands_still job=%s attempt=%d for_s=%.0f waiting_ranks=%d communicator=%s",
            run.job, run.attempt, watch.still_ns / 1e9, waiting, found[0].communicator,
        )  # fmt: skip
        yield from run.enter(found, now_ns)

    def _log_once(self, event: str, text: str) -> None:
        if self._last_note != f"{event} {text}":
            self._last_note = f"{event} {text}"
            _LOG.info("event=%s job=%s reason=%r", event, self._settings.job, text)


class RasSource:
    """Asks a RAS service again and again.

    `ask`: gives one answer; raises as `producers.importers.ras_answers.RasClient.ask` does. `is_ours`: as in
    `RasWatch`. `state_path`: file of the state; None: a source that begins anew sees another run.
    """

    # Its ranks live on all nodes: devices of this node are not theirs by their index.
    speaks_for_other_hosts: Final = True

    def __init__(
        self,
        ask: Callable[[], bytes],
        settings: RasSettings,
        *,
        is_ours: Callable[[str], bool],
        state_path: Path | None = None,
    ) -> None:
        self._ask, self._settings, self._state_path = ask, settings, state_path
        restored = None  # where the state is missing or damaged another attempt begins
        try:
            state = _NO_RUN if state_path is None else state_path.read_bytes()
            restored = None if state == _NO_RUN else msgspec.json.decode(state, type=JobRun)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            _LOG.warning("event=ras_state_unusable reason='%s: %s'", state_path, error)
        self._watch = RasWatch(settings, is_ours, restored)
        self._records: deque[Record] = deque()
        self._lock = threading.Lock()
        self._state = _NO_RUN
        self._last_failure = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nccl-ras", daemon=True)
        self._thread.start()

    def poll(self, max_records: int) -> Sequence[Record]:
        """Return the records that were made of the answers so far."""
        with self._lock:
            return take_records(self._records, max_records)

    def position(self) -> str:
        """Return run, looks and rows so far. The past can't be asked for again."""
        return self._state.decode()

    @property
    def is_exhausted(self) -> bool:
        """Never: another run of the job may begin."""
        return False

    def close(self) -> None:
        """Stop asking. A question that is under way is left to its own."""
        self._stop.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._look()
            except Exception:  # the thread must go on, whatever an answer made of it
                _LOG.exception("event=ras_failed job=%s", self._settings.job)
            self._stop.wait(self._settings.every_s)

    def _look(self) -> None:
        if len(self._records) > _MOST_WAITING:
            return  # the agent can't publish just now: further looks would only fill the memory
        try:
            answer = read_answer(self._ask())
            self._note_failure("")
            records = self._watch.hear(answer, time.time_ns())
        except RasAway as error:
            self._note_failure(str(error))
            records = self._watch.miss()
        except InputError as error:
            self._note_failure(str(error), logging.WARNING)
            return
        if records:
            with self._lock:
                self._records.extend(records)
                self._state = _NO_RUN if self._watch.run is None else self._watch.run.encode()
            if self._state_path is not None:
                try:
                    replace_private_file(self._state_path, self._state)
                except OSError as error:
                    _LOG.warning("event=ras_state_not_written reason='%s: %s'", self._state_path, error.strerror)

    def _note_failure(self, text: str, level: int = logging.INFO) -> None:
        """Log why there is no answer, once."""
        if text and text != self._last_failure:
            event = "ras_away" if level == logging.INFO else "ras_unusable"
            _LOG.log(level, "event=%s job=%s reason=%r", event, self._settings.job, text)
        self._last_failure = text


def is_this_host(address: str) -> bool:
    """Whether an address, as RAS gives it, is one of this host: packets sent there from here have it as source.

    Nothing is sent. (A socket can be bound to any address where ``ip_nonlocal_bind`` is set.)
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as own:
        packed = socket.inet_pton(family, address)
        own.connect((address, _ANY_PORT))
        return socket.inet_pton(family, own.getsockname()[0].partition("%")[0]) == packed
    return False
