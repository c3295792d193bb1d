"""``irregulars replay``: publish a recorded job as it would have published itself."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irregulars import stopping
from irregulars.infra.commands.options import Bootstrap, Json, TopicPrefix, print_json, settings_of
from irregulars.printing import counted, say

# Seconds without an acknowledgement after which that is said: a broker in good health takes a fraction of one
QUIET_S = 10.0

_FIRST_ROWS = 16

if TYPE_CHECKING:
    from irregulars.messages.records import Batch
    from irregulars.producers.publishing.agent import Progress
    from irregulars.producers.trace.directory import Trace


def replay(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A trace directory: job.json and commops.*")],
    speed: Annotated[
        float, typer.Option(help="1: as recorded; 10: ten times as fast; 0: as fast as Kafka goes.")
    ] = 1,
    job: Annotated[str | None, typer.Option(help="Call the job so; default: the name in job.json.")] = None,
    attempt: Annotated[int | None, typer.Option(min=0, help="Start number of the job.")] = None,
    is_moving: Annotated[
        bool | None,
        typer.Option(
            "--now/--keep-times",
            help="Move its times to now, or leave them; default: move those that lie in the future.",
            show_default=False,
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    json: Json = False,
) -> None:
    """Publish a trace directory to Kafka, at the pace of the recorded job.

    Ctrl-C or SIGTERM ends it cleanly: what was read is delivered.

    A simulated job begins on 2027-01-15, so that it is the same each time. Where that lies in the future, its times
    are moved: it begins now, or with --speed 0 it has just ended. Real recordings keep theirs without --now.

    Example: irregulars replay tests/recordings/gloo-slow-nic --speed 0
    """
    from irregulars.infra.commands.analyze import rows_left_out
    from irregulars.infra.configuration.wiring import agent_settings
    from irregulars.producers.publishing.agent import Agent
    from irregulars.producers.trace.directory import read_trace
    from irregulars.producers.trace.iterations import number_iterations
    from irregulars.producers.trace.source import TraceSource

    settings = settings_of(context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
    trace = read_trace(directory)
    if trace.rejected.count:
        say(rows_left_out(trace))
    numbered = number_iterations(trace)
    if numbered.report:
        say(numbered.report)
    shifted = in_time(rename_job(numbered.trace, job, attempt), time.time_ns(), is_moving, ends_now=speed == 0)
    source = TraceSource(shifted, speed)
    waiting = Acknowledged(settings.kafka_bootstrap)
    agent = Agent(source, agent_settings(settings), waiting.note if json else waiting.show)
    with stopping.on_stop(agent.stop), waiting:
        done = agent.run()
    _report(done, json)


def in_time(trace: Trace, now_ns: int, is_moving: bool | None, *, ends_now: bool) -> Trace:
    """Return a trace with its times moved to now, and say so; None: if they lie in the future.

    `ends_now`: whether it ends now; else it begins now.
    """
    from irregulars.producers.trace.source import moved, span_ns

    span = span_ns(trace)
    if span is None or is_moving is False or (is_moving is None and span[1] <= now_ns):
        return trace
    by_ns = now_ns - (span[1] if ends_now else span[0])
    begin = datetime.fromtimestamp(span[0] // 10**9, UTC)
    days = f"{abs(by_ns) / 86_400e9:.1f} days {'earlier' if by_ns < 0 else 'later'}"
    which = f"times that begin at {begin:%Y-%m-%d %H:%M:%S}Z"
    say(f"{which} are moved to now, {days}; --keep-times leaves them as they are")
    return moved(trace, by_ns)


def rename_job(trace: Trace, job: str | None, attempt: int | None) -> Trace:
    """Give a trace another job name or start number (`None`: keep it), and its rows the id of its start."""
    from irregulars.messages.records import SCHEMAS

    names: dict[str, Any] = {
        "job": trace.job if job is None else job,
        "attempt": trace.attempt if attempt is None else attempt,
    }
    names_of_rows = {**names, "start": start_of_recording(trace)}
    batches: dict[str, Any] = {schema: _rename_headers(trace.batches(schema), names_of_rows) for schema in SCHEMAS}
    announcements = tuple(replace(announcement, **names_of_rows) for announcement in trace.announcements)
    return replace(trace, announcements=announcements, **names, **batches)


def start_of_recording(trace: Trace) -> str:
    """Return an id of the start that was recorded: a recording that is sent twice is the same start, and counts once.

    It is made of who took part and where, and of each rank's first operators.
    """
    from irregulars.messages.announcements import encode_announcement

    digest = blake2b(digest_size=16)
    for announcement in trace.announcements:
        digest.update(encode_announcement(announcement))
    for batch in trace.commops.values():
        digest.update(batch.columns["start_ns"][:_FIRST_ROWS].tobytes())
    return digest.hexdigest()


def _rename_headers(batches: Mapping[int, Batch], names: Mapping[str, Any]) -> dict[int, Batch]:
    return {rank: replace(batch, header=replace(batch.header, **names)) for rank, batch in batches.items()}


class Acknowledged:
    """Says loudly when Kafka has acknowledged nothing for `QUIET_S`, or not answered at all. Use it as a context.

    `bootstrap`: Brokers that must acknowledge.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._delivered = -1
        self.timer = self._start()

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()

    def note(self, progress: Progress) -> None:
        """Wait again from now on, if more was acknowledged."""
        if progress.delivered_messages > self._delivered:
            self._delivered = progress.delivered_messages
            self.timer.cancel()
            self.timer = self._start()
            self.timer.start()

    def show(self, progress: Progress) -> None:
        """Show the progress as well, on a terminal."""
        self.note(progress)
        if sys.stderr.isatty():
            print(f"\r{progress.rows:,} rows published", end="", file=sys.stderr, flush=True)

    def _start(self) -> threading.Timer:
        timer = threading.Timer(QUIET_S, self._complain)
        timer.daemon = True
        return timer

    def _complain(self) -> None:
        text = f"NOTHING WAS ACKNOWLEDGED by Kafka at {self._bootstrap} within {QUIET_S:g} s"
        say(f"{text}; is it there, and is anything else in its way?")


def _report(done: Progress, json: bool) -> None:
    if json:
        print_json({"announcements": done.announcements, "batches": done.batches, "rows": done.rows,
                    "delivered_messages": done.delivered_messages, "reason": done.reason})  # fmt: skip
        return
    if sys.stderr.isatty():
        print(file=sys.stderr)
    sent = f"{counted(done.announcements, 'announcement')} and {counted(done.rows, 'row')} delivered"
    print(f"{done.reason}: {sent} in {counted(done.batches, 'batch', 'batches')}")
