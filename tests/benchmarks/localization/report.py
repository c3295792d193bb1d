"""Rows of cases to tables: one Markdown report. Knows no detector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tests.benchmarks.localization import published
from tests.benchmarks.localization.statistics import brier, calibration_error, reliability, wilson

Row = Mapping[str, Any]
Rows = Sequence[Row]

COUNTED: Final = 0.10
"""From this excess on, accusing nobody counts as wrong: what the figures that must be reached are made of."""

_ACCURACY_HEAD: Final = "top-1 | 95 % | top-2 | device | nobody | somebody else | cases"


def write_report(found: Mapping[str, Any]) -> str:
    """Write everything that was found as Markdown."""
    rows: Rows = found["cases"]
    counted = [row for row in rows if row["excess"] >= COUNTED]
    sections = [
        _head(found), _must(found, counted), _by_size(counted), _by_dimensions(counted),
        _grouped("By kind of fault", "kind", counted, lambda row: row["kind"]),
        _grouped("By shape", "shape", counted, lambda row: row["shape"]),
        _grouped("By excess of the iteration time", "excess", rows, lambda row: f"{row['excess']:.0%}"),
        _grouped("By clocks", "clocks", counted, lambda row: row["clock"]),
        _kinds_by_shapes(counted), _by_delta(found, counted), _calibration(found), _further(found["further"]),
        _blameless(found["blameless"]), _speed(counted), _bytes(found, rows), _wrong(rows),
    ]  # fmt: skip
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def right(rows: Rows, what: str = "is_top1") -> int:
    """How many rows say so."""
    return sum(bool(row[what]) for row in rows)


def share(hits: int, total: int) -> str:
    """A share with its interval, for a line of text."""
    low, high = wilson(hits, total)
    return f"{hits / total:.1%} ({low:.1%} to {high:.1%}, {hits} of {total})" if total else "none measured"


def _head(found: Mapping[str, Any]) -> list[str]:
    state = "" if found["is_complete"] else " **Stopped before its end: what follows holds only the cases that ran.**"
    return [
        "# Finding the culprit", "",
        f"`{found['command']}`: {len(found['cases'])} incidents of the {found['split']} split, seeds from "
        f"{found['first_seed']}, δ = {found['deltas'][0]:g}, {found['machine']}, {found['processes']} processes, "
        f"{found['took_s'] / 60:.1f} min, commit {found['commit']}.{state}", "",
        "Noise of the suite: gaps 3 %, transfers 10 %, one in 200 transfers several times its length, 10 % drift, "
        "ranks, hosts and micro-batches of different speed, transfers that hang and are nobody's fault; half of the "
        "incidents with clock offsets of up to 5 ms. Top-1: kind and device of the first suspect are right; accusing "
        "nobody is wrong. Intervals: Wilson, 95 %. Tables count excesses of 10 % and more unless they say otherwise.",
    ]  # fmt: skip


def _must(found: Mapping[str, Any], counted: Rows) -> list[str]:
    lines = ["## What must be reached", "", "| figure | must | measured | best published |", "|---|---|---|---|"]
    for ranks, must in published.MUST_BY_RANKS.items():
        own = [row for row in counted if row["ranks"] == ranks]
        lines.append(_must_line(f"top-1, {ranks:,} GPUs", must, own, published.ACCURACY_BY_RANKS[ranks]))
    for dimensions, must in published.MUST_BY_DIMENSIONS.items():
        own = [row for row in counted if row["dimensions"] == dimensions]
        name = f"top-1, {dimensions} parallel dimensions"
        lines.append(_must_line(name, must, own, published.ACCURACY_BY_DIMENSIONS[dimensions]))
    iterations, devices = _healthy(found["blameless"])
    upper = wilson(devices, iterations)[1] if iterations else math.nan
    lines.append(
        f"| accusations of devices per 1,000 iterations without a fault | 0 | "
        f"{_per_1000(devices, iterations)} (to {1e3 * upper:.1f}) | |"
    )
    error = calibration_error(reliability(*_promises(found)))
    lines.append(f"| calibration error of the first suspect's probability | ≤ {published.MUST_CALIBRATION} | "
                 f"{error:.3f} | |")  # fmt: skip
    if found.get("bytes"):
        lines.append(f"| bytes after the first hop | ≤ {published.MUST_BYTES:.0%} | {_moved([found['bytes']]):.2%} | "
                     f"{published.BYTES_MOVED:.1%} |")  # fmt: skip
    return lines


def _must_line(name: str, must: float, rows: Rows, best: float) -> str:
    return f"| {name} | ≥ {must:.0%} | {share(right(rows), len(rows))} | {best:.1%} |"


def _by_size(rows: Rows) -> list[str]:
    def beside(ranks: int) -> str:
        others = "".join(f", {name} {value:.1%}" for name, value in published.OTHERS_BY_RANKS.get(ranks, {}).items())
        return f"{published.ACCURACY_BY_RANKS[ranks]:.1%}{others}" if ranks in published.ACCURACY_BY_RANKS else ""

    groups = {ranks: [row for row in rows if row["ranks"] == ranks] for ranks in sorted({r["ranks"] for r in rows})}
    lines = ["## By world size", "", f"| GPUs | {_ACCURACY_HEAD} | {published.HOLMES} |", "|---" * 9 + "|"]
    return lines + [f"| {ranks:,} | {_accuracy(own)} | {beside(ranks)} |" for ranks, own in groups.items()]


def _by_dimensions(rows: Rows) -> list[str]:
    lines = ["## By parallel dimensions", "", f"| dimensions | {_ACCURACY_HEAD} | {published.HOLMES} |",
             "|---" * 9 + "|"]  # fmt: skip
    for dimensions, best in published.ACCURACY_BY_DIMENSIONS.items():
        own = [row for row in rows if row["dimensions"] == dimensions]
        lines.append(f"| {dimensions} | {_accuracy(own)} | {best:.1%} |")
    return lines


def _grouped(title: str, head: str, rows: Rows, key: Callable[[Row], str]) -> list[str]:
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["excess"]):
        groups.setdefault(key(row), []).append(row)
    lines = [f"## {title}", "", f"| {head} | {_ACCURACY_HEAD} |", "|---" * 8 + "|"]
    return lines + [f"| {name} | {_accuracy(own)} |" for name, own in groups.items()]


def _accuracy(rows: Rows) -> str:
    total = len(rows)
    if not total:
        return "| | | | | | 0"
    low, high = wilson(right(rows), total)
    nobody = right(rows, "is_nobody")
    others = sum(not row["is_top1"] and not row["is_nobody"] for row in rows)
    figures = [right(rows) / total, right(rows, "is_top2") / total, right(rows, "is_device") / total]
    top1, top2, device = (f"{figure:.1%}" for figure in figures)
    return f"{top1} | {low:.1%} to {high:.1%} | {top2} | {device} | {nobody} | {others} | {total}"


def _kinds_by_shapes(rows: Rows) -> list[str]:
    kinds, shapes = (list(dict.fromkeys(sorted(row[name] for row in rows))) for name in ("kind", "shape"))
    lines = [
        "## Kind by shape: right of all",
        "",
        "| | " + " | ".join(shapes) + " |",
        "|---" * (len(shapes) + 1) + "|",
    ]
    for kind in kinds:
        cells = []
        for shape in shapes:
            own = [row for row in rows if (row["kind"], row["shape"]) == (kind, shape)]
            cells.append(f"{right(own)} of {len(own)}" if own else "")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


def _by_delta(found: Mapping[str, Any], rows: Rows) -> list[str]:
    tried = [row for row in rows if row.get("by_delta")]
    if not tried:
        return []
    lines = [
        "## Influence of δ", "",
        f"The {len(tried)} incidents of {tried[0]['ranks']} GPUs, judged anew with each δ. Holmes: below about 1.04 "
        "ordinary fluctuation swamps the signal.", "",
        "| δ | top-1 | 95 % | nobody | " + " | ".join(f"excess {e:.0%}" for e in _excesses(tried)) + " |",
        "|---" * (4 + len(_excesses(tried))) + "|",
    ]  # fmt: skip
    for delta in sorted(found["deltas"]):
        name = f"{delta:g}"
        own = [row if delta == found["deltas"][0] else {**row, **row["by_delta"][name]} for row in tried]
        low, high = wilson(right(own), len(own))
        cells = [
            f"{right(part) / len(part):.0%}"
            for excess in _excesses(tried)
            for part in [[row for row in own if row["excess"] == excess]]
        ]
        lines.append(f"| {name} | {right(own) / len(own):.1%} | {low:.1%} to {high:.1%} | "
                     f"{right(own, 'is_nobody')} | " + " | ".join(cells) + " |")  # fmt: skip
    return lines


def _excesses(rows: Rows) -> list[float]:
    return sorted({row["excess"] for row in rows})


def _promises(found: Mapping[str, Any]) -> tuple[list[float], list[bool]]:
    pairs = [tuple(pair) for name in ("cases", "further", "blameless") for row in found[name]
             if row["kind"] != "hang" for pair in row["promises"]]  # fmt: skip
    return [float(pair[0]) for pair in pairs], [bool(pair[1]) for pair in pairs]


def _calibration(found: Mapping[str, Any]) -> list[str]:
    probabilities, is_right = _promises(found)
    bins = reliability(probabilities, is_right)
    lines = [
        "## Calibration", "",
        f"The first suspect of every verdict, of jobs with and without a fault and of all excesses: "
        f"{len(probabilities)} accusations. Expected calibration error {calibration_error(bins):.3f}, Brier score "
        f"{brier(probabilities, is_right):.3f}.", "",
        "| probability | accusations | promised | right | 95 % |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for one in bins:
        low, high = wilson(round(one.right * one.count), one.count)
        lines.append(f"| {one.low:.1f} to {one.high:.1f} | {one.count} | {one.promised:.2f} | {one.right:.2f} | "
                     f"{low:.2f} to {high:.2f} |")  # fmt: skip
    return lines


def _further(rows: Rows) -> list[str]:
    if not rows:
        return []
    lines = [
        "## Kinds outside the grid", "",
        "A heavy stage (from the start), uneven data and hangs: named, and no device accused besides.", "",
        "| kind | right | 95 % | jobs |", "|---|---|---|---|",
    ]  # fmt: skip
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        low, high = wilson(right(own), len(own))
        lines.append(f"| {kind} | {right(own) / len(own):.0%} | {low:.0%} to {high:.0%} | {len(own)} |")
    return lines


def _blameless(rows: Rows) -> list[str]:
    if not rows:
        return []
    lines = [
        "## Nobody to blame: accusations per 1,000 iterations", "",
        "| jobs | iterations | of devices | at most (95 %) | of blameless kinds | irregular iterations |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for kind in dict.fromkeys(row["kind"] for row in rows):
        lines.append(_blameless_line(kind, [row for row in rows if row["kind"] == kind]))
    return [*lines, _blameless_line("all", rows)]


def _blameless_line(name: str, rows: Rows) -> str:
    iterations, devices = _healthy(rows)
    blameless = sum(row["blameless_verdicts"] for row in rows)
    irregular = sum(len(row["irregular_iterations"]) for row in rows)
    upper = 1e3 * wilson(devices, iterations)[1]
    return (f"| {name} | {iterations} | {_per_1000(devices, iterations)} | "
            f"{upper:.1f} | {_per_1000(blameless, iterations)} | {irregular} |")  # fmt: skip


def _healthy(rows: Rows) -> tuple[int, int]:
    return sum(row["iterations"] for row in rows), sum(row["devices_accused"] for row in rows)


def _per_1000(count: int, iterations: int) -> str:
    return f"{1e3 * count / iterations:.2f}" if iterations else "none measured"


def _speed(rows: Rows) -> list[str]:
    found = [row for row in rows if row["iterations_to_verdict"] is not None]
    if not found:
        return []
    lines = [
        "## From data to verdict", "",
        "Iterations from the onset to the revision that names the culprit, its first included; processor time of one "
        "core: first hop per rank and iteration, second hop per irregular iteration, with all else that it does.", "",
        "| GPUs | iterations, median | 90 % | first hop, µs | second hop, s | Holmes, s |", "|---" * 6 + "|",
    ]  # fmt: skip
    for ranks in sorted({row["ranks"] for row in found}):
        own = [row for row in found if row["ranks"] == ranks]
        waits = sorted(row["iterations_to_verdict"] for row in own)
        hop_us = _mean(1e6 * row["reduced_s"] / (ranks * row["iterations"]) for row in own)
        hop_s = _mean(row["judged_s"] / max(len(row["irregular_iterations"]), 1) for row in own)
        lines.append(f"| {ranks:,} | {_quantile(waits, 0.5)} | {_quantile(waits, 0.9)} | {hop_us:.0f} | "
                     f"{hop_s:.2f} | {published.LOCALIZATION_S.get(ranks, '')} |")  # fmt: skip
    return lines


def _bytes(found: Mapping[str, Any], rows: Rows) -> list[str]:
    if not rows:
        return []
    lines = [
        "## Bytes after the first hop", "",
        "Evidence and all that was read back, against the full log of operators (Arrow, as in Kafka). Holmes moved "
        f"{published.BYTES_MOVED:.1%}.", "",
        "| jobs | operators per rank and iteration | evidence | read back | together |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for ranks in sorted({row["ranks"] for row in rows}):
        lines.append(_bytes_line(f"{ranks:,} GPUs of the suite", [row for row in rows if row["ranks"] == ranks]))
    if found.get("bytes"):
        lines.append(_bytes_line(found["bytes"]["case"], [found["bytes"]]))
    return lines


def _bytes_line(name: str, rows: Rows) -> str:
    log = sum(row["log_bytes"] for row in rows)
    per_rank = _mean(row["operators"] / (row["ranks"] * row["iterations"]) for row in rows)
    evidence, read = (sum(row[what] for row in rows) / log for what in ("evidence_bytes", "read_bytes"))
    return f"| {name} | {per_rank:.0f} | {evidence:.2%} | {read:.2%} | {_moved(rows):.2%} |"


def _moved(rows: Rows) -> float:
    return sum(row["evidence_bytes"] + row["read_bytes"] for row in rows) / sum(row["log_bytes"] for row in rows)


def _wrong(rows: Rows) -> list[str]:
    wrong = [row for row in rows if not row["is_top1"]]
    lines = [f"## Wrong: {len(wrong)} of {len(rows)}", ""]
    if wrong:
        lines += ["| case | fault | shape | excess | clock | truth | said |", "|---" * 7 + "|"]
    for row in wrong:
        culprits = ", ".join(" ".join(map(str, device)) for device in row["truth"]["culprits"])
        lines.append(f"| {row['case']} | {row['kind']} | {row['shape']} | {row['excess']:.0%} | {row['clock']} | "
                     f"{culprits} | {said(row)} |")  # fmt: skip
    return lines


def said(row: Row) -> str:
    """What the verdicts of a row say, on one line."""
    texts = []
    for verdict in row["verdicts"]:
        suspects = [f"{s['device']} {'-'.join(map(str, s['ranks'][:2]))} {s['probability']:.2f}"
                    for s in verdict["suspects"][:2]]  # fmt: skip
        texts.append(f"{verdict['kind']} {verdict['iterations']}: {', '.join(suspects) or 'nobody'}")
    return "; ".join(texts) or "nothing"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else math.nan


def _quantile(ordered: Sequence[int], part: float) -> int:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]
