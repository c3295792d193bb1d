"""A process's own operators as a source: what the agent, a trace directory and the local socket are fed from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from irregulars.messages.announcements import Announcement, Heartbeat, SourceProgress
from irregulars.messages.records import Batch, Header
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order, take_rows
from irregulars.producers.publishing.sources import Record, row_count
from irregulars.producers.torch_hook.hooks.groups import Groups
from irregulars.producers.torch_hook.hooks.ring import ROW, Ring
from irregulars.producers.torch_hook.records.clock_offset import measure_offset
from irregulars.producers.torch_hook.records.identity import Identity
from irregulars.producers.torch_hook.records.iterations import Iterations
from irregulars.producers.torch_hook.records.rows import RowReader
from irregulars.producers.torch_hook.records.start import Start

ANNOUNCE_S: Final = 10.0
"""A rank is announced, once and for all its attempt, when its first iteration has ended: groups are made before it.
Or so long after its first group was made: there may be no iterations."""

_SETTLED_NS: Final = 20_000_000  # a row is finished this long after its end: whoever notes it may lose Python's lock
_CLOCK_STEP_NS: Final = 1_000_000
_LAST_WAIT_S: Final = 1.0
"""Those who wait for an operator go on before its end is noted: the last get so long, or they would look hung."""

STUCK_S: Final = 60.0
"""An operator that is open for so long is told while it is: if the job hangs, nobody will come to tell it later. One
that ends after all is told again, as ended."""


class Hook(Protocol):
    """What the session and the source ask of a hook."""

    name: str

    @property
    def ring(self) -> Ring:
        """What it writes into."""
        ...

    def attach(self, process_group: object, name: str, number: int, device: str) -> bool:
        """Add the hook to a process group; return whether it worked."""
        ...

    def detach(self) -> None:
        """Let go of the groups, for good."""
        ...

    def enable(self, is_on: bool) -> None:
        """Switch recording on or off."""
        ...

    def set_iteration(self, iteration: int) -> None:
        """Say which iteration operators belong to from now on."""
        ...

    def errors(self) -> tuple[int, str]:
        """Count what went wrong inside and was not told yet, with the text of the first."""
        ...

    def ask_devices(self) -> None:
        """Finish the rows of what has ended on a device since."""
        ...


class TorchSource:
    """Gives the announcement of this rank once it is known, then its batches, and a heartbeat where rows were lost.

    Polled by one thread.

    Parameters
    ----------
    hook, groups, iterations
        Where rows come from.
    identity
        Who we are.
    world
        Gives this rank and the world size, or `None` while there is no process group.
    start
        Gives the start of the job as this rank finds it, asked before the rank is announced, and again when it has
        another place; it may take some seconds.
    is_unmarked
        Whether operators will carry no iteration, so that whoever reads them is to infer it.
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
        self._hook, self._groups, self._iterations = hook, groups, iterations
        self._identity, self._world_of, self._start_of = identity, world, start
        self._world: tuple[int, int] | None = None
        self._reader = RowReader()
        self._announcement: Announcement | None = None
        self._first_seen_s: float | None = None
        self._queue: list[Record] = []
        self._told_lost_rows = 0
        self._rows = {"commops": 0, "iterations": 0}
        self._rows_before = dict(self._rows)  # in the places that the rank had before
        self._announced_ns: int | None = None  # since when it has the place that was announced
        self._unsettled = np.empty(0, dtype=ROW)
        self._offset_ns = measure_offset().offset_ns
        self._ending_since_s: float | None = None
        self._is_drained = False
        self._told_open: set[int] = set()  # ids of rows

    def poll(self, max_records: int) -> Sequence[Record]:
        """Give what has come, at most `max_records` announcements, heartbeats and rows."""
        if not self._queue and not self._is_drained:
            self._fill()
        polled: list[Record] = []
        while self._queue and max_records > 0:
            record = self._queue.pop(0)
            if isinstance(record, Batch) and len(record) > max_records:
                self._queue.insert(0, take_rows(record, max_records, len(record)))
                record = take_rows(record, 0, max_records)
            max_records -= row_count(record)
            polled.append(record)
        return polled

    def position(self) -> str:
        """Say how many rows were given: a training process that ended can't be read again."""
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
        """Give what there is, with operators that never ended, and no more after it."""
        if self._ending_since_s is None:
            self._ending_since_s = time.monotonic()

    def start_over(self) -> None:
        """Announce anew: whoever was fed before is gone, and what it had not passed on is lost."""
        if self._announcement is not None:
            self._queue.insert(0, self._announcement)
            self._told_lost_rows = 0
            self._told_open.clear()

    def open_for(self, seconds: float) -> Batch | None:
        """Copy the operators that were issued so long ago and have not ended; None where there are none."""
        waiting = _issued_before(self._hook.ring.still_open(), seconds)
        if self._announcement is None or not waiting.size:
            return None
        groups = self._groups.all
        columns = self._reader.open_columns(waiting, groups, self._clock_offset_ns())
        return Batch(self._header("commops", tuple(group.communicator.id for group in groups)), columns)

    def close(self) -> None:
        """Do nothing: the session owns the hook."""

    def _fill(self) -> None:
        world = self._world_of()
        self._world = world or self._world
        is_ending = self._is_over()
        if self._world is None or not self._is_ready():
            self._is_drained = is_ending
            return
        # Again when groups were made since; monitors hold to the first, a trace directory has the newest.
        announced, groups = self._announcement, self._groups.present
        is_moved = bool(groups) and self._groups.since_ns != self._announced_ns
        if announced is None or (is_moved and world is not None):  # groups are made before torch says who we are
            self._move(*self._world)
        elif not is_moved and len(announced.communicators) < len(groups):
            self._announce(*self._world, Start(announced.start), announced.since_ns)
        self._collect(is_ending)
        self._tell_lost_rows()
        self._is_drained = is_ending

    def _is_over(self) -> bool:
        """Whether an end is wanted, and no operator is about to end still."""
        if self._ending_since_s is None:
            return False
        is_late = time.monotonic() - self._ending_since_s > _LAST_WAIT_S
        return is_late or not self._hook.ring.still_open().size

    def _is_ready(self) -> bool:
        if self._announcement is not None or self._ending_since_s is not None or self._iterations.ended:
            return True
        if self._first_seen_s is None and self._groups.all:
            self._first_seen_s = time.monotonic()
        return self._first_seen_s is not None and time.monotonic() - self._first_seen_s > ANNOUNCE_S

    def _move(self, rank: int, world_size: int) -> None:
        """Announce the place that the rank has since its groups were made; its rows count from 0 there."""
        self._rows_before, self._announced_ns = dict(self._rows), self._groups.since_ns
        start = self._start_of(rank)
        is_again = start.is_again or (start.id is None and self._announcement is not None)
        self._announce(rank, world_size, start, self._announced_ns if is_again else None)

    def _announce(self, rank: int, world_size: int, start: Start, since_ns: int | None) -> None:
        identity = self._identity
        sources = ("commops", "iterations") if self._iterations.ended else ("commops",)
        self._announcement = Announcement(
            job=identity.job, attempt=identity.attempt, rank=rank, world_size=world_size, logged_ranks=world_size,
            communicators=tuple(group.communicator for group in self._groups.present), sources=sources,
            clock=identity.clock(world_size), host=identity.host, gpu=identity.gpu, nic=identity.nic,
            switch=identity.switch, lost_rows=self.lost_rows, start=start.id,
            since_ns=since_ns,
        )  # fmt: skip
        self._queue.append(self._announcement)

    def _collect(self, is_last: bool) -> None:
        self._hook.ask_devices()
        offset_ns = self._clock_offset_ns()
        iterations = self._iterations.take(offset_ns, is_last=is_last)
        taken, still_open, groups = self._take(is_last), self._hook.ring.still_open(), self._groups.all
        columns = self._reader.columns(taken, still_open, groups, offset_ns)
        if (unended_rows := still_open if is_last else self._stuck(still_open)).size:
            unended = self._reader.open_columns(unended_rows, groups, offset_ns)
            columns = {name: np.concatenate([column, unended[name]]) for name, column in columns.items()}
        self._queue_batches("commops", columns, tuple(group.communicator.id for group in groups))
        self._queue_batches("iterations", iterations, ())

    def _stuck(self, still_open: np.ndarray) -> np.ndarray:
        """Choose the rows that are open for so long that they are told, once each."""
        stuck = _issued_before(still_open, STUCK_S)
        new = stuck[~np.isin(stuck["id"], list(self._told_open))]
        self._told_open = set(stuck["id"].tolist())
        return new

    def _take(self, is_last: bool) -> np.ndarray:
        """Take the rows that ended long enough ago: none that ended before them will come after them."""
        until_ns = time.monotonic_ns() - _SETTLED_NS
        taken = np.concatenate([self._unsettled, self._hook.ring.take()])
        is_settled = (taken["ended"] <= until_ns) | is_last
        self._unsettled = taken[~is_settled]
        return taken[is_settled]

    def _queue_batches(self, schema: str, columns: dict[str, np.ndarray], names: tuple[str, ...]) -> None:
        count = len(columns["iteration"])
        if count == 0:
            return
        self._queue.extend(cut_in_order(Batch(self._header(schema, names), columns), BATCH_ROWS, BATCH_SPAN_S))
        self._rows[schema] += count

    def _header(self, schema: str, names: tuple[str, ...]) -> Header:
        assert self._announcement is not None
        one = self._announcement
        rows = self._rows[schema] - self._rows_before[schema]
        return Header(
            schema, one.job, one.attempt, one.rank, rows, None, names, start=one.start, since_ns=one.since_ns
        )

    def _tell_lost_rows(self) -> None:
        """Say what was lost as soon as it is: what is missing must not look as if it had never been entered."""
        if self.lost_rows == self._told_lost_rows or self._announcement is None:
            return
        self._told_lost_rows, one = self.lost_rows, self._announcement
        rows = self._rows["commops"] - self._rows_before["commops"]
        lost = {"commops": SourceProgress(rows, None, self.lost_rows)}
        self._queue.append(Heartbeat(one.job, one.attempt, one.rank, lost, start=one.start, since_ns=one.since_ns))

    def _clock_offset_ns(self) -> int:
        """From the monotonic clock to the host's; followed only when it was set, so that times keep their order."""
        measured = measure_offset()
        if abs(measured.offset_ns - self._offset_ns) > _CLOCK_STEP_NS + measured.width_ns:
            self._offset_ns = measured.offset_ns
        return self._offset_ns


def _issued_before(rows: np.ndarray, seconds: float) -> np.ndarray:
    return rows[rows["issued"] <= time.monotonic_ns() - round(seconds * 1e9)]
