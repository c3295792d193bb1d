from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from irregulars.errors import PluginError
from irregulars.messages.announcements import Announcement
from irregulars.messages.records import Batch, Header
from irregulars.producers.publishing.sources import Record, Source, check_source
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.source import TraceSource
from tests.producers.trace_directories import RECORDINGS


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(RECORDINGS / "gloo-slow-nic")


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


def polling(name: str, poll: Callable[[Any, int], Any]) -> type[Spoiled]:
    return type(name, (Spoiled,), {"poll": poll})


def changing(name: str, change: Callable[[Record], Sequence[Any]]) -> type[Spoiled]:
    """A source whose records are changed, each for itself."""
    return type(name, (Spoiled,), {"change": lambda self, record: change(record)})


def other_sources(record: Record) -> Sequence[Record]:
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


class CannotCloseTwice(Spoiled):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("closed already")
        self.is_closed = True


def spoiling(name: str, spoil: Callable[[Batch], Batch]) -> type[Spoiled]:
    """A source whose batches are spoilt, each for itself."""
    return changing(name, lambda record: [spoil(record) if isinstance(record, Batch) else record])


def unequal(batch: Batch) -> Batch:
    name, column = next(iter(batch.columns.items()))
    return Batch(batch.header, {**batch.columns, name: column[:-1]})


def with_header(**values: Any) -> Callable[[Batch], Batch]:
    return lambda batch: Batch(replace(batch.header, **values), batch.columns)


def with_watermark(watermark_ns: Callable[[Header], int]) -> Callable[[Batch], Batch]:
    return lambda batch: with_header(watermark_ns=watermark_ns(batch.header))(batch)


MOVES = count()
BAD_SOURCES: Mapping[type[Spoiled], str] = {
    polling("Blocks", lambda self, most: time.sleep(0.6) or Spoiled.poll(self, most)):
        r"poll must never block; got \d\.\d\d s or more for each of 3 polls",
    polling("GivesNone", lambda self, most: Spoiled.poll(self, most) or None):
        "poll must give a sequence, .* got None",
    polling("GivesTooMuch", lambda self, most: Spoiled.poll(self, most + 1)):
        r"poll must give at most max_records=\d+ records; got \d+",
    changing("GivesSomethingElse", lambda one: [dict(one.columns) if isinstance(one, Batch) else one]):
        "poll must give announcements, batches and heartbeats; got dict",
    changing("NeverAnnounces", lambda one: [one] if isinstance(one, Batch) else []):
        r"rank \d must be announced before its first batch",
    changing("AnnouncesOtherSources", other_sources):
        r"batch must be of an announced source \('bandwidth',\); got '(commops|iterations)'",
    spoiling("MissesAColumn", lambda batch: Batch(batch.header, dict(list(batch.columns.items())[:-1]))):
        "columns must be",
    spoiling("HasUnequalColumns", unequal): "columns must have one length above 0; got",
    spoiling("HasCodesWithoutNames", with_header(names=())): "batch must encode as",
    spoiling("MiscountsRows", with_header(rows_before=0)):
        r"rows_before must be [1-9]\d*, the rows polled before; got 0",
    spoiling("PromisesTooMuch", with_watermark(lambda header: (header.watermark_ns or 0) + 10**9)):
        r"event times must be above the watermark \d+",
    spoiling("TakesBackItsWatermark", with_watermark(lambda header: 10**9 - header.rows_before)):
        r"watermark_ns must not fall below \d+; got",
    ReusesItsArrays: "batches must not change after they were polled",
    type("ForgetsItsPosition", (Spoiled,), {"position": lambda self: None}): "position must be one text",
    type("HasAMovingPosition", (Spoiled,), {"position": lambda self: f"{self.good.position()} {next(MOVES)}"}):
        "position must be one text",
    StartsAgain: r"rows_before must be",
    ResumesTooLate: r"resumed at|rows_before must be",
    ResumesWithOtherRows: r"resumed at 'records=\d+', .* got another sequence",
    DiffersEachTime: "opened twice, the same input; got another size_bytes",
    polling("GoesOnAfterItsEnd", lambda self, most:
            self.trace.announcements[:1] if self.is_exhausted else Spoiled.poll(self, most)):
        r"poll must give \(\) once is_exhausted is True",
    CannotCloseTwice: "close must do nothing a second time; got RuntimeError: closed already",
}  # fmt: skip


def opener(kind: Callable[[Trace, str | None], Source], trace: Trace) -> Callable[[str | None], Source]:
    return lambda position: kind(trace, position)


def test_a_good_source_passes(trace: Trace) -> None:
    check_source(opener(Spoiled, trace))


@pytest.mark.parametrize("recording", sorted(RECORDINGS.glob("gloo-*")), ids=lambda path: path.name)
def test_replaying_a_recording_passes(recording: object) -> None:
    trace = read_trace(str(recording))
    check_source(lambda position: TraceSource(trace, speed=0, position=position))


@pytest.mark.parametrize(("bad", "text"), BAD_SOURCES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_bad_source_is_refused_with_the_numbers(bad: type[Spoiled], text: str, trace: Trace) -> None:
    with pytest.raises(PluginError, match=text):
        check_source(opener(bad, trace))


def test_a_source_of_nothing_is_refused(trace: Trace) -> None:
    class Empty(Spoiled):
        is_exhausted = True

        def poll(self, max_records: int) -> tuple[()]:
            return ()

    with pytest.raises(PluginError, match="must give announcements and rows; got 0 and 0"):
        check_source(opener(Empty, trace))
