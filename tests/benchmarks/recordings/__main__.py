"""Has recordings judged, as `irregulars analyze` judges them, and scores what it says."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from irregulars.errors import InputError, IrregularsError
from irregulars.infra.runs.analysis import analyze
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.iterations import number_iterations
from tests.benchmarks.recordings.scoring import score


def recordings_in(directory: Path, only: Collection[str] = ()) -> list[Path]:
    """Find trace directories with a label; `only` names some of them, or kinds.

    Raises `InputError` if there is none.
    """
    found = sorted(path.parent for path in directory.glob("*/label.json"))
    chosen = [path for path in found if not only or path.name in only or label_of(path)["kind"] in only]
    if not chosen:
        wanted = f" named {', '.join(only)}" if only else ""
        raise InputError(f"{directory}: must hold recordings{wanted}; got none")
    return chosen


def label_of(directory: Path) -> dict[str, Any]:
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


Row = Mapping[str, Any]
Cells = Sequence[str]

KINDS: Final = (
    "slow_rank", "slow_rank host", "slow_nic", "slow_link", "slow_communicator", "slow_stage", "imbalance", "hang",
    "none",
)  # fmt: skip


def kind_of(row: Row) -> str:
    """Name the row of the first table: a slow host is not counted with a slow GPU."""
    label = row["label"]
    return f"{label['kind']} host" if label["device"] == "host" else str(label["kind"])


def write_report(rows: Sequence[Row]) -> str:
    faults = [row for row in rows if row["label"]["kind"] != "none"]
    healthy = [row for row in rows if row["label"]["kind"] == "none"]
    right = sum(row["outcome"] == "right" for row in faults)
    accused = sum(row["accusations"] > 0 for row in healthy)
    told = (
        f"{len(rows)} recordings. Of {len(faults)} with a fault {right} right: kind, device and set of ranks. "
        f"Of {len(healthy)} without, {accused} accuse somebody."
    )
    return "\n".join([told, "", *_by_kind(rows), "", *_by_recording(rows)])


def _by_kind(rows: Sequence[Row]) -> list[str]:
    lines = []
    for kind in KINDS:
        own = [row for row in rows if kind_of(row) == kind]
        if own:
            lines.append([kind, str(len(own)), *(str(_count(own, name)) for name in ("right", "wrong", "missed")),
                          _hard(own), _overlap(own), str(sum(row["accusations"] for row in own))])  # fmt: skip
    head = ["kind", "recordings", "right", "wrong", "missed", "hard: right", "overlap where right", "accusations"]
    return table(head, lines)


def _count(rows: Iterable[Row], outcome: str) -> int:
    return sum(row["outcome"] == outcome for row in rows)


def _hard(rows: Sequence[Row]) -> str:
    hard = [row for row in rows if row["label"]["hard"]]
    return f"{_count(hard, 'right')} of {len(hard)}" if hard else ""


def _overlap(rows: Sequence[Row]) -> str:
    values = [row["overlap"] for row in rows if row["outcome"] == "right" and row["overlap"] is not None]
    return f"{sum(values) / len(values):.0%}" if values else ""


def _by_recording(rows: Sequence[Row]) -> list[str]:
    order = sorted(rows, key=lambda row: (KINDS.index(kind_of(row)), row["recording"]))
    head = ["recording", "truth", "longer", "first accusation", "result", "overlap"]
    return table(head, [_cells(row) for row in order])


def _cells(row: Row) -> list[str]:
    label = row["label"]
    longer = "" if label["inflation"] is None else f"×{label['inflation']:.2f}"
    shared = "" if row["overlap"] is None else f"{row['overlap']:.0%}"
    direction = {True: "", False: " (other direction)", None: ""}[row["is_direction"]]
    return [row["recording"], truth_text(label), longer + (" hard" if label["hard"] else ""), said_text(row),
            row["outcome"] + direction, shared]  # fmt: skip


def truth_text(label: Row) -> str:
    """Name what is true on a few words."""
    if label["kind"] == "none":
        return "none"
    first, past = label["iterations"]
    return f"{label['kind']} {_device_text(label)} [{first}, {past})"


def _device_text(label: Row) -> str:
    match label["device"]:
        case None:
            return label["switch"] or "nobody"
        case "switch" | "host":
            return str(label[label["device"]])
    return f"{label['device']} {'-'.join(map(str, label['ranks']))}"


def said_text(row: Row) -> str:
    """Name the first accusation, and how many follow; where there is none, what else was said."""
    naming = [verdict for verdict in row["verdicts"] if verdict["suspects"]]
    if not naming:
        return ", ".join(f"{verdict['kind']}, nobody" for verdict in row["verdicts"][:2]) or "nothing"
    verdict, suspect = naming[0], naming[0]["suspects"][0]
    first, past = verdict["iterations"]
    named = suspect["switch"] if suspect["device"] == "switch" else "-".join(map(str, suspect["ranks"]))
    more = f", and {len(naming) - 1} more" if len(naming) > 1 else ""
    return f"{verdict['kind']} {suspect['device']} {named} {suspect['probability']:.0%} [{first}, {past}){more}"


def table(head: Cells, lines: Iterable[Cells]) -> list[str]:
    """Give the lines of a Markdown table."""
    rows = ["| " + " | ".join(cells) + " |" for cells in (head, *lines)]
    return [rows[0], "|---" * len(head) + "|", *rows[1:]]


BENCH: Final = Path(__file__).resolve().parents[2] / "recordings" / "bench"


def main(arguments: Sequence[str] | None = None) -> int:
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
