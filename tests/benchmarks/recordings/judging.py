"""Has recordings judged, as `irregulars analyze` judges them, and scores what it says."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.iterations import number_iterations
from tests.benchmarks.recordings.scoring import score


def recordings_in(directory: Path, only: Collection[str] = ()) -> list[Path]:
    """Find trace directories with a label; `only` names some of them, or kinds.

    Raises
    ------
    InputError
        If there is none.
    """
    found = sorted(path.parent for path in directory.glob("*/label.json"))
    chosen = [path for path in found if not only or path.name in only or label_of(path)["kind"] in only]
    if not chosen:
        wanted = f" named {', '.join(only)}" if only else ""
        raise InputError(f"{directory}: must hold recordings{wanted}; got none")
    return chosen


def label_of(directory: Path) -> dict[str, Any]:
    """Read the truth."""
    label: dict[str, Any] = json.loads((directory / "label.json").read_text(encoding="utf-8"))
    return label


def judge(directory: Path, without: Collection[str] = ()) -> dict[str, Any]:
    """Judge one recording; return a row of the report."""
    label = label_of(directory)
    analysis = analyze(number_iterations(read_trace(directory, without=without)).trace).to_json()
    verdicts = analysis["verdicts"]
    return {
        "recording": directory.name, "label": label, **score(verdicts, label).to_json(),
        "irregular_iterations": analysis["irregular_iterations"], "verdicts": verdicts,
    }  # fmt: skip


def judge_all(directory: Path, only: Collection[str], without: Sequence[str]) -> list[dict[str, Any]]:
    """Judge all recordings below a directory, or some."""
    return [judge(path, without) for path in recordings_in(directory, only)]
