"""Sources that each break one rule of the protocol; `check_source` must refuse every one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import Batch
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


class _OnBatches(Spoiled):
    def change(self, record: Record) -> Sequence[Any]:
        return [self.spoil(record) if isinstance(record, Batch) else record]

    def spoil(self, batch: Batch) -> Batch:
        raise NotImplementedError


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


class MissesAColumn(_OnBatches):
    def spoil(self, batch: Batch) -> Batch:
        return Batch(batch.header, dict(list(batch.columns.items())[:-1]))


class HasUnequalColumns(_OnBatches):
    def spoil(self, batch: Batch) -> Batch:
        columns = dict(batch.columns)
        name = next(iter(columns))
        return Batch(batch.header, columns | {name: columns[name][:-1]})


class HasCodesWithoutNames(_OnBatches):
    def spoil(self, batch: Batch) -> Batch:
        return Batch(replace(batch.header, names=()), batch.columns)


class MiscountsRows(_OnBatches):
    def spoil(self, batch: Batch) -> Batch:
        return Batch(replace(batch.header, rows_before=0), batch.columns)


class PromisesTooMuch(_OnBatches):
    def spoil(self, batch: Batch) -> Batch:
        watermark_ns = (batch.header.watermark_ns or 0) + 10**9
        return Batch(replace(batch.header, watermark_ns=watermark_ns), batch.columns)


class TakesBackItsWatermark(_OnBatches):
    def spoil(self, batch: Batch) -> Batch:
        watermark_ns = 10**9 - batch.header.rows_before
        return Batch(replace(batch.header, watermark_ns=watermark_ns), batch.columns)


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


class ResumesWithOtherRows(_OnBatches):
    def __init__(self, trace: Trace, position: str | None) -> None:
        super().__init__(trace, position)
        self.is_resumed = position is not None

    def spoil(self, batch: Batch) -> Batch:
        if not self.is_resumed or batch.header.schema != "commops":
            return batch
        return Batch(batch.header, {**batch.columns, "sequence": batch.columns["sequence"] + 1})


class DiffersEachTime(_OnBatches):
    opened = count()

    def __init__(self, trace: Trace, position: str | None) -> None:
        super().__init__(trace, position)
        self.number = next(self.opened)

    def spoil(self, batch: Batch) -> Batch:
        if batch.header.schema != "commops":
            return batch
        return Batch(batch.header, {**batch.columns, "size_bytes": batch.columns["size_bytes"] + self.number})


class GoesOnAfterItsEnd(Spoiled):
    def poll(self, max_records: int) -> Any:
        return [self.trace.announcements[0]] if self.is_exhausted else super().poll(max_records)


class CannotCloseTwice(Spoiled):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("closed already")
        self.is_closed = True


BAD_SOURCES: Mapping[type[Spoiled], str] = {
    Blocks: r"poll must never block; got \d\.\d\d s or more for each of 3 polls",
    GivesNone: "poll must give a sequence, .* got None",
    GivesTooMuch: r"poll must give at most max_records=\d+ records; got \d+",
    GivesSomethingElse: "poll must give announcements, batches and heartbeats; got dict",
    NeverAnnounces: r"rank \d must be announced before its first batch",
    AnnouncesOtherSources: r"batch must be of an announced source \('bandwidth',\); got '(commops|iterations)'",
    MissesAColumn: "columns must be",
    HasUnequalColumns: "columns must have one length above 0; got",
    HasCodesWithoutNames: "batch must encode as",
    MiscountsRows: r"rows_before must be [1-9]\d*, the rows polled before; got 0",
    PromisesTooMuch: r"event times must be above the watermark \d+",
    TakesBackItsWatermark: r"watermark_ns must not fall below \d+; got",
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
