"""The result of an import: rows of each rank in the terms of a trace directory, and the job they describe."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import numpy as np

from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.bounds import BOUNDS, usable_rows
from irregulars.messages.device_events import DeviceEvent, batch_of
from irregulars.messages.records import AUDIT, PAUSE, PHASE_UNKNOWN, UNKNOWN, Batch, Header, iteration_columns
from irregulars.producers.importers.identity import LeftOut
from irregulars.producers.publishing.batches import ends_ns
from irregulars.producers.trace.job_file import RankLocation

Array = np.ndarray
# Operators of one rank: more would not fit into memory beside those of the other ranks of a host.
MOST_ROWS: Final = 8_000_000
SEQUENCES: Final = 1 << 32  # a sequence is a uint32: a number above begins again at 0, as on all ranks
ENDED_NS: Final = 0.0  # duration of an operator that ended after an unknown time: no less than this
ITERATION: Final = 0  # of sources that know no iterations, and whose times can not be judged: all counts as one
_INTEGERS: Final = ("communicator", "operator", "sequence", "peer", "start_ns", "iteration")
_FLOATS: Final = ("elapsed_ns", "size_bytes")
_ROW: Final = Struct("=6q2d")
_COLUMNS: Final = np.dtype([*((name, np.int64) for name in _INTEGERS), *((name, np.float64) for name in _FLOATS)])
_OPERATOR: Final = BOUNDS["commops"]
_ITERATION: Final = BOUNDS["iterations"]
_BESIDE: Final = (*AUDIT, *PAUSE)


class RankRows:
    """Operators and iterations of one rank, kept as numbers: a row is 64 bytes.

    Rows outside the contract's bounds (times below 0, lengths of years) are left out, and counted in `unusable`.
    """

    def __init__(self) -> None:
        self.unusable = 0
        self._names: dict[str, int] = {}
        self._rows = bytearray()
        self._iterations: dict[int, tuple[int, int]] = {}
        self._not_finite: dict[int, float] = {}
        self._beside: list[tuple[int, ...]] = []  # audits and pauses: iteration, and the columns `_BESIDE`

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    @property
    def has_open(self) -> bool:
        """Whether an operator never ended."""
        return bool(np.isnan(np.frombuffer(self._rows, _COLUMNS)["elapsed_ns"]).any())

    @property
    def has_iterations(self) -> bool:
        """Whether iterations were marked."""
        return bool(self._iterations)

    def add(
        self,
        communicator: str,
        operator: int,
        sequence: int,
        peer: int = UNKNOWN,
        start_ns: int = UNKNOWN,
        elapsed_ns: float = np.nan,
        size_bytes: float = np.nan,
        iteration: int = UNKNOWN,
    ) -> None:
        """Add an operator; NaN as elapsed: it never ended (InputError if there are more than `MOST_ROWS`)."""
        is_usable = _OPERATOR["sequence"].holds(sequence) and (peer == UNKNOWN or _OPERATOR["peer"].holds(peer))
        is_usable &= start_ns == UNKNOWN or _OPERATOR["start_ns"].holds(start_ns)
        is_usable &= elapsed_ns != elapsed_ns or _OPERATOR["elapsed_ns"].holds(elapsed_ns)
        is_usable &= iteration == UNKNOWN or _OPERATOR["iteration"].holds(iteration)
        if not is_usable:
            self.unusable += 1
            return
        if len(self) >= MOST_ROWS:
            raise InputError(f"operators of one rank must be at most {MOST_ROWS}; got more")
        code = self._names.setdefault(communicator, len(self._names))
        size_bytes = size_bytes if _OPERATOR["size_bytes"].holds(size_bytes) else np.nan
        self._rows += _ROW.pack(code, operator, sequence, peer, start_ns, iteration, elapsed_ns, size_bytes)

    def add_columns(self, communicators: Sequence[str], columns: Mapping[str, Array]) -> None:
        """Add many operators at once, as `add` would; ``communicator`` holds places in `communicators`."""
        size, most = columns["size_bytes"], _OPERATOR["size_bytes"].most
        columns = {**columns, "size_bytes": np.where((size >= 0) & (size <= most), size, np.nan)}
        sequence, others = columns["sequence"], usable_rows("commops", columns)
        is_usable = (sequence >= 0) & (sequence <= _OPERATOR["sequence"].most)  # batches have 32 bits for it
        kept = np.flatnonzero(is_usable if others is None else is_usable & others)
        self.unusable += len(sequence) - len(kept)
        if len(self) + len(kept) > MOST_ROWS:
            raise InputError(f"operators of one rank must be at most {MOST_ROWS}; got more")
        rows = np.empty(len(kept), _COLUMNS)
        for name in (*_INTEGERS, *_FLOATS):
            rows[name] = columns[name][kept]
        # Only rows that are kept give a communicator a code, as in `add`.
        codes = np.zeros(len(communicators), np.int64)
        for at in np.unique(rows["communicator"]):
            codes[at] = self._names.setdefault(communicators[at], len(self._names))
        rows["communicator"] = codes[rows["communicator"]]
        self._rows += rows.tobytes()

    def add_audit(self, number: int, of_rank: int, checksum: int) -> None:
        """Add a result of this rank for the data of a rank; it is left out if its iteration is."""
        self._beside.append((number, of_rank, checksum, *[UNKNOWN] * len(PAUSE)))

    def add_pause(self, number: int, cause: int, start_ns: int, elapsed_ns: int) -> None:
        """Add a pause; it is left out if its iteration is, and where it lasts for no time."""
        if elapsed_ns > 0:
            self._beside.append((number, *[UNKNOWN] * len(AUDIT), cause, start_ns, elapsed_ns))

    def spans(self) -> tuple[Array, Array, Array]:
        """Return number, start and length of each iteration, in order of their starts."""
        rows = sorted((start_ns, number, elapsed_ns) for number, (start_ns, elapsed_ns) in self._iterations.items())
        start_ns, number, elapsed_ns = np.array(rows, np.int64).reshape(-1, 3).T
        return number, start_ns, elapsed_ns

    def add_iteration(self, number: int, start_ns: int, elapsed_ns: int, not_finite: float = np.nan) -> None:
        """Add an iteration; a second one with the same number extends the first.

        `not_finite`: how many of its own results were NaN or infinite, where that is known.
        """
        row = {"iteration": number, "start_ns": start_ns, "elapsed_ns": elapsed_ns}
        if not all(_ITERATION[name].holds(value) for name, value in row.items()):
            self.unusable += 1
            return
        known = self._iterations.get(number)
        if known is not None:
            end_ns = max(start_ns + elapsed_ns, sum(known))
            start_ns = min(start_ns, known[0])
            elapsed_ns = end_ns - start_ns
        self._iterations[number] = start_ns, elapsed_ns
        # The number that is known wins over NaN.
        self._not_finite[number] = np.fmax(not_finite, self._not_finite.get(number, np.nan))

    def operators(self, header: Header) -> Batch | None:
        """Return all operators as one batch, in order of their ends; None if there are none."""
        if not len(self):
            return None
        rows = np.frombuffer(self._rows, _COLUMNS)
        columns: dict[str, Array] = {name: rows[name].copy() for name in (*_INTEGERS, *_FLOATS)}
        columns["communicator"] = columns["communicator"].astype(np.uint16)
        columns["operator"] = columns["operator"].astype(np.uint8)
        end_ns = ends_ns(columns["start_ns"], columns["elapsed_ns"])
        # Rows without an end come last, as `arrange` puts those of a trace directory.
        order = np.lexsort((columns["start_ns"], np.where(end_ns == UNKNOWN, np.iinfo(np.int64).max, end_ns)))
        return _batch(header, {name: column[order] for name, column in columns.items()}, end_ns, tuple(self._names))

    def iterations(self, header: Header) -> Batch | None:
        """Return all iterations as one batch, in order of their ends; None if there are none."""
        if not self._iterations:
            return None
        rows = [(number, *[UNKNOWN] * len(_BESIDE)) for number in self._iterations]
        rows += [one for one in self._beside if one[0] in self._iterations]
        # Its own row comes behind those of things in it.
        rows.sort(key=lambda row: (sum(self._iterations[row[0]]), row[0], max(row[1:]) == UNKNOWN, row))
        numbers, *beside = np.array(rows, np.int64).T
        start_ns, whole_ns = np.array([self._iterations[number] for number, *_ in rows], np.int64).T
        elapsed_ns, phase = whole_ns.astype(np.float64), np.full(len(rows), PHASE_UNKNOWN, np.uint8)
        columns = iteration_columns(numbers, start_ns, elapsed_ns, phase) | dict(zip(_BESIDE, beside, strict=True))
        columns["not_finite"] = np.array([self._not_finite[number] for number, *_ in rows], np.float64)
        return _batch(header, columns, ends_ns(start_ns, elapsed_ns), ())


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """All that was imported of one job."""

    job: str
    world_size: int
    clock: str
    communicators: Collection[Communicator]
    ranks: Mapping[int, RankRows]  # rows of each logged rank; a rank that logged nothing has empty ones
    places: Mapping[int, RankLocation] = field(default_factory=dict)
    notes: Sequence[str] = ()  # limits of this source that a person must know, a sentence each
    # Number of records without a known collective, by reason
    skipped: Mapping[str, int] = field(default_factory=dict)
    left_out: Sequence[LeftOut] = ()  # files that were not used
    # Per rank, where it is known: time up to which all its rows are here, ns since the epoch
    complete_until_ns: Mapping[int, int] = field(default_factory=dict)
    events: Mapping[int, Sequence[DeviceEvent]] = field(default_factory=dict)  # of ranks

    @property
    def has_open(self) -> bool:
        """Whether any operator was entered and never ended: the job hung, or was recorded while it ran."""
        return any(rows.has_open for rows in self.ranks.values())

    def announcements(self) -> Iterator[Announcement]:
        """Yield one of each logged rank."""
        communicators = sorted(self.communicators, key=lambda one: one.id)
        members = grouped((rank, communicator) for communicator in communicators for rank in communicator.ranks)
        for rank, rows in sorted(self.ranks.items()):
            place = self.places.get(rank, RankLocation())
            yield Announcement(
                job=self.job, attempt=0, rank=rank, world_size=self.world_size, logged_ranks=len(self.ranks),
                communicators=tuple(members.get(rank, ())),
                sources=("commops", "iterations") if rows.has_iterations else ("commops",), clock=self.clock,
                host=place.host, gpu=place.gpu, lost_rows=place.lost_rows,
                recorded_until_ns=max(self.complete_until_ns.values(), default=None),
            )  # fmt: skip

    def batches(self) -> Iterator[Batch]:
        """Yield the rows of each rank, as at most one batch of operators, one of iterations and one of events."""
        for rank, rows in sorted(self.ranks.items()):
            for schema, make in (("commops", rows.operators), ("iterations", rows.iterations)):
                until_ns = self.complete_until_ns.get(rank)
                batch = make(Header(schema=schema, job=self.job, attempt=0, rank=rank, watermark_ns=until_ns))
                if batch is not None:
                    yield batch
            if events := self.events.get(rank):
                last_ns = max(one.time_ns for one in events)
                yield batch_of(events, Header("events", self.job, 0, rank, watermark_ns=last_ns))


def _batch(header: Header, columns: Mapping[str, Array], end_ns: Array, names: tuple[str, ...]) -> Batch:
    known_ns = [ns for ns in (int(end_ns.max()), header.watermark_ns) if ns not in (None, UNKNOWN)]
    watermark_ns = max(known_ns, default=None)
    whole = Header(header.schema, header.job, header.attempt, header.rank, 0, watermark_ns, names)
    return Batch(whole, columns)
