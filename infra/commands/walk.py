"""``irregulars walk``: follow one batch from the operators that a rank logged to the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irregulars.infra.commands.options import Json, open_console, print_json, settings_of
from irregulars.printing import counted, printable

if TYPE_CHECKING:
    from irregulars.infra.runs.walk_stations import Place, Station
    from irregulars.producers.trace.directory import Trace

_WIDTH = 80
_INDENT = "   "
_ROWS_SHOWN = 7
_LONG = 1000  # messages that take about two seconds
_LANES_SHOWN = 4


def walk(
    context: typer.Context,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="A trace directory; without it a job of 4 ranks is simulated."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Whose batch; default: the first suspect's.")] = None,
    iteration: Annotated[
        int | None, typer.Option(help="Which iteration; default: the one with which the costliest verdict opened.")
    ] = None,
    json: Json = False,
) -> None:
    """Follow one batch from the operators that a rank logged to the verdict, station by station.

    Each station names the files and functions that do its work, and shows the values that stand there. The whole
    job goes through the stream's own monitors in one process, without Kafka or database. For people who want to
    know the code: infra/docs/architecture.md explains the stations.

    Example: irregulars walk

    Example: irregulars walk tests/recordings/gloo-slow-nic --rank 1 --iteration 70
    """
    from irregulars.infra.configuration.wiring import monitor_settings
    from irregulars.infra.runs.walk import read_numbered, simulated_job
    from irregulars.infra.runs.walk import walk as run
    from irregulars.infra.runs.walk_stations import choose, stations

    settings = monitor_settings(settings_of(context))
    trace = simulated_job() if directory is None else read_numbered(directory)
    with _progress() as on_part:
        job = run(trace, settings, on_part)
    place = choose(job, rank, iteration)
    way = stations(job, place)
    if json:
        print_json({"job": trace.job, "rank": place.rank, "iteration": place.iteration,
                    "stations": [station.to_json() for station in way]})  # fmt: skip
    else:
        for line in _page(trace, place, way):
            print(printable(line))


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how far a job is through that takes a while."""
    from rich.progress import Progress

    console = open_console(is_error=True)
    progress = Progress(console=console, transient=True)
    task = progress.add_task("messages", total=None)

    def show(done: int, total: int) -> None:
        if console.is_terminal and total >= _LONG:
            progress.start()  # does nothing from the second time on
            progress.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if progress.live.is_started:
            progress.stop()


# --- for people -----------------------------------------------------------------------------------------------------


def _page(trace: Trace, place: Place, way: list[Station]) -> Iterator[str]:
    yield from textwrap.wrap(
        f"Job {trace.job}, {counted(trace.world_size, 'rank')}: the way of rank {place.rank}'s batch with iteration "
        f"{place.iteration}.", _WIDTH,
    )  # fmt: skip
    for number, station in enumerate(way, start=1):
        yield ""
        yield f"{number}. {station.title}"
        yield from (f"{_INDENT}{one}" for one in station.done_by)
        yield from (f"{_INDENT}| {line}"[:_WIDTH] for line in _LINES[station.name](station.values))


def _rows(values: dict[str, Any]) -> Iterator[str]:
    rows = values["rows"]
    begin_ns = min((row["start_ns"] for row in rows if row["start_ns"] is not None), default=0)
    yield f"{'communicator':14}{'operator':15}{'sequence':>8} {'peer':>5}{'start ms':>10}{'took ms':>9}{'MB':>8}"
    for row in rows[:_ROWS_SHOWN]:
        start_ns = None if row["start_ns"] is None else row["start_ns"] - begin_ns
        size = "?" if row["size_bytes"] is None else f"{row['size_bytes'] / 1e6:.3g}"
        yield (
            f"{row['communicator'][:13]:14}{row['operator']:15}{row['sequence']:>8} {_shown(row['peer']):>5}"
            f"{_ms(start_ns):>10}{_ms(row['elapsed_ns']):>9}{size:>8}"
        )
    if len(rows) > _ROWS_SHOWN:
        yield f"... and {len(rows) - _ROWS_SHOWN} more"


def _batch(values: dict[str, Any]) -> Iterator[str]:
    yield _message(values)
    first, past = values["rows"]
    yield f"rows {first} to {past - 1} of this rank, iterations {_span(values['iterations'])}"
    yield f"complete up to {_shown(values['watermark_ns'])} ns (the watermark)"


def _closed(values: dict[str, Any]) -> Iterator[str]:
    if values:
        by = values["closed_by"]
        yield f"with message {by['offset']} of {by['topic']} every source of the rank has passed its end"
        together = _span(values["closed_with"])
        yield f"{counted(values['operators'], 'operator')}; closed together: iterations {together}"


def _evidence(values: dict[str, Any]) -> Iterator[str]:
    if not values:
        return
    yield _message(values)
    yield (
        f"iteration {_ms(values['elapsed_ns'])} ms: own work {_ms(values['work_ns'])} ms, "
        f"{counted(values['operators'], 'operator')} {_ms(values['communication_ns'])} ms"
    )
    for one in values["classes"]:
        where = f" from rank {one['peer']}" if one["peer"] >= 0 else ""
        shortest = f"shortest {_ms(one['shortest_ns'])} ms"
        yield f"{one['count']} x {one['operator']} on {one['communicator']}{where}: {shortest}"
    yield f"the operators themselves: commops, offset {', '.join(map(str, values['commops_offsets']))}"


def _judged(values: dict[str, Any]) -> Iterator[str]:
    yield f"{_ms(values['elapsed_ns'])} ms, the longest of {counted(values['ranks_reported'], 'rank')}"
    if values["mean_ns"] is None:
        yield "no opinion yet: the window holds too few iterations"
        return
    said = "irregular" if values["is_irregular"] else "regular"
    yield f"mean of the window {_ms(values['mean_ns'])} ms, limit {_ms(values['limit_ns'])} ms"
    yield f"{values['times_mean']:.3f} times the mean: {said}"


def _path(values: dict[str, Any]) -> Iterator[str]:
    if not values:
        return
    read = values["read_back"]
    yield f"{_ms(values['excess_ns'])} ms longer than the mean"
    batches = counted(read["batches"], "batch", "batches")
    yield f"read back from commops: {batches} of {counted(len(read['ranks']), 'rank')}"
    for lane in values["lanes"][:_LANES_SHOWN]:
        text = f"{lane['excess_ns'] / 1e6:+9.3f} ms  {lane['lane']}"
        if "took_ns" in lane:
            text += f" ({lane['operator']}: {_ms(lane['took_ns'])}, usual {_ms(lane['usual_ns'])})"
        yield text


def _cause(values: dict[str, Any]) -> Iterator[str]:
    for cause in values["causes"]:
        yield f"{cause['kind']}, explains {_ms(cause['explained_ns'])} ms"
        yield from map(_suspect, cause["suspects"])
    if not values["causes"]:
        yield "nothing"


def _verdict(values: dict[str, Any]) -> Iterator[str]:
    if not values:
        return
    verdict = values["verdict"]
    yield _message(values)
    where = f"{verdict['kind']} in iterations {_span(verdict['iterations'])}"
    yield f"revision {verdict['revision']}, {verdict['event']}: {where}"
    yield from map(_suspect, verdict["suspects"])
    yield from textwrap.wrap(verdict["evidence"], _WIDTH - len(_INDENT) - 2)


def _suspect(suspect: dict[str, Any]) -> str:
    from irregulars.sinks.alerts import percent

    ranks = ", ".join(map(str, suspect["ranks"]))
    return f"  {percent(suspect['probability']):>4}  {suspect['device']} of rank {ranks}"


def _alert(values: dict[str, Any]) -> Iterator[str]:
    if values:
        yield _message(values)
        yield f"of revision {values['revision']}, {values['event']}:"
        yield from textwrap.wrap(values["summary"], _WIDTH - len(_INDENT) - 2)


_LINES: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "rows": _rows, "batch": _batch, "closed": _closed, "evidence": _evidence, "judged": _judged, "path": _path,
    "cause": _cause, "verdict": _verdict, "alert": _alert,
}  # fmt: skip


def _message(values: dict[str, Any]) -> str:
    return f"{values['topic']}, key {values['key']}, offset {values['offset']}, {values['message_bytes']:,} bytes"


def _span(numbers: list[int]) -> str:
    if not numbers:
        return "not known"
    first, last = numbers[0], numbers[1] - 1
    return str(first) if first == last else f"{first} to {last}"


def _ms(elapsed_ns: float | None) -> str:
    return "?" if elapsed_ns is None else f"{elapsed_ns / 1e6:.3f}"


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
