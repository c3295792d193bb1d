"""One table of all figures, beside what they must be and what was committed.

    make bench                                   # the quick set, some ten minutes
    make bench OPTIONS=--all                     # everything: two hours, 16 GiB
    make bench OPTIONS="--only worker alerts"    # some of it
    make bench OPTIONS="--only worker --write"   # and keep it: infra/docs/bench.json, and the pages made from it
    make bench OPTIONS="--kept --write"          # run nothing: keep what stands in build/bench/ already

Each benchmark is a process of its own, one after the other; Ctrl-C prints what is done so far. Logs and JSON of each
stay in ``build/bench/``. Figures that are ratios are held against the committed ones: one that is worse by a fifth is
named. Status 0, whatever they are: a busy machine is no fault of ours.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.table.comparing import (
    COMMITTED,
    against_committed,
    lines_of,
    machine_line,
    merged,
    read_committed,
)
from tests.benchmarks.table.figures import PROGRAMS, Program
from tests.benchmarks.table.machine import describe
from tests.benchmarks.table.running import Outcome, kept, run_all

ROOT: Final = Path(__file__).resolve().parents[3]


def chosen(names: Sequence[str] | None, is_all: bool) -> list[Program]:
    return [one for one in PROGRAMS if (one.name in names if names else is_all or one.is_quick)]


def write(outcomes: Sequence[Outcome], machine: dict[str, Any]) -> None:
    """Renew the committed figures and the pages that are made from them."""
    command = ["git", "describe", "--always", "--dirty=+"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    found = merged(read_committed(), outcomes, machine, commit or "unknown")
    COMMITTED.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "tests.infra.docs.made_parts", "figures", "sizes"], cwd=ROOT, check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="what takes long, too")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in PROGRAMS], metavar="NAME")
    parser.add_argument("--write", action="store_true", help="keep the figures in infra/docs")
    parser.add_argument("--kept", action="store_true", help="run nothing: take the JSON of earlier runs")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="logs and JSON of each benchmark")
    own = parser.parse_args(arguments)
    machine, outcomes = describe(), list[Outcome]()
    print(machine_line(machine), flush=True)
    try:
        programs = chosen(own.only, own.all or own.kept)
        for outcome in kept(programs, own.out) if own.kept else run_all(programs, own.out):
            outcomes.append(outcome)
    except KeyboardInterrupt:
        print("interrupted: what is done so far", file=sys.stderr)
    print(f"\n{against_committed(lines_of(outcomes, read_committed()))}")
    if own.write:
        write(outcomes, machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
