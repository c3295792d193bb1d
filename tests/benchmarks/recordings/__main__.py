"""Recordings of real training jobs with known faults: make them, and score what `irregulars analyze` says of them.

    python -m tests.benchmarks.recordings score                    # the committed ones: make bench-recordings
    python -m tests.benchmarks.recordings score --json --only slow_nic slow_link
    python -m tests.benchmarks.recordings list
    sudo python -m tests.benchmarks.recordings make --only ddp8-nic-send --out /tmp/mine
    sudo python -m tests.benchmarks.recordings make --all          # all anew: 25 minutes on two cores

`make` needs root on one Linux machine (network namespaces, tc, cgroups) and torch. All that it sets up is its own,
and gone when it ends, also by Ctrl-C. Status 0: it ran, whatever was found; 2: the call or the machine is unusable,
or a recording failed; 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from irregulars.errors import IrregularsError, ServiceUnavailable
from tests.benchmarks.recordings.plan import plan
from tests.benchmarks.recordings.recording import Recording

BENCH: Final = Path(__file__).resolve().parents[2] / "recordings" / "bench"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (IrregularsError, OSError) as error:
        print(f"recordings: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("recordings: stopped; what is done stays", file=sys.stderr)
        return 130
    return status


def _make(options: argparse.Namespace) -> int:
    from tests.benchmarks.recordings.making import build_hook, make, require_machine

    chosen = _chosen(options.only, options.missing, options.out)
    require_machine()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as after Ctrl-C: nothing is left
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts it in the background ignores it
    print(f"{len(chosen)} recordings into {options.out}, with the {build_hook()} hook", file=sys.stderr)
    started_s, failed = time.monotonic(), 0
    for done, recording in enumerate(chosen, 1):
        try:
            told = _told(recording, make(recording, options.out))
        except ServiceUnavailable as error:  # a busy machine fails one, and not those that follow
            failed, told = failed + 1, f"FAILED: {' '.join(str(error).split())}"
        took_s = time.monotonic() - started_s
        left_s = took_s / done * (len(chosen) - done)
        print(f"{done}/{len(chosen)} {took_s:.0f} s, {left_s:.0f} s left  {told}", file=sys.stderr, flush=True)
    return 2 if failed else 0


def _told(recording: Recording, label: dict[str, Any]) -> str:
    longer = "" if label["inflation"] is None else f", {label['inflation']:.2f} times {label['regular_ms']:.0f} ms"
    return f"{recording.name}  {label['kind']} {label['iterations']}{longer}{', hard' if label['hard'] else ''}"


def _chosen(names: Sequence[str], is_missing_alone: bool, out: Path) -> list[Recording]:
    known = {recording.name: recording for recording in plan()}
    for name in names:
        if name not in known:
            raise SystemExit(f"recordings: --only must name recordings such as {next(iter(known))}; got {name!r}")
    chosen = [known[name] for name in names] or list(known.values())
    return [one for one in chosen if not (is_missing_alone and (out / one.name / "label.json").exists())]


def _score(options: argparse.Namespace) -> int:
    from tests.benchmarks.recordings.judging import judge_all
    from tests.benchmarks.recordings.report import write_report

    rows = judge_all(options.directory, options.only, options.without)
    print(json.dumps(rows, indent=1) if options.json else write_report(rows))
    return 0


def _list(_: argparse.Namespace) -> int:
    for recording in plan():
        print(f"{recording.name:34} {recording.truth.kind:18} {recording.window!s:10} {recording.truth.injected}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.recordings", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    score = commands.add_parser("score", help="judge recordings and compare with their labels")
    score.add_argument("--directory", type=Path, default=BENCH, help="of recordings; default: the committed ones")
    score.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these recordings, or kinds")
    score.add_argument("--without", nargs="+", default=[], choices=("bandwidth", "iterations", "commops"),
                       help="leave files aside, as analyze --without does")  # fmt: skip
    score.add_argument("--json", action="store_true", help="one JSON list on standard output")
    score.set_defaults(run=_score)
    make = commands.add_parser("make", help="make recordings (root on Linux, with torch)")
    which = make.add_mutually_exclusive_group(required=True)
    which.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these; see list")
    which.add_argument("--all", action="store_true", help="all of the plan")
    which.add_argument("--missing", action="store_true", help="those that are not there yet")
    make.add_argument("--out", type=Path, default=BENCH, help="where to; default: the committed ones")
    make.set_defaults(run=_make)
    commands.add_parser("list", help="what the plan holds").set_defaults(run=_list)
    return parser


if __name__ == "__main__":
    sys.exit(main())
