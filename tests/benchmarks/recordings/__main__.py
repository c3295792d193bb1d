"""Score what `irregulars analyze` finds in recordings of real training jobs with known faults.

    python -m tests.benchmarks.recordings                    # the committed ones: make bench-recordings
    python -m tests.benchmarks.recordings --json --only slow_nic slow_link

Status 0: it ran, whatever was found; 2: the call is wrong, or a recording is unreadable.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from irregulars.errors import IrregularsError
from tests.benchmarks.recordings.judging import judge_all
from tests.benchmarks.recordings.report import write_report

BENCH: Final = Path(__file__).resolve().parents[2] / "recordings" / "bench"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = _parser().parse_args(arguments)
    try:
        rows = judge_all(options.directory, options.only, options.without)
    except (IrregularsError, OSError) as error:
        print(f"recordings: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(json.dumps(rows, indent=1) if options.json else write_report(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.recordings", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--directory", type=Path, default=BENCH, help="of recordings; default: the committed ones")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these recordings, or kinds")
    parser.add_argument("--without", nargs="+", default=[], choices=("bandwidth", "iterations", "commops"),
                        help="leave files aside, as analyze --without does")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON list on standard output")
    return parser


if __name__ == "__main__":
    sys.exit(main())
