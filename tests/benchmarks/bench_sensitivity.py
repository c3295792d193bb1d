"""Does a figure hang on one constant of the judgement? Each is moved by a quarter, up and down.

    python -m tests.benchmarks.bench_sensitivity [DIRECTORY]
    make bench-sensitivity OPTIONS='--only what_if clear_spikes'

Judges the labelled recordings of a directory (default: those of the project) with all constants as they are, and then
with each one moved alone. Prints a Markdown table: how many faults were named exactly, how many healthy jobs had
somebody accused, and which recordings changed. Progress goes to standard error; Ctrl-C prints what is done so far.
Not a test: nothing fails because a figure is low.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from irregulars.infra.runs.analysis import analyze
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from tests.benchmarks.recordings.judging import label_of, recordings_in
from tests.benchmarks.recordings.scoring import score

RECORDINGS: Final = Path(__file__).resolve().parents[1] / "recordings" / "bench"
MODULES: Final = (
    "blame.causes", "blame.observation", "blame.standing_causes", "blame.starved_ranks", "blame.transfer_causes",
    "blame.what_if", "irregular.late_rank", "nics.peak_caps", "nics.steadiness", "verdicts.single_spikes",
    "verdicts.suspicions", "verdicts.tracker",
)  # fmt: skip
"""Modules of `detectors` whose constants were chosen, rather than computed."""

STEP: Final = 0.25
_NOT_CHOSEN: Final = frozenset({"MAD_TO_SIGMA", "NO_ORDINAL", "WHOLE", "_NOTHING"})  # formulas and marks


class Constant(NamedTuple):
    """A number of the judgement: of a module, or a field of a frozen dataclass there (else ``field`` is empty)."""

    module: str
    name: str
    field: str
    value: float

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" + (f".{self.field}" if self.field else "")

    def moved(self, way: int) -> float:
        """Return its value a quarter up or down; a share stays below 1, a count moves by 1 at least."""
        if isinstance(self.value, int):
            return max(self.value + way * max(round(STEP * self.value), 1), 1)
        up = min((1 + STEP) * self.value, (1 + self.value) / 2) if 0 < self.value < 1 else (1 + STEP) * self.value
        return up if way > 0 else (1 - STEP) * self.value


class Case(NamedTuple):
    """A recording, read, and its truth."""

    name: str
    trace: Trace
    label: dict[str, Any]


def constants(modules: Sequence[str]) -> list[Constant]:
    """Find the numbers that these modules of `detectors` define in capitals."""
    found = []
    for name in modules:
        module = importlib.import_module(f"irregulars.detectors.{name}")
        own = [one for one in getattr(module, "__annotations__", {}) if one not in _NOT_CHOSEN]
        for one in own:
            value = getattr(module, one, None)
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                found += [Constant(name, one, f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
            elif isinstance(value, int | float) and not isinstance(value, bool) and one.isupper():
                found.append(Constant(name, one, "", value))
    return found


def move(constant: Constant, value: float) -> None:
    """Set a constant wherever a module of the judgement has imported it."""
    before = getattr(importlib.import_module(f"irregulars.detectors.{constant.module}"), constant.name)
    after = dataclasses.replace(before, **{constant.field: value}) if constant.field else value
    for module in _judgement():
        if getattr(module, constant.name, None) is before:
            setattr(module, constant.name, after)


def _judgement() -> Iterator[ModuleType]:
    ours = ("irregulars.detectors.", "irregulars.streams.")
    return (module for name, module in list(sys.modules.items()) if name.startswith(ours))


def outcomes(cases: Sequence[Case]) -> dict[str, str]:
    """Judge all recordings; return the outcome of each."""
    return {case.name: score(analyze(case.trace).to_json()["verdicts"], case.label).outcome for case in cases}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    cases = [
        Case(p.name, number_iterations(read_trace(p)).trace, label_of(p)) for p in recordings_in(options.directory)
    ]
    base = outcomes(cases)
    moves = [(one, way) for one in constants(options.only or MODULES) for way in (-1, 1)]
    print(f"{len(cases)} recordings of {options.directory.name}, {os.cpu_count()} cores: {_told(cases, base)}\n")
    print("| constant | value | moved to | faults named | healthy accused | changed |\n|---|---|---|---|---|---|")
    begun = time.monotonic()
    try:
        for number, (constant, way) in enumerate(moves, start=1):
            _print_moved(cases, base, constant, constant.moved(way))
            print(f"{number} of {len(moves)}, {time.monotonic() - begun:.0f} s", end="\r", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 0


def _print_moved(cases: Sequence[Case], base: dict[str, str], constant: Constant, value: float) -> None:
    move(constant, value)
    try:
        found = outcomes(cases)
    finally:
        move(constant, constant.value)
    changed = [f"{name}: {base[name]} to {found[name]}" for name in base if base[name] != found[name]]
    named, accused = _counts(cases, found)
    print(
        f"| `{constant}` | {constant.value:g} | {value:g} | {named} | {accused} | {'; '.join(changed)} |", flush=True
    )


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
    parser.add_argument("--only", nargs="+", choices=MODULES, metavar="MODULE", help=f"of {', '.join(MODULES)}")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
