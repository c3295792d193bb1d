"""Sources that each break one rule of the protocol; `check_source` must refuse every one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import Batch, Header
from irregulars.producers.publishing.sources import Record, Source
from irregulars.producers.trace.directory import Trace
from irregulars.producers.trace.source import TraceSource


class Spoiled:
    """Passes everything on to a good source; what breaks a rule is overridden."""

    def __init__(self, trace: Trace, position: str | None) -> None:
        self.trace = trace
        self.good = TraceSource(trace, speed=0, position=position, max_rows=200)

    def poll(self, max_records: int) -> Any:
        return [changed for record in self.good.poll(max_records) for changed in self.change(record)]

    def change(self, record: Record) -> Sequence[Any]:
        return [record]

    def position(self) -> Any:
        return self.good.position()

    @property
    def is_exhausted(self) -> bool:
        return self.good.is_exhausted

    def close(self) -> None:
        self.good.close()


class Blocks(Spoiled):
    def poll(self, max_records: int) -> Any:
        time.sleep(0.6)
        return super().poll(max_records)


class GivesNone(Spoiled):
    def poll(self, max_records: int) -> Any:
        return super().poll(max_records) or None


class GivesTooMuch(Spoiled):
    def poll(self, max_records: int) -> Any:
        return super().poll(max_records + 1)


class GivesSomethingElse(Spoiled):
    def change(self, record: Record) -> Sequence[Any]:
        return [record] if isinstance(record, Announcement) else [dict(record.columns)]


class NeverAnnounces(Spoiled):
    def change(self, record: Record) -> Sequence[Any]:
        return [record] if isinstance(record, Batch) else []


class AnnouncesOtherSources(Spoiled):
    def change(self, record: Record) -> Sequence[Any]:
        return [replace(record, sources=("bandwidth",)) if isinstance(record, Announcement) else record]


class ReusesItsArrays(Spoiled):
    last: Batch | None = None

    def change(self, record: Record) -> Sequence[Any]:
        if isinstance(record, Batch):
            if self.last is not None and self.last.header.schema == "commops":
                self.last.columns["sequence"][:] = 0
            record = Batch(record.header, {name: column.copy() for name, column in record.columns.items()})
            self.last = record
        return [record]


class ForgetsItsPosition(Spoiled):
    def position(self) -> Any:
        return None


class HasAMovingPosition(Spoiled):
    moves = count()

    def position(self) -> Any:
        return f"{self.good.position()} {next(self.moves)}"


class StartsAgain(Spoiled):
    def __init__(self, trace: Trace, position: str | None) -> None:
        super().__init__(trace, None)


class ResumesTooLate(Spoiled):
    def __init__(self, trace: Trace, position: str | None) -> None:
        super().__init__(trace, position)
        if position is not None:
            self.good.poll(1)


class ResumesWithOtherRows(Spoiled):
    column = "sequence"

    def __init__(self, trace: Trace, position: str | None) -> None:
        super().__init__(trace, position)
        self.added = int(position is not None)

    def change(self, record: Record) -> Sequence[Any]:
        if not isinstance(record, Batch) or record.header.schema != "commops":
            return [record]
        return [Batch(record.header, {**record.columns, self.column: record.columns[self.column] + self.added})]


class DiffersEachTime(ResumesWithOtherRows):
    column, opened = "size_bytes", count()

    def __init__(self, trace: Trace, position: str | None) -> None:
        super().__init__(trace, position)
        self.added = next(self.opened)


class GoesOnAfterItsEnd(Spoiled):
    def poll(self, max_records: int) -> Any:
        return [self.trace.announcements[0]] if self.is_exhausted else super().poll(max_records)


class CannotCloseTwice(Spoiled):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("closed already")
        self.is_closed = True


def spoiling(name: str, spoil: Callable[[Batch], Batch]) -> type[Spoiled]:
    """A source whose batches are spoilt, each for itself."""

    class Made(Spoiled):
        def change(self, record: Record) -> Sequence[Any]:
            return [spoil(record) if isinstance(record, Batch) else record]

    Made.__name__ = name
    return Made


def unequal(batch: Batch) -> Batch:
    name, column = next(iter(batch.columns.items()))
    return Batch(batch.header, {**batch.columns, name: column[:-1]})


def with_header(**values: Any) -> Callable[[Batch], Batch]:
    return lambda batch: Batch(replace(batch.header, **values), batch.columns)


def with_watermark(watermark_ns: Callable[[Header], int]) -> Callable[[Batch], Batch]:
    return lambda batch: with_header(watermark_ns=watermark_ns(batch.header))(batch)


HasUnequalColumns = spoiling("HasUnequalColumns", unequal)
HasCodesWithoutNames = spoiling("HasCodesWithoutNames", with_header(names=()))

BAD_SOURCES: Mapping[type[Spoiled], str] = {
    Blocks: r"poll must never block; got \d\.\d\d s or more for each of 3 polls",
    GivesNone: "poll must give a sequence, .* got None",
    GivesTooMuch: r"poll must give at most max_records=\d+ records; got \d+",
    GivesSomethingElse: "poll must give announcements, batches and heartbeats; got dict",
    NeverAnnounces: r"rank \d must be announced before its first batch",
    AnnouncesOtherSources: r"batch must be of an announced source \('bandwidth',\); got '(commops|iterations)'",
    spoiling(
        "MissesAColumn", lambda batch: Batch(batch.header, dict(list(batch.columns.items())[:-1]))
    ): "columns must be",
    HasUnequalColumns: "columns must have one length above 0; got",
    HasCodesWithoutNames: "batch must encode as",
    spoiling(
        "MiscountsRows", with_header(rows_before=0)
    ): r"rows_before must be [1-9]\d*, the rows polled before; got 0",
    spoiling(
        "PromisesTooMuch", with_watermark(lambda header: (header.watermark_ns or 0) + 10**9)
    ): r"event times must be above the watermark \d+",
    spoiling(
        "TakesBackItsWatermark", with_watermark(lambda header: 10**9 - header.rows_before)
    ): r"watermark_ns must not fall below \d+; got",
    ReusesItsArrays: "batches must not change after they were polled",
    ForgetsItsPosition: "position must be one text",
    HasAMovingPosition: "position must be one text",
    StartsAgain: r"rows_before must be",
    ResumesTooLate: r"resumed at|rows_before must be",
    ResumesWithOtherRows: r"resumed at 'announcements=4 rows=\d+', .* got another sequence",
    DiffersEachTime: "opened twice, the same input; got another size_bytes",
    GoesOnAfterItsEnd: r"poll must give \(\) once is_exhausted is True",
    CannotCloseTwice: "close must do nothing a second time; got RuntimeError: closed already",
}


def opener(kind: Callable[[Trace, str | None], Source], trace: Trace) -> Callable[[str | None], Source]:
    return lambda position: kind(trace, position)
