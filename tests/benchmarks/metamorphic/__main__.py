"""Judges every recording and simulated job under every change that must alter no verdict.

    python -m tests.benchmarks.metamorphic
    python -m tests.benchmarks.metamorphic --jobs gloo-slow-rank three-nic --changes round-1us evaluation
    python -m tests.benchmarks.metamorphic --jobs /somewhere/a/trace --streamed

Progress goes to standard error; a table of changes, and what changed, go to standard output; `--json FILE` keeps all.
Not a test: nothing fails because a verdict changed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.metamorphic.changes import CHANGES
from tests.benchmarks.metamorphic.check import RECORDINGS, Checked, run_all
from tests.benchmarks.metamorphic.jobs import JOBS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", help="recordings, simulated jobs or trace directories; default: all")
    parser.add_argument("--changes", nargs="+", choices=CHANGES, default=list(CHANGES), help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the changes; default 0")
    parser.add_argument("--streamed", action="store_true", help="hand changed jobs to the monitors batch by batch")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one for each core")
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    options = parser.parse_args()
    jobs = options.jobs or [
        *sorted(path.name for path in RECORDINGS.iterdir() if (path / "job.json").exists()),
        *JOBS,
    ]
    checked = []
    for one in run_all(jobs, options.changes, options.seed, options.streamed, options.processes):
        checked.append(one)
        changed = [outcome.name for outcome in one.outcomes if outcome.is_changed]
        said = f"CHANGED under {', '.join(changed)}" if changed else "unchanged"
        print(f"{len(checked)}/{len(jobs)} {one.job} {one.took_s:.0f} s: {said}", file=sys.stderr, flush=True)
    checked.sort(key=lambda one: jobs.index(one.job))
    print("\n".join([*_table(checked, options.changes), "", *_details(checked)]))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(one) for one in checked], indent=1) + "\n", encoding="utf-8")
    return 0


def _table(checked: Sequence[Checked], changes: Sequence[str]) -> Iterator[str]:
    yield "| change | what is different | jobs it applies to | jobs changed | verdicts gone | verdicts new |"
    yield "|---|---|---|---|---|---|"
    for name in changes:
        own = [outcome for one in checked for outcome in one.outcomes if outcome.name == name]
        figures = (
            sum(outcome.does_apply for outcome in own), sum(outcome.is_changed for outcome in own),
            sum(len(outcome.gone) for outcome in own), sum(len(outcome.new) for outcome in own),
        )  # fmt: skip
        yield f"| {name} | {CHANGES[name].about} | {' | '.join(map(str, figures))} |"
    unchanged = sum(not any(outcome.is_changed for outcome in one.outcomes) for one in checked)
    yield f"\n{unchanged} of {len(checked)} jobs keep all verdicts under all changes."


def _details(checked: Sequence[Checked]) -> Iterator[str]:
    for one in checked:
        yield f"{one.job}: {'; '.join(map(str, one.charges)) or 'nobody to blame'}"
        for outcome in one.outcomes:
            if outcome.is_changed:
                gone, new = ("; ".join(map(str, charges)) or "nothing" for charges in (outcome.gone, outcome.new))
                yield f"    {outcome.name}: {gone} -> {new}"


if __name__ == "__main__":
    sys.exit(main())
