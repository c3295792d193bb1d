"""What is found of injected flips, by place: ours beside the published rules, on the same runs.

    python -m tests.benchmarks.numerics.table DIRECTORY

`DIRECTORY` holds runs that ``python -m tests.benchmarks.numerics`` recorded, each with its label. A rule has seen a
flip if it raises an alarm in its step or one of the two after it. One in any step before it, or of a clean run, is a
false one. Ours has seen it if a verdict begins there or later, and named it if the first suspect is the rank; what
recurs before the reduction, within three audits. It was *idle* if it changed no bit in any of the three.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from irregulars.detectors.plugins.published_rules import RULES
from irregulars.dtypes import Column, Flags, Floats
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import AUDIT, PAUSE, PHASE_UNKNOWN, UNKNOWN, Batch
from irregulars.producers.trace.directory import Trace, read_trace
from tests.benchmarks.numerics.faults import BEFORE

OURS: Final = ("corruption", "loss_spike")
_WATCHED: Final = 3  # steps in which a rule of scalars may see a flip
_WARM_UP: Final = 10
_AUDITS: Final = 3


@dataclass
class Row:
    """What one rule made of all runs."""

    runs: Counter[str] = field(default_factory=Counter)  # by group of runs
    seen: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    false: int = 0
    clean: int = 0  # steps in which nothing was wrong


def groups_of(label: Mapping[str, Any]) -> list[str]:
    """Return the columns of the table to which a run counts."""
    if label["kind"] == "none":
        return []
    repeats = "recurring " if label.get("repeats") else ""
    is_idle = bool(repeats) and label["place"] in BEFORE and not any(label.get("audits_acted", [1])[:_AUDITS])
    harmful = [f"harmful {label['kind']}"] if label.get("is_harmful") else []
    return [f"{repeats}{label['place']}{', idle' if is_idle else ''}", *harmful]


def without_audits(trace: Trace) -> Trace:
    """Return a trace as of a job that is not audited."""

    def audited_not(batch: Batch) -> Batch:
        is_own = batch.columns[AUDIT[0]] == UNKNOWN
        return Batch(batch.header, {name: own[is_own] for name, own in batch.columns.items()})

    return replace(trace, iterations={rank: audited_not(batch) for rank, batch in trace.iterations.items()})


def are_whole(columns: Mapping[str, Column]) -> Flags:
    """Return for each row of ``iterations`` whether it is an iteration's own, not that of an audit or pause."""
    return np.asarray((columns[AUDIT[0]] == UNKNOWN) & (columns[PAUSE[0]] == UNKNOWN))


def series_of(trace: Trace) -> tuple[list[int], Floats, Floats, Floats]:
    """Return the steps of training, and of each the mean loss, and median norm and RMS, over ranks."""
    values: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for batch in trace.iterations.values():
        own = batch.columns
        is_step = np.isin(own["phase"], (0, PHASE_UNKNOWN)) & are_whole(own)
        names = ("loss", "grad_norm", "update_rms")
        for number, *row in zip(own["iteration"][is_step].tolist(), *(own[n][is_step].tolist() for n in names),
                                strict=True):  # fmt: skip
            values[number].append((row[0], row[1], row[2]))
    steps = sorted(values)
    columns = [np.array([[one[place] for one in values[step]] for step in steps]) for place in range(3)]
    with np.errstate(invalid="ignore"):
        return steps, columns[0].mean(axis=1), np.median(columns[1], axis=1), np.median(columns[2], axis=1)


_OURS_ROWS: Final[Mapping[str, Callable[[Trace], Trace]]] = {
    "Irregulars": lambda trace: trace, "Irregulars, without audits": without_audits,
}  # fmt: skip


def measure(folders: Sequence[Path]) -> dict[str, Row]:
    """Judge each run by each rule."""
    rows = {name: Row() for name in (*_OURS_ROWS, *RULES)}
    for folder in folders:
        label, trace = json.loads((folder / "label.json").read_text()), read_trace(folder)
        steps, loss, norm, rms = series_of(trace)
        begin = label["iteration"] if label["kind"] != "none" else steps[-1] + 1
        groups = groups_of(label)
        for name, row in rows.items():
            row.clean += sum(step < begin for step in steps[_WARM_UP:])
            row.runs.update(groups)
            if name in _OURS_ROWS:
                verdicts = analyze(_OURS_ROWS[name](trace)).verdicts
                _count_ours(row, [one for one in verdicts if one.kind in OURS], label, begin, groups)
                continue
            rule, at = RULES[name](), list[int]()
            for step, numbers in zip(steps, np.stack([loss, norm, rms], axis=1), strict=True):
                at += [step] if rule.score(numbers) >= 1 else []
                rule.learn(numbers)
            row.false += sum(step < begin for step in at)
            row.seen.update(groups if any(begin <= step < begin + _WATCHED for step in at) else [])
    return rows


def _count_ours(
    row: Row, verdicts: Sequence[Verdict], label: Mapping[str, Any], begin: int, groups: list[str]
) -> None:
    right = [one for one in verdicts if one.iterations[0] >= begin]
    row.false += len(verdicts) - len(right)
    row.seen.update(groups if right else [])
    until = math.inf
    if label.get("repeats") and label["place"] in BEFORE:
        until = begin + _AUDITS * label["setting"]["audit_every"]
    firsts = [one.suspects[0].rank for one in right if one.suspects and one.iterations[0] <= until]
    row.named.update(groups if firsts and firsts[0] == label["rank"] else [])


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Write the table in Markdown: seen / named of how many."""
    groups = sorted(rows["Irregulars"].runs)
    yield f"| {' | '.join(['rule', 'false, of clean steps', *groups])} |"
    yield "|---|---|" + "---|" * len(groups)
    for name, row in rows.items():
        cells = []
        for group in groups:
            named = f", {row.named[group]} named" if name in _OURS_ROWS else ""
            cells.append(f"{row.seen[group]}{named} of {row.runs[group]}")
        yield f"| {' | '.join([name, f'{row.false} of {row.clean}', *cells])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    folders = sorted(one.parent for one in parser.parse_args().directory.glob("*/label.json"))
    print("\n".join(table(measure(folders))))


if __name__ == "__main__":
    main()
