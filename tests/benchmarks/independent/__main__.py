"""How often the culprit is named in jobs of two simulators whose makers never read the product.

    python -m tests.benchmarks.independent --seed 201
    python -m tests.benchmarks.independent --seed 201 --suites event_level --count 30 --keep build/independent

Draws the jobs of a seed, judges each with `irregulars analyze`, and prints a Markdown table and what came out wrong.
A seed that nobody has looked at is a first look; one that was looked at serves to find classes of error, never cases.

Right is a first verdict with a suspect of the label's kind and device, and of the label's ranks as far as they are
logged. Faults that the makers call hard (less than 8 % or twice the noise, or not to be told from another device's by
the log) have a column of their own. In healthy jobs each verdict with a suspect counts, a stage as well. The
calibration error compares the probability of each job's first suspect with how often such a suspect was right.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.localization.report import calibration_error, reliability

CLOSED_FORM: Final = ("tidy", "untidy", "ddp", "dims", "large")
EVENT_LEVEL: Final = "event_level"
SUITES: Final = (*CLOSED_FORM, EVENT_LEVEL)
ROOT: Final = Path(__file__).resolve().parents[3]

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What was said of one job."""

    suite: str
    name: str
    label: Json
    found: Json
    is_right: bool

    @property
    def is_healthy(self) -> bool:
        return self.label["kind"] is None

    @property
    def accused(self) -> list[Json]:
        """Verdicts that accuse somebody."""
        return [one for one in self.found["verdicts"] if one["suspects"]]

    @property
    def promised(self) -> float | None:
        """How sure the first accusation is; None: there is none."""
        return self.accused[0]["suspects"][0]["probability"] if self.accused else None

    def told(self) -> str:
        """Say in one line what is true and what was said."""
        truth = "nobody" if self.is_healthy else f"{self.label['kind']} {self.label['ranks'][:4]}"
        said = [
            f"{one['kind']} {[s['ranks'][:4] for s in one['suspects'][:1]]} {one['iterations']}"
            for one in self.found["verdicts"][:2]
        ]
        return f"* {self.name}: {truth} ({self.label['what']}); said {'; '.join(said) or 'nothing'}"


def draw(suite: str, seed: int, count: int, folder: Path) -> None:
    """Write the jobs of one suite."""
    package = "tests.benchmarks.independent." + ("event_level" if suite == EVENT_LEVEL else "closed_form")
    own = [] if suite == EVENT_LEVEL else ["--suite", suite]
    command = [sys.executable, "-m", package, *own, "--seed", str(seed), "--count", str(count), "--out", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def judge(suite: str, directory: Path) -> Outcome:
    """Ask `irregulars analyze`, and compare; where it fails it is wrong, whatever is true."""
    command = [sys.executable, "-P", "-m", "irregulars", "analyze", str(directory), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    label, job = (json.loads((directory / name).read_text()) for name in ("label.json", "job.json"))
    if done.returncode:
        print(f"{directory}: {done.stderr}", file=sys.stderr)
        return Outcome(suite, directory.name, label, {"verdicts": [], "iterations": 0}, is_right=False)
    found = json.loads(done.stdout)
    known = set(map(int, job.get("ranks", range(job["world_size"]))))
    return Outcome(suite, directory.name, label, found, is_right(label, found, known))


def is_right(label: Json, found: Json, known: set[int]) -> bool:
    """Whether the verdicts say what is true; of ranks of which the log says nothing nobody can know."""
    accusing = [one for one in found["verdicts"] if one["suspects"]]
    match label["kind"]:
        case None:
            return not accusing
        case "imbalance":
            return not accusing and any(one["kind"] == "imbalance" for one in found["verdicts"])
        case "hang":
            ranks = [set(one["suspects"][0]["ranks"]) for one in accusing if one["kind"] == "hang"]
            return bool(ranks) and ranks[0] <= set(label["ranks"])
    if not accusing or accusing[0]["kind"] != label["kind"]:
        return False
    first = accusing[0]["suspects"][0]
    return first["device"] == label["device"] and known & {*first["ranks"]} == known & {*label["ranks"]}


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Give the lines of a table by suite."""
    yield "| suite | faults | right | hard: right | healthy jobs | iterations | accusations | above note |"
    yield "|:--|--:|--:|--:|--:|--:|--:|--:|"
    for suite in dict.fromkeys(one.suite for one in outcomes):
        own = [one for one in outcomes if one.suite == suite]
        healthy = [one for one in own if one.is_healthy]
        count = Counter((bool(one.label["hard"]), one.is_right) for one in own if not one.is_healthy)
        plain, hard = count[False, True] + count[False, False], count[True, True] + count[True, False]
        accused = [verdict for one in healthy for verdict in one.accused]
        loud = sum(one.get("severity") != "note" for one in accused)
        iterations = sum(one.found["iterations"] for one in healthy)
        yield (
            f"| {suite} | {plain} | {count[False, True]} | {hard}: {count[True, True]} | {len(healthy)} "
            f"| {iterations} | {len(accused)} | {loud} |"
        )


def calibration(outcomes: Sequence[Outcome]) -> str:
    """Say by how much what was promised differs from what came true, hard faults left out."""
    own = [one for one in outcomes if one.promised is not None and not one.label["hard"]]
    bins = reliability([one.promised or 0.0 for one in own], [one.is_right for one in own])
    return f"Calibration error of {len(own)} first suspects: {calibration_error(bins):.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=12, help="jobs of each suite; twice as many of event_level")
    parser.add_argument("--suites", nargs="+", choices=SUITES, default=SUITES)
    parser.add_argument("--keep", type=Path, help="a folder in which the jobs stay")
    own = parser.parse_args(arguments)
    folder = own.keep or Path(tempfile.mkdtemp(prefix="independent-"))
    outcomes: list[Outcome] = []
    try:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            for suite in own.suites:
                draw(suite, own.seed, own.count * (1 + (suite == EVENT_LEVEL)), folder / suite)
                directories = sorted(one.parent for one in (folder / suite).glob("*/label.json"))
                outcomes += pool.map(judge, [suite] * len(directories), directories)
                print(f"{suite}: {len(directories)} jobs judged", file=sys.stderr, flush=True)
    finally:
        if own.keep is None:
            shutil.rmtree(folder)
    print(*table(outcomes), "", calibration(outcomes), "", sep="\n")
    print(*(one.told() for one in outcomes if not one.is_right and not one.label["hard"]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
