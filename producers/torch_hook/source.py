"""A process's own operators as a source, from which its exporter publishes, writes or sends them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from irregulars.messages.announcements import (
    MAX_ANNOUNCEMENT_BYTES,
    MAX_MEMBERS,
    Announcement,
    Heartbeat,
    SourceProgress,
    encode_announcement,
)
from irregulars.messages.records import RECV, SEND, UNKNOWN, Batch, Header
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order
from irregulars.producers.publishing.sources import Record, key_of, take_records
from irregulars.producers.torch_hook.hooks.device_events import CaptureMode
from irregulars.producers.torch_hook.hooks.dispatcher_hook import DispatcherHook
from irregulars.producers.torch_hook.hooks.groups import Group, Groups
from irregulars.producers.torch_hook.hooks.native_library import NativeHook
from irregulars.producers.torch_hook.hooks.python_hook import PythonHook
from irregulars.producers.torch_hook.hooks.ring import OPEN, ROW, UNSEEN
from irregulars.producers.torch_hook.identity import Identity, Start
from irregulars.producers.torch_hook.iterations import Iterations

# A rank is announced, once and for all its attempt, when its first iteration has ended: groups are made before it. Or
# this long after its newest group was made: there may be no iterations.
ANNOUNCE_S: Final = 10.0
_GROWTH: Final = 1.125  # times the groups of an announcement from which the next one is worth its size
# Age at which an end is final, ns: the thread that finishes a row may wait for Python's lock.
_SETTLED_NS: Final = 20_000_000
# Error of the offset from which it is replaced, ns: the clock was set, or has been slewed for long.
_CLOCK_STEP_NS: Final = 1_000_000
# Training goes on from an operator before its row is finished: the last rows get this long, or would look hung.
_LAST_WAIT_S: Final = 1.0
# An operator that is open this long is given while it is open: if the job hangs, it never ends. One that ends after
# all is given again, as ended.
STUCK_S: Final = 60.0


Hook = NativeHook | PythonHook | DispatcherHook


class ClockOffset(NamedTuple):
    """The host's clock minus the monotonic one."""

    offset_ns: int  # off by at most half of `width_ns`
    width_ns: int  # time between the two readings of the monotonic clock around the reading of the host's


_TRIES: Final = 8
# A reading between two others that are no further apart than this is good enough, ns; on an idle machine they are 0.1
# µs apart.
_NARROW_NS: Final = 5_000


def measure_offset(
    wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
) -> ClockOffset:
    """Measure the offset; of several readings the one that was interrupted least counts.

    A process that is held up between two readings, as on a machine with more processes than cores, sees an offset
    that is off by as much: some ms, which is more than most operators take.
    """
    found: list[ClockOffset] = []
    while len(found) < _TRIES and not (found and found[-1].width_ns <= _NARROW_NS):
        before_ns, now_ns, after_ns = monotonic_ns(), wall_ns(), monotonic_ns()
        width_ns = after_ns - before_ns
        found.append(ClockOffset(now_ns - before_ns - width_ns // 2, width_ns))
    return min(found, key=lambda one: one.width_ns)


class TorchSource:
    """Gives the announcement of this rank once it is known, then its batches, and a heartbeat where rows were lost.

    Polled by one thread.

    `world`: returns this rank and the world size, or `None` while there is no process group. `start`: returns the
    start of the job as this rank finds it, asked before the rank is announced, and again when it goes on as another
    rank or in another group; it may take some seconds. `is_unmarked`: whether operators will carry no iteration, so
    that their reader is to infer it.
    """

    def __init__(
        self,
        hook: Hook,
        groups: Groups,
        iterations: Iterations,
        identity: Identity,
        world: Callable[[], tuple[int, int] | None],
        start: Callable[[int], Start] = lambda rank: Start(),
        *,
        is_unmarked: bool = False,
    ) -> None:
        self.is_unmarked = is_unmarked
        self.replicas: tuple[int, ...] | None = None  # ranks with the parameters of this one, where that is known
        self._hook, self._groups, self._iterations = hook, groups, iterations
        self._identity, self._world_of, self._start_of = identity, world, start
        self._world: tuple[int, int] | None = None
        self._reader = RowReader()
        self._announcement: Announcement | None = None
        self._announced_s = 0.0
        self._is_full = False  # whether an announcement of all groups would be too large
        self._groups_seen, self._newest_seen_s = 0, 0.0
        self._queue: deque[Record] = deque()
        self._given_lost_rows = 0
        self._rows = {"commops": 0, "iterations": 0}
        self._rows_before = dict(self._rows)  # given before the newest announcement of another rank or group
        self._announced_ns: int | None = None  # `Groups.since_ns` of that announcement
        self._capture_mode = CaptureMode()
        self._unsettled = np.empty(0, dtype=ROW)
        self._offset_ns = measure_offset().offset_ns
        self._ending_since_s: float | None = None
        self._is_drained = False
        self._given_open: set[int] = set()  # ids of rows

    def poll(self, max_records: int) -> Sequence[Record]:
        """Return the records that have come, at most `max_records` announcements, heartbeats and rows."""
        if not self._queue and not self._is_drained:
            self._fill()
        return take_records(self._queue, max_records)

    def position(self) -> str:
        """Return the numbers of rows given: a training process that ended can't be read again."""
        return " ".join(f"{schema}={rows}" for schema, rows in self._rows.items())

    @property
    def is_exhausted(self) -> bool:
        """Whether `end` was called and everything was given."""
        return self._is_drained and not self._queue

    @property
    def lost_rows(self) -> int:
        """Rows that the ring dropped."""
        return self._hook.ring.dropped_rows

    @property
    def given_rows(self) -> int:
        """Operators that were taken from the ring so far, to be given by `poll`."""
        return self._rows["commops"]

    def end(self) -> None:
        """Give the rows that are left, with operators that never ended, and then no more."""
        if self._ending_since_s is None:
            self._ending_since_s = time.monotonic()

    def start_over(self) -> None:
        """Announce again: the agent or broker is another, and records that the old one had not passed on are lost."""
        if self._announcement is not None:
            # In front of the rows that wait: a batch must follow its rank's announcement.
            self._queue.appendleft(self._announcement)
            self._given_lost_rows = 0
            self._given_open.clear()

    def open_for(self, seconds: float) -> Batch | None:
        """Copy the operators that were issued that long ago and have not ended; None where there are none."""
        waiting = _issued_before(self._hook.ring.still_open(), seconds)
        if self._announcement is None or not waiting.size:
            return None
        groups = self._groups.all
        columns = _columns(waiting, waiting["issued"], groups, self._clock_offset_ns())
        return Batch(self._header("commops", tuple(group.communicator.id for group in groups)), columns)

    def close(self) -> None:
        """Do nothing: the session owns the hook."""

    def _fill(self) -> None:
        world = self._world_of()
        # At the end of training the group is gone before its last rows are given.
        self._world = world or self._world
        is_ending = False
        if self._ending_since_s is not None:
            is_late = time.monotonic() - self._ending_since_s > _LAST_WAIT_S
            is_ending = is_late or not self._hook.ring.still_open().size
        # At the end, rows of a rank without a place can't be given: the session counts them as undelivered.
        if self._world is None or not self._is_ready():
            self._is_drained = is_ending
            return
        (rank, world_size), announced, groups = self._world, self._announcement, self._groups.present
        is_moved = bool(groups) and self._groups.since_ns != self._announced_ns
        if announced is None or (is_moved and world is not None):  # groups are made before torch knows the new rank
            # Rows count from 0 again: for readers this is another rank.
            self._rows_before, self._announced_ns = dict(self._rows), self._groups.since_ns
            start = self._start_of(rank)
            is_again = start.is_again or (start.id is None and announced is not None)
            self._announce(rank, world_size, start.id, self._announced_ns if is_again else None)
        elif not is_moved and self._has_news(announced, len(groups), is_ending):
            # Monitors keep to the first announcement, a trace directory has the newest.
            self._announce(rank, world_size, announced.start, announced.since_ns)
        self._collect(is_ending)
        # A heartbeat as soon as rows are lost: a missing operator must not look as if it was never entered.
        one, lost_rows = self._announcement, self.lost_rows
        if one is not None and lost_rows != self._given_lost_rows:
            self._given_lost_rows = lost_rows
            rows = self._rows["commops"] - self._rows_before["commops"]
            lost = {"commops": SourceProgress(rows, None, lost_rows)}
            self._queue.append(
                Heartbeat(one.job, one.attempt, one.rank, lost, start=one.start, since_ns=one.since_ns)
            )
        self._is_drained = is_ending

    def _is_ready(self) -> bool:
        if self._announcement is not None or self._ending_since_s is not None or self._iterations.ended:
            return True
        if len(self._groups.all) > self._groups_seen:
            self._groups_seen, self._newest_seen_s = len(self._groups.all), time.monotonic()
        return self._groups_seen > 0 and time.monotonic() - self._newest_seen_s > ANNOUNCE_S

    def _has_news(self, announced: Announcement, groups: int, is_ending: bool) -> bool:
        """Whether to announce again: replicas became known, or groups were made since.

        Some programs make one in each step: a message that grows by it would be sent for each.
        """
        before = len(announced.communicators)
        is_due = is_ending or time.monotonic() - self._announced_s > ANNOUNCE_S
        has_more = before < groups and (is_due or groups >= before * _GROWTH)
        return not self._is_full and (has_more or announced.replicas != self.replicas)

    def _announce(self, rank: int, world_size: int, start: str | None, since_ns: int | None) -> None:
        own = self._identity
        # Also where no iteration has ended yet: the first step of a large job comes late.
        is_marked = not self.is_unmarked or self._iterations.ended > 0
        fresh = Announcement(
            job=own.job, attempt=own.attempt, rank=rank, world_size=world_size, logged_ranks=world_size,
            communicators=tuple(group.communicator for group in self._groups.present),
            sources=("commops", "iterations") if is_marked else ("commops",),
            clock=own.clock(world_size), host=own.host, gpu=own.gpu, nic=own.nic, switch=own.switch,
            lost_rows=self.lost_rows, start=start, since_ns=since_ns, replicas=self.replicas,
            names_iterations=is_marked,
        )  # fmt: skip
        known = self._announcement
        is_again = known is not None and key_of(known) == key_of(fresh)
        # The one before goes on to hold: one that no reader takes would cost all rows of the rank.
        self._is_full = is_again and not _fits(fresh)
        if not self._is_full:
            self._announcement, self._announced_s = fresh, time.monotonic()
            self._queue.append(fresh)

    def _collect(self, is_last: bool) -> None:
        self._capture_mode.ignore_other_threads()
        # First, since it finishes the rows of operators that a device has ended, which are taken below.
        self._hook.ask_devices()
        offset_ns = self._clock_offset_ns()
        iterations = self._iterations.take(offset_ns, is_last=is_last)
        # Only rows that ended long enough ago: none that ended before them will come after them.
        until_ns = time.monotonic_ns() - _SETTLED_NS
        taken = np.concatenate([self._unsettled, self._hook.ring.take()])
        is_settled = (taken["ended"] <= until_ns) | is_last
        self._unsettled = taken[~is_settled]
        # After `take`: an operator that ends between both calls is in neither, and not in both.
        still_open, groups = self._hook.ring.still_open(), self._groups.all
        columns = self._reader.columns(taken[is_settled], still_open, groups, offset_ns)
        unended = still_open
        if not is_last:
            stuck = _issued_before(still_open, STUCK_S)
            unended = stuck[~np.isin(stuck["id"], list(self._given_open))]
            self._given_open = set(stuck["id"].tolist())
        if unended.size:
            more = _columns(unended, unended["issued"], groups, offset_ns)
            columns = {name: np.concatenate([column, more[name]]) for name, column in columns.items()}
        self._queue_batches("commops", columns, tuple(group.communicator.id for group in groups))
        self._queue_batches("iterations", iterations, ())

    def _queue_batches(self, schema: str, columns: dict[str, np.ndarray], names: tuple[str, ...]) -> None:
        count = len(columns["iteration"])
        if count:
            self._queue.extend(cut_in_order(Batch(self._header(schema, names), columns), BATCH_ROWS, BATCH_SPAN_S))
            self._rows[schema] += count

    def _header(self, schema: str, names: tuple[str, ...]) -> Header:
        assert self._announcement is not None
        one, rows = self._announcement, self._rows[schema] - self._rows_before[schema]
        own = (one.job, one.attempt, one.rank)
        return Header(schema, *own, rows, None, names, start=one.start, since_ns=one.since_ns)

    def _clock_offset_ns(self) -> int:
        """From the monotonic clock to the host's; followed only when that was set, so that times keep their order."""
        measured = measure_offset()
        if abs(measured.offset_ns - self._offset_ns) > _CLOCK_STEP_NS + measured.width_ns:
            self._offset_ns = measured.offset_ns
        return self._offset_ns


def _fits(announcement: Announcement) -> bool:
    members = sum(len(one.ranks) for one in announcement.communicators)
    return members <= MAX_MEMBERS and len(encode_announcement(announcement)) <= MAX_ANNOUNCEMENT_BYTES


def _issued_before(rows: np.ndarray, seconds: float) -> np.ndarray:
    return rows[rows["issued"] <= time.monotonic_ns() - round(seconds * 1e9)]


_HISTORY: Final = 64  # ended operators of a queue that are kept: far more than run at once
_NEVER_NS: Final = int(np.iinfo(np.int64).max)


def execution_starts(issued_ns: np.ndarray, ended_ns: np.ndarray, lanes: int) -> np.ndarray:
    """Return the times at which operators began that wait in one queue for one of `lanes` threads or streams.

    The queue is first in, first out: an operator begins when all but ``lanes - 1`` of those before it have ended,
    that is, at the `lanes`-largest of their ends, and never before it was issued. Where that is after the operator's
    end (another thread overtook), the time of issue is returned.

    `issued_ns`, `ended_ns`: int64, in the order of issue; an operator that has not ended ends at the largest int64.

    >>> execution_starts(np.array([0, 1, 2, 3]), np.array([10, 20, 30, 40]), lanes=2)
    array([ 0,  1, 10, 20])
    """
    ends, nth_largest = ended_ns, np.empty(0)
    for _ in range(lanes):
        largest = np.maximum.accumulate(ends)
        nth_largest = np.concatenate([[-_NEVER_NS], largest[:-1]])
        ends = np.minimum(ends, nth_largest)  # the end that each new largest replaces counts for the next largest
    starts = np.maximum(issued_ns, nth_largest)
    return np.where(starts <= ended_ns, starts, issued_ns)


class RowReader:
    """Turns rows taken from a ring into columns; remembers the last operators of each queue."""

    def __init__(self) -> None:
        self._history: dict[tuple[int, bool], np.ndarray] = {}

    def columns(
        self, taken: np.ndarray, still_open: np.ndarray, groups: Sequence[Group], offset_ns: int
    ) -> dict[str, np.ndarray]:
        """Return the columns of ``commops``, in the order of ends, without operators whose end went unseen.

        `taken`, `still_open`: rows of the ring, dtype `ROW`. `groups`: all groups; a row's ``group`` is an index into
        them. `offset_ns`: added to the monotonic clock it gives ns since the epoch.
        """
        rows = taken[taken["ended"] != UNSEEN]
        starts = self._starts(rows, still_open, groups)
        order = np.argsort(rows["ended"], kind="stable")
        return _columns(rows[order], starts[order], groups, offset_ns)

    def _starts(self, rows: np.ndarray, still_open: np.ndarray, groups: Sequence[Group]) -> np.ndarray:
        starts = np.maximum(rows["issued"], rows["started"])
        is_queued = (rows["op"] != SEND) & (rows["op"] != RECV)  # those run at once, or on a stream of their own
        on_device = rows["started"] != 0
        for number in np.unique(rows["group"]).tolist():
            for is_device in (False, True):
                mine = is_queued & (rows["group"] == number) & (on_device == is_device)
                if mine.any():
                    # An operator that has not ended holds its lane too, and those behind it begin later.
                    waiting = still_open[(still_open["group"] == number) & (still_open["op"] < SEND)]
                    # On a device a communicator has one stream; on the host several threads of the backend.
                    lanes = 1 if is_device else groups[number].lanes
                    starts[mine] = self._queued(rows[mine], waiting, (number, is_device), lanes)
        return starts

    def _queued(self, rows: np.ndarray, waiting: np.ndarray, queue: tuple[int, bool], lanes: int) -> np.ndarray:
        before = self._history.get(queue, np.empty(0, dtype=ROW))
        every = np.concatenate([before, rows, waiting])
        order = np.argsort(every["id"], kind="stable")
        every = every[order]
        ended = np.where(every["ended"] == OPEN, _NEVER_NS, every["ended"])
        starts = execution_starts(np.maximum(every["issued"], every["started"]), ended, lanes)
        self._history[queue] = every[every["ended"] != OPEN][-_HISTORY:]
        # Back to the order of `rows`: if `order` is [2, 0, 1], then row 0 is at 1, row 1 at 2 and row 2 at 0.
        at = np.empty(len(order), dtype=np.int64)
        at[order] = np.arange(len(order))
        return starts[at[len(before) : len(before) + len(rows)]]


def _columns(rows: np.ndarray, starts: np.ndarray, groups: Sequence[Group], offset_ns: int) -> dict[str, np.ndarray]:
    peers = np.full(len(rows), UNKNOWN)  # of collectives, and of recvs from any rank
    for number in np.unique(rows["group"][rows["peer"] >= 0]).tolist():
        mine = (rows["group"] == number) & (rows["peer"] >= 0)
        peers[mine] = np.array(groups[number].communicator.ranks)[rows["peer"][mine]]
    return {
        "communicator": rows["group"].astype(np.uint16), "operator": rows["op"].astype(np.uint8),
        "sequence": rows["sequence"].astype(np.int64), "peer": peers, "start_ns": starts + offset_ns,
        "elapsed_ns": np.where(rows["ended"] == OPEN, np.nan, rows["ended"] - starts),
        "size_bytes": rows["size"].astype(np.float64), "iteration": rows["iteration"].astype(np.int64),
    }  # fmt: skip
