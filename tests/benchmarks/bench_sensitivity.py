"""Does a figure hang on one threshold of the judgement? Each is moved by about a quarter, up and down.

    python -m tests.benchmarks.bench_sensitivity [DIRECTORY]
    make bench-sensitivity OPTIONS='--only blame verdicts'

Judges the labelled recordings of a directory (default: those of the project) with all thresholds as they are, and
then with each one moved alone. Prints a Markdown table: how many faults were named exactly, how many healthy jobs had
somebody accused, and which recordings changed. Progress goes to standard error; Ctrl-C keeps the rows printed so far.
Not a test: nothing fails because a figure is low.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from irregulars.infra.runs.analysis import analyze
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from tests.benchmarks.recordings.judging import label_of, recordings_in
from tests.benchmarks.recordings.scoring import score
from tests.room_thresholds import Room, moved, moved_value, rooms

RECORDINGS: Final = Path(__file__).resolve().parents[1] / "recordings" / "bench"


class Move(NamedTuple):
    """A threshold of a room, and the value that it is moved to."""

    room: Room
    name: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.room.name}.{self.name}"


class Case(NamedTuple):
    """A recording, read, and its truth."""

    name: str
    trace: Trace
    label: dict[str, Any]


def moves(only: Sequence[str] = ()) -> list[Move]:
    """Return every threshold of these rooms (default: of all) twice: about a quarter down, and up; counts by 1."""
    return [
        Move(room, one.name, one.value, moved_value(one.value, way))
        for room in rooms()
        if not only or room.name in only
        for one in room.thresholds
        if isinstance(one.value, int | float) and not isinstance(one.value, bool)
        for way in (-1, 1)
    ]


def outcomes(cases: Sequence[Case]) -> dict[str, str]:
    """Judge all recordings; return the outcome of each."""
    return {case.name: score(analyze(case.trace).to_json()["verdicts"], case.label).outcome for case in cases}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    cases = [
        Case(p.name, number_iterations(read_trace(p)).trace, label_of(p)) for p in recordings_in(options.directory)
    ]
    base, planned = outcomes(cases), moves(options.only or ())
    print(f"{len(cases)} recordings of {options.directory.name}, {os.cpu_count()} cores: {_told(cases, base)}\n")
    print("| threshold | value | moved to | faults named | healthy accused | changed |\n|---|---|---|---|---|---|")
    begun = time.monotonic()
    try:
        for number, move in enumerate(planned, start=1):
            _print_moved(cases, base, move)
            print(f"{number} of {len(planned)}, {time.monotonic() - begun:.0f} s", end="\r", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 0


def _print_moved(cases: Sequence[Case], base: dict[str, str], move: Move) -> None:
    with moved(move.room.values, move.name, move.after):
        found = outcomes(cases)
    changed = [f"{name}: {base[name]} to {found[name]}" for name in base if base[name] != found[name]]
    named, accused = _counts(cases, found)
    print(f"| `{move}` | {move.before:g} | {move.after:g} | {named} | {accused} | {'; '.join(changed)} |", flush=True)


def _counts(cases: Sequence[Case], found: dict[str, str]) -> tuple[int, int]:
    """Faults that were named exactly, and healthy jobs in which somebody was accused."""
    faulty = [case.name for case in cases if case.label["kind"] != "none"]
    healthy = [case.name for case in cases if case.label["kind"] == "none"]
    return sum(found[name] == "right" for name in faulty), sum(found[name] != "right" for name in healthy)


def _told(cases: Sequence[Case], found: dict[str, str]) -> str:
    faulty = sum(case.label["kind"] != "none" for case in cases)
    named, accused = _counts(cases, found)
    return f"{named} of {faulty} faults named, {accused} of {len(cases) - faulty} healthy jobs with somebody accused"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "directory", nargs="?", type=Path, default=RECORDINGS, help="default: the project's recordings"
    )
    names = [room.name for room in rooms()]
    parser.add_argument("--only", nargs="+", choices=names, metavar="ROOM", help=f"of {', '.join(names)}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
