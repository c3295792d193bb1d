"""Run detectors over jobs, recorded or stored; count right and wrong alarms; print them as text or SVG."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from irregulars.detectors.job.topology import topology_of
from irregulars.detectors.plugins.loading import Comparable, installed_detectors, load_detector
from irregulars.detectors.plugins.protocol import NUMBERS, Level, MakeDetector
from irregulars.errors import InputError, PluginError
from irregulars.infra.runs.analysis import judge_whole, take_rank
from irregulars.infra.runs.scoring import Counts, Fault, FrameTap, JobFrames, TaughtFrame, count_job, replay
from irregulars.messages.announcements import Announcement, Communicator
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from irregulars.settings import JudgeSettings
from irregulars.streams.local_pipeline import LocalPipeline

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


@dataclass(slots=True)
class Result:
    """Counts and costs of one detector over all jobs.

    `took_s`, `rows`: Time of one core to score and learn, and rows that took it.
    """

    detector: str
    counts: Counts = field(default_factory=Counts)
    took_s: float = 0.0
    rows: int = 0
    by_job: dict[str, Counts] = field(default_factory=dict)

    @property
    def us_per_row(self) -> float:
        """Microseconds of one core, to score and to learn a row."""
        return self.took_s * 1e6 / self.rows if self.rows else math.nan

    def missed(self) -> list[str]:
        """Return the jobs of which a fault was not found."""
        return [name for name, one in self.by_job.items() if one.found < one.faults]

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it; unknown is null."""
        counts = self.counts
        ratios = {
            "precision": counts.precision,
            "recall": counts.recall,
            "delay_iterations": counts.delay,
            "false_alarms_per_1000_iterations": counts.false_per_1000,
            "us_per_row": self.us_per_row,
        }
        return {
            "detector": self.detector,
            **{name: round(value, 4) if math.isfinite(value) else None for name, value in ratios.items()},
            "faults": counts.faults,
            "found": counts.found,
            "false_alarms": counts.false_alarms,
            "iterations": counts.iterations,
            "rows": self.rows,
            "jobs": [
                {"job": name, "faults": one.faults, "found": one.found, "false_alarms": one.false_alarms}
                for name, one in self.by_job.items()
            ],
        }


def shipped_detectors(level: Level) -> dict[str, MakeDetector]:
    """Return the detectors of a level that ship and judge times, by name: labels say nothing of losses and norms."""
    ours = [name for name, target in installed_detectors().items() if target.startswith("irregulars.")]
    made = {name: load_detector(name) for name in ours}
    return {
        name: make for name, make in made.items() if make().level == level and not set(make().reads) & set(NUMBERS)
    }


def backtest(detectors: Mapping[str, MakeDetector], jobs: Iterable[JobFrames]) -> list[Result]:
    """Run detectors over jobs, one job in memory at a time; scores are on the scale on which 1 is strange.

    Raises `PluginError` if a detector raises, or does not give one score per row.
    """
    results = {name: Result(name) for name in detectors}
    for job in jobs:
        for name, make in detectors.items():
            try:
                scored, took_s = replay(job, lambda make=make: Comparable(make()))  # type: ignore[misc]
            except PluginError as error:
                raise PluginError(f"detector {name}: {error} ({job.name})") from error
            result = results[name]
            counts = count_job(scored, job.faults)
            result.counts += counts
            # Names need not be the only ones: two folders may hold a recording of one name each.
            result.by_job[job.name] = result.by_job.get(job.name, Counts()) + counts
            result.took_s += took_s
            result.rows += job.rows
    return list(results.values())


HEAD: Final = ("detector", "precision", "recall", "found", "delay", "false/1,000", "µs/row")
_WIDTH: Final = 720
_ROW: Final = 46
_NAMES: Final = 220
_COLOURS: Final = {"precision": "#2563eb", "recall": "#f59e0b"}


def cells(result: Result) -> tuple[str, ...]:
    """Return a result as the texts of its row; ``-``: no data to compute it from."""
    counts = result.counts
    return (
        result.detector,
        _number(counts.precision, ".2f"),
        _number(counts.recall, ".2f"),
        f"{counts.found} of {counts.faults}",
        _number(counts.delay, ".0f"),
        _number(counts.false_per_1000, ".1f"),
        _number(result.us_per_row, ".1f"),
    )


def text_table(results: Sequence[Result]) -> str:
    """Return a table of 80 columns: a name that is too long stands on a line of its own."""
    rows = [HEAD, *(cells(one) for one in results)]
    sizes = [max(len(row[column]) for row in rows) for column in range(1, len(HEAD))]
    most = 80 - sum(sizes) - 2 * len(sizes)
    first = min(max(len(row[0]) for row in rows), most)
    lines = []
    for name, *values in rows:
        right = "".join(f"  {value:>{size}}" for value, size in zip(values, sizes, strict=True))
        lines += [name + "\n" + " " * first + right if len(name) > first else f"{name:<{first}}{right}"]
    return "\n".join(lines)


def draw(results: Sequence[Result], title: str) -> str:
    """Return a picture of precision and recall, a pair of bars for each detector, with the false alarms behind."""
    height = 64 + _ROW * len(results)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, colour) in enumerate(_COLOURS.items()):
        x = _NAMES + number * 110
        parts.append(f'<rect x="{x}" y="32" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="43">{name}</text>')
    for row, one in enumerate(results):
        top = 54 + _ROW * row
        shown = one.detector if len(one.detector) <= 30 else one.detector[:29] + "…"
        parts.append(f'<text x="12" y="{top + 20}">{escape(shown)}<title>{escape(one.detector)}</title></text>')
        for number, (name, colour) in enumerate(_COLOURS.items()):
            value, y = getattr(one.counts, name), top + 4 + 16 * number
            length = 0 if math.isnan(value) else round(300 * value)
            parts.append(f'<rect x="{_NAMES}" y="{y}" width="{length}" height="14" fill="{colour}"/>')
            parts.append(f'<text x="{_NAMES + length + 6}" y="{y + 12}">{_number(value, ".2f")}</text>')
        false = _number(one.counts.false_per_1000, ".1f")
        parts.append(f'<text x="{_NAMES + 350}" y="{top + 20}">{false} false/1,000</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


LABEL = "label.json"


def read_recording(directory: Path, level: Level, settings: JudgeSettings) -> JobFrames:
    """Read a recording, and make its frames with the monitors.

    `settings`: δ, window and the like, by which iterations are irregular: detectors of ranks are not taught those.
    Raises `InputError` if the recording can't be read, or has no usable label.
    """
    faults = read_faults(directory)
    trace = number_iterations(read_trace(directory)).trace
    # No detectors of the settings: the tap below takes the place of one, and keeps its frames.
    settings = replace(settings, operator_detectors=(), rank_detectors=(), fills_columns=False)
    if level == "rank":
        tap = FrameTap("rank")
        judge_whole(LocalPipeline(trace.job, replace(settings, rank_detectors=(lambda: tap,))), trace)
        return JobFrames(directory.name, faults, (tap.frames,), (None,))
    taps = {one.rank: _operator_tap(trace, one, settings) for one in trace.announcements}
    return JobFrames(directory.name, faults, tuple(tap.frames for tap in taps.values()), tuple(taps))


def find_recordings(paths: list[Path]) -> list[Path]:
    """Return trace directories: those named, and those below folders that are none.

    Raises `InputError` if there is none.
    """
    found: list[Path] = []
    for path in paths:
        if not os.path.isdir(path):
            raise InputError(f"recording must be a folder; got none ({path})")
        own = [path] if (path / "job.json").exists() else sorted(one.parent for one in path.rglob("job.json"))
        if not own:
            raise InputError(f"folder must hold recordings, each with a job.json; got none ({path})")
        found += own
    return list(dict.fromkeys(found))


def read_faults(directory: Path) -> tuple[Fault, ...]:
    """Read the true faults of a job; empty where no device is at fault.

    Raises `InputError` if there is no label, or it can't be used.
    """
    path = directory / LABEL
    try:
        label = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"recording must have its truth in {LABEL}; got none ({directory})") from error
    except ValueError as error:
        raise InputError(f"{LABEL} must be JSON; got {error} ({path})") from error
    try:
        labels = [label, *label.get("faults", [])[1:]]  # a simulated job may have several faults
        faults = []
        for one in labels:
            if one["kind"] != "none" and one["ranks"]:
                spans = one.get("spans") or [one["iterations"]]
                ranks = tuple(int(rank) for rank in one["ranks"])
                faults.append(Fault(ranks, tuple((int(first), int(past)) for first, past in spans)))
        return tuple(faults)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{LABEL} must be an object with kind, ranks and iterations; got {type(error).__name__}: {error} ({path})"
        ) from error


def _operator_tap(trace: Trace, announcement: Announcement, settings: JudgeSettings) -> FrameTap:
    tap = FrameTap("operator")
    pipeline = LocalPipeline(trace.job, replace(settings, operator_detectors=(lambda: tap,)))
    take_rank(pipeline, trace, announcement)
    pipeline.reduce()
    return tap


_ATTEMPT: Final = "SELECT max(attempt) FROM iterations WHERE job = {job:String}"
_ROWS: Final = f"""
    SELECT rank, iteration, elapsed_ns, work_ns, operators, is_irregular
    FROM rank_iterations AS own FINAL
    INNER JOIN (
        SELECT iteration, is_irregular FROM iterations FINAL
        WHERE job = {{job:String}} AND attempt = ({_ATTEMPT}) AND phase IN ('train', 'unknown', '')
    ) AS judged USING (iteration)
    WHERE job = {{job:String}} AND attempt = ({_ATTEMPT})
    ORDER BY iteration, rank
"""
_FAULTS: Final = f"""
    SELECT ranks, first_iteration, past_last_iteration
    FROM suspects FINAL
    INNER JOIN (
        SELECT verdict_id, revision, first_iteration, past_last_iteration FROM verdicts FINAL
        WHERE job = {{job:String}} AND attempt = ({_ATTEMPT})
    ) AS newest USING (verdict_id, revision)
    WHERE job = {{job:String}} AND position = 0
"""
_PLACES: Final = f"""
    SELECT rank, communicators, communicator_kinds FROM jobs FINAL
    WHERE job = {{job:String}} AND attempt = ({_ATTEMPT}) ORDER BY rank
"""


def read_stored_job(client: Client, job: str) -> JobFrames:
    """Read the newest attempt of a job: frames of level ``rank``, and its verdicts as truth.

    The database has no operators of regular iterations, so detectors of operators have no frames there; and no
    ``communication_ns`` and ``tokens``, which are NaN. The truth is the judgement of Irregulars: first suspects of
    verdicts in their iterations. Where it was wrong, a detector that is right counts as wrong. Raises `InputError` if
    there is no such job.
    """
    values = {"job": job}
    rows = client.query(_ROWS, parameters=values).result_rows
    if not rows:
        raise InputError(f"job must have judged iterations in the database; got none of {job!r}")
    faults = tuple(
        Fault(tuple(ranks), ((int(first), int(past)),))
        for ranks, first, past in client.query(_FAULTS, parameters=values).result_rows
    )
    stages = topology_of(_announcements(job, client.query(_PLACES, parameters=values).result_rows), {}).stages
    frames = []
    for _, group in groupby(rows, key=lambda row: row[1]):
        own = list(group)
        rank, iteration, elapsed_ns, work_ns, operators, _ = zip(*own, strict=True)
        unknown = np.full(len(own), np.nan)
        frame = {
            "rank": np.array(rank, dtype=np.int64),
            "iteration": np.array(iteration, dtype=np.int64),
            "elapsed_ns": np.array(elapsed_ns, dtype=np.float64),
            "work_ns": np.array(work_ns, dtype=np.float64),
            "operators": np.array(operators, dtype=np.float64),
            # Columns that the database does not have: detectors must cope with NaN.
            **dict.fromkeys(("communication_ns", "tokens", *NUMBERS), unknown),
        }
        frame["stage"] = stages(frame["rank"])
        frames.append(TaughtFrame(frame, is_taught=not own[0][5]))
    return JobFrames(job, faults, (frames,), (None,))


def _announcements(job: str, rows: Sequence[Sequence[Any]]) -> list[Announcement]:
    """Make announcements again: the members of a communicator are the rows that name it."""
    members: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    for rank, names, own_kinds in rows:
        for name, kind in zip(names, own_kinds, strict=True):
            members.setdefault(name, []).append(int(rank))
            kinds[name] = kind
    found = []
    for rank, names, _ in rows:
        own = tuple(Communicator(name, kinds[name], members[name]) for name in names)
        one = Announcement(
            job=job, attempt=0, rank=int(rank), world_size=len(rows), logged_ranks=len(rows), communicators=own
        )
        found.append(one)
    return found
