"""How often the culprit is named in real recordings, judged as `irregulars analyze` judges them.

What is right stands in `tests.benchmarks.makers.scoring`; here hosts and switches have names, too. *Wrong* is where
somebody else is accused, *missed* where nobody is, or the kind is not said. A healthy recording is right if nobody is
accused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from irregulars.errors import InputError, IrregularsError
from irregulars.infra.runs.analysis import analyze
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.iterations import number_iterations
from tests.benchmarks.makers.labels import Json, Truth, truth_of
from tests.benchmarks.makers.scoring import Found, Score, said, score
from tests.benchmarks.markdown import table

BENCH: Final = Path(__file__).resolve().parents[2] / "recordings" / "bench"
KINDS: Final = (
    "slow_rank", "slow_rank host", "slow_nic", "slow_link", "slow_communicator", "slow_stage", "imbalance", "hang",
    "none",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One recording: what is true, how the verdicts fare, and the first of them on one line."""

    truth: Truth
    score: Score
    said: str
    verdicts: Sequence[Json]
    is_named: bool  # whether the answer's host or switch has the label's name

    @property
    def outcome(self) -> str:
        is_accusing = self.score.promised is not None
        is_right = self.score.is_top1 and self.is_named if self.truth.kind else not is_accusing
        return "right" if is_right else "wrong" if is_accusing else "missed"

    @property
    def kind(self) -> str:
        """Name the row of the first table: a slow host is not counted with a slow GPU."""
        kind = self.truth.kind or "none"
        return f"{kind} host" if self.truth.device == "host" else kind


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


def judged(directory: Path) -> Row:
    label = label_of(directory)
    truth = truth_of("recordings", directory.name, label)
    verdicts = analyze(number_iterations(read_trace(directory)).trace).to_json()["verdicts"]
    found = Found(verdicts, (), {}, frozenset(range(label["world_size"])))
    first = next((one["suspects"][0] for one in verdicts if one["suspects"]), None)
    device = label["device"]
    is_named = device not in ("host", "switch") or (first or {}).get(device) == label[device]
    return Row(truth, score(truth, found), said(found), verdicts, is_named)


def report(rows: Sequence[Row]) -> str:
    faults, healthy = ([one for one in rows if bool(one.truth.kind) is is_faulty] for is_faulty in (True, False))
    accused = sum(one.score.promised is not None for one in healthy)
    told = (
        f"{len(rows)} recordings. Of {len(faults)} with a fault {_count(faults, 'right')} right: kind, device and "
        f"set of ranks. Of {len(healthy)} without, {accused} accuse somebody."
    )
    by_kind = {kind: [one for one in rows if one.kind == kind] for kind in KINDS}
    counts = [
        [kind, str(len(own)), *(str(_count(own, name)) for name in ("right", "wrong", "missed")), _hard(own),
         _overlap(own)]
        for kind, own in by_kind.items() if own
    ]  # fmt: skip
    head = ["kind", "recordings", "right", "wrong", "missed", "hard: right", "overlap where right"]
    each = [_cells(one) for own in by_kind.values() for one in own]
    heads = ["recording", "truth", "longer", "said", "result", "overlap"]
    return "\n".join([told, "", *table(head, counts), "", *table(heads, each)])


def _count(rows: Iterable[Row], outcome: str) -> int:
    return sum(one.outcome == outcome for one in rows)


def _hard(rows: Sequence[Row]) -> str:
    hard = [one for one in rows if one.truth.is_hard]
    return f"{_count(hard, 'right')} of {len(hard)}" if hard else ""


def _overlap(rows: Sequence[Row]) -> str:
    values = [one.score.overlap for one in rows if one.score.overlap is not None]
    return f"{sum(values) / len(values):.0%}" if values else ""


def _cells(row: Row) -> list[str]:
    truth = row.truth
    when = ", ".join(f"[{first}, {past})" for first, past in truth.spans)
    true = f"{truth.device or 'nobody'} {'-'.join(map(str, truth.ranks))} {when}" if truth.kind else "none"
    longer = "" if truth.excess is None else f"×{1 + truth.excess:.2f}"
    return [truth.name, true, longer + (" hard" if truth.is_hard else ""), row.said, row.outcome, _overlap([row])]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.recordings", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--directory", type=Path, default=BENCH, help="of recordings; default: the committed ones")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these recordings, or kinds")
    parser.add_argument("--json", action="store_true", help="one JSON list on standard output")
    options = parser.parse_args(arguments)
    try:
        rows = [judged(path) for path in recordings_in(options.directory, options.only)]
    except (IrregularsError, OSError) as error:
        print(f"recordings: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    listed = [asdict(one) | {"outcome": one.outcome} for one in rows]
    print(json.dumps(listed, indent=1) if options.json else report(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
