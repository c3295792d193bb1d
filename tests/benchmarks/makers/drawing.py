"""The jobs of the makers: drawn by seed and kept, or recorded."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests.benchmarks.independent.closed_form.suites import make as make_closed_form
from tests.benchmarks.independent.event_level.jobs import make as make_event_level
from tests.benchmarks.independent.event_level.scenario import Draw
from tests.benchmarks.makers.labels import Json
from tests.benchmarks.makers.simulated import write_simulated

ROOT: Final = Path(__file__).resolve().parents[3]
_RECORDINGS: Final = ROOT / "tests" / "recordings"
_SUITES: Final = (
    "tidy", "untidy", "ddp", "untidy", "dims", "tidy", "ddp", "untidy", "tidy", "large", "ddp", "dims",
)  # fmt: skip


def _write_closed_form(seed: int, number: int, directory: Path) -> None:
    make_closed_form(_SUITES[number % len(_SUITES)], seed, number, directory)


def _write_event_level(seed: int, number: int, directory: Path) -> None:
    make_event_level(Draw(seed, number), directory)


_DRAWN: Final[Mapping[str, tuple[Callable[[int, int, Path], None], Sequence[str]]]] = {
    "simulator": (write_simulated, ("producers/simulator", "tests/benchmarks/makers/places.py", __file__,
                                    "tests/benchmarks/makers/simulated.py")),
    "closed_form": (_write_closed_form, ("tests/benchmarks/independent/closed_form", __file__)),
    "event_level": (_write_event_level, ("tests/benchmarks/independent/event_level", __file__)),
}  # fmt: skip
"""What draws a maker's jobs, and the sources that decide what is drawn."""

RECORDINGS: Final = "recordings"
BLIND: Final = "blind"
MAKERS: Final = (*_DRAWN, RECORDINGS)


@dataclass(frozen=True, slots=True)
class Job:
    """One labelled job, drawn already or not."""

    maker: str
    name: str
    directory: Path
    seed: int = 0
    number: int = 0

    def label(self) -> Json:
        return json.loads((self.directory / "label.json").read_text(encoding="utf-8"))


def drawn_jobs(maker: str, seed: int, count: int, folder: Path) -> list[Job]:
    """Return the first jobs of a seed; job N of a seed is the same whatever else is drawn.

    Half as many of `event_level`: drawing one takes several times what judging it does.
    """
    count = count // 2 if maker == "event_level" else count
    own = folder / f"{maker}-{_fingerprint(maker)}"
    return [Job(maker, f"{maker}-{seed}-{n}", own / f"{seed}-{n}", seed, n) for n in range(count)]


def recorded_jobs(traces: Path) -> list[Job]:
    """Return the committed recordings and, where there is such a folder, its labelled traces and blind cases."""
    found: dict[str, Job] = {}
    for maker, pattern, root in (
        (RECORDINGS, "bench/*", _RECORDINGS), (RECORDINGS, "*", _RECORDINGS), (RECORDINGS, "*", traces),
        (BLIND, "blind-*/*", traces),
    ):  # fmt: skip
        for path in sorted(root.glob(f"{pattern}/label.json")):
            found.setdefault(path.parent.name, Job(maker, path.parent.name, path.parent))
    return list(found.values())


def draw(job: Job) -> None:
    """Write a job's trace directory, unless it was drawn before; whole or not at all."""
    if job.maker not in _DRAWN or (job.directory / "label.json").exists():
        return
    part = job.directory.with_name(f"{job.directory.name}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    _DRAWN[job.maker][0](job.seed, job.number, part)
    try:
        part.rename(job.directory)
    except OSError:  # another run has drawn it meanwhile
        shutil.rmtree(part)
        if not (job.directory / "label.json").exists():
            raise


@cache
def _fingerprint(maker: str) -> str:
    """Return a digest of the sources that decide what is drawn: jobs of other sources are others."""
    digest = hashlib.sha256()
    for path in _sources(_DRAWN[maker][1]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


def _sources(names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        path = ROOT / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else (path,)
