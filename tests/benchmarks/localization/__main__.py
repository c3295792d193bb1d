"""Runs the suite and writes its report.

    python -m tests.benchmarks.localization --split test --processes 2
    python -m tests.benchmarks.localization --quick
    python -m tests.benchmarks.localization --cases development/512/13 development/512/8

Progress goes to standard error; `report.md` and `report.json` go to `--out`. Ctrl-C ends it with what is done so far.
Not a test: nothing fails because a figure is low.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.localization.blameless import draw_blameless, draw_further
from tests.benchmarks.localization.cases import KINDS, SEEDS, SIZES, SPLITS, choose_quick, draw_cases
from tests.benchmarks.localization.processes import AnyCase, Job, run_all
from tests.benchmarks.localization.report import said, write_report

_PARTS: Final = ("grid", "further", "blameless")
_SORTED: Final = ("cases", "further", "blameless")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=SPLITS, default="test", help="default: test")
    parser.add_argument("--quick", action="store_true", help="a stratified sample at 512 GPUs, some 3 minutes")
    parser.add_argument("--ranks", type=int, nargs="+", choices=SIZES, default=list(SIZES), help="only these sizes")
    parser.add_argument("--only", nargs="+", choices=KINDS, help="only these kinds of faults")
    parser.add_argument("--cases", nargs="+", help="only these cases, by the names that the report gives")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="only these parts of the suite")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one for each core")
    parser.add_argument("--delta", type=float, default=1.1, help="δ of the figures; default 1.1")
    parser.add_argument("--out", type=Path, default=Path("build/localization"), help="default: build/localization")
    options = parser.parse_args()
    jobs = choose_jobs(options)
    if not jobs:
        print("no case is chosen; see --help", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    rows: list[tuple[str, dict[str, Any]]] = []
    is_complete = True
    try:
        for row in run_all(jobs, options.processes):
            rows.append(row)
            _tell(row, len(rows), len(jobs), time.monotonic() - started_s)
    except KeyboardInterrupt:
        is_complete = False
        print("stopped; writing what is done", file=sys.stderr)
    found = _gathered(rows, options) | {"is_complete": is_complete, "took_s": time.monotonic() - started_s}
    (options.out / "report.json").write_text(json.dumps(found, indent=1, default=list) + "\n", encoding="utf-8")
    (options.out / "report.md").write_text(write_report(found), encoding="utf-8")
    print(f"{options.out / 'report.md'}", file=sys.stderr)
    return 0 if is_complete else 130


def choose_jobs(options: argparse.Namespace) -> list[Job]:
    """Return the cases that are run, with the δ; those that share a healthy run stand together."""
    split, parts = options.split, options.parts
    if options.cases:
        return [(case, options.delta) for case in _named(options.cases)]
    cases = draw_cases(split, tuple(options.ranks))
    cases = choose_quick(cases) if options.quick else cases
    cases = [case for case in cases if not options.only or case.kind in options.only]
    chosen: list[AnyCase] = sorted(cases, key=lambda case: (case.base, case.number)) if "grid" in parts else []
    if "further" in parts and not options.only:
        chosen += draw_further(split, 2 if options.quick else 8)
    if "blameless" in parts and not options.only:
        chosen += draw_blameless(split, 1 if options.quick else 4)
    return [(case, options.delta) for case in chosen]


def _named(names: Sequence[str]) -> list[AnyCase]:
    known: dict[str, AnyCase] = {}
    for split in SPLITS:
        for case in (*draw_cases(split), *draw_further(split), *draw_blameless(split)):
            known[case.name] = case
    for name in names:
        if name not in known:
            raise SystemExit(f"--cases must name cases such as {next(iter(known))}; got {name!r}")
    return [known[name] for name in names]


def _tell(row: tuple[str, dict[str, Any]], done: int, total: int, elapsed_s: float) -> None:
    sort, one = row
    left_s = elapsed_s / done * (total - done)
    if sort in ("cases", "further"):
        mark = "right" if one["is_top1"] else f"WRONG: {said(one)}"
    else:
        mark = f"{one['devices_accused']} devices accused" + (f": {said(one)}" if one["devices_accused"] else "")
    print(f"{done}/{total} {elapsed_s:.0f} s, {left_s:.0f} s left  {one['case']} {one['kind']}  {mark}",
          file=sys.stderr, flush=True)  # fmt: skip


def _gathered(rows: Sequence[tuple[str, dict[str, Any]]], options: argparse.Namespace) -> dict[str, Any]:
    sorts: dict[str, list[dict[str, Any]]] = {name: [] for name in _SORTED}
    for sort, row in rows:
        sorts[sort].append(row)
    for name in _SORTED:
        sorts[name].sort(key=lambda row: (row["ranks"], row["case"]))
    return {
        "command": shlex.join(["python -m tests.benchmarks.localization", *sys.argv[1:]]).replace("'", ""),
        "split": options.split, "first_seed": SEEDS[options.split], "delta": options.delta,
        "machine": _machine(), "processes": options.processes, "commit": _commit(),
        **sorts,
    }  # fmt: skip


def _machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.machine()}"
    return f"{cores}, Python {platform.python_version()}"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
