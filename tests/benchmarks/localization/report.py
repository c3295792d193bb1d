"""Rows of cases to tables: one Markdown report. Knows no detector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tests.benchmarks.localization.tables import (
    ACCURACY_HEAD,
    BLAMELESS_HEAD,
    Cells,
    Rows,
    accuracy,
    blameless_line,
    brier,
    calibration_error,
    grouped,
    healthy,
    per_1000,
    reliability,
    right,
    said,
    share,
    table,
    wilson,
)

COUNTED: Final = 0.10
"""From this excess on, accusing nobody counts as wrong: what the figures that must be reached are made of."""


def write_report(found: Mapping[str, Any]) -> str:
    """Write everything that was found as Markdown."""
    rows: Rows = found["cases"]
    counted = [row for row in rows if row["excess"] >= COUNTED]
    sections = [
        _head(found), _must(found, counted), _by_size(counted), _by_dimensions(counted),
        grouped("By kind of fault", "kind", counted, lambda row: row["kind"]),
        grouped("By shape", "shape", counted, lambda row: row["shape"]),
        grouped("By excess of the iteration time", "excess", rows, lambda row: f"{row['excess']:.0%}"),
        grouped("By clocks", "clocks", counted, lambda row: row["clock"]),
        _kinds_by_shapes(counted), _by_delta(found, counted), _calibration(found), _further(found["further"]),
        _blameless(found["blameless"]), _speed(counted), _bytes(found, rows), _wrong(rows), *field_sections(found),
    ]  # fmt: skip
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


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
    lines = []
    for ranks, must in MUST_BY_RANKS.items():
        own = [row for row in counted if row["ranks"] == ranks]
        lines.append(_must_line(f"top-1, {ranks:,} GPUs", must, own, ACCURACY_BY_RANKS[ranks]))
    for dimensions, must in MUST_BY_DIMENSIONS.items():
        own = [row for row in counted if row["dimensions"] == dimensions]
        name = f"top-1, {dimensions} parallel dimensions"
        lines.append(_must_line(name, must, own, ACCURACY_BY_DIMENSIONS[dimensions]))
    iterations, devices = healthy(found["blameless"])
    upper = wilson(devices, iterations)[1] if iterations else math.nan
    said = f"{per_1000(devices, iterations)} (to {1e3 * upper:.1f})"
    lines.append(["accusations of devices per 1,000 iterations without a fault", "0", said, ""])
    error = calibration_error(reliability(*_promises(found)))
    lines.append(["calibration error of the first suspect's probability", f"≤ {MUST_CALIBRATION}",
                  f"{error:.3f}", ""])  # fmt: skip
    if found.get("bytes"):
        lines.append(["bytes after the first hop", f"≤ {MUST_BYTES:.0%}", f"{_moved([found['bytes']]):.2%}",
                      f"{BYTES_MOVED:.1%}"])  # fmt: skip
    return ["## What must be reached", "", *table(["figure", "must", "measured", "best published"], lines)]


def _must_line(name: str, must: float, rows: Rows, best: float) -> Cells:
    return [name, f"≥ {must:.0%}", share(right(rows), len(rows)), f"{best:.1%}"]


def _by_size(rows: Rows) -> list[str]:
    def beside(ranks: int) -> str:
        others = "".join(f", {name} {value:.1%}" for name, value in OTHERS_BY_RANKS.get(ranks, {}).items())
        return f"{ACCURACY_BY_RANKS[ranks]:.1%}{others}" if ranks in ACCURACY_BY_RANKS else ""

    groups = {ranks: [row for row in rows if row["ranks"] == ranks] for ranks in sorted({r["ranks"] for r in rows})}
    lines = [[f"{ranks:,}", *accuracy(own), beside(ranks)] for ranks, own in groups.items()]
    return ["## By world size", "", *table(["GPUs", *ACCURACY_HEAD, HOLMES], lines)]


def _by_dimensions(rows: Rows) -> list[str]:
    lines = [
        [str(dimensions), *accuracy([row for row in rows if row["dimensions"] == dimensions]), f"{best:.1%}"]
        for dimensions, best in ACCURACY_BY_DIMENSIONS.items()
    ]
    return ["## By parallel dimensions", "", *table(["dimensions", *ACCURACY_HEAD, HOLMES], lines)]


def _kinds_by_shapes(rows: Rows) -> list[str]:
    kinds, shapes = (list(dict.fromkeys(sorted(row[name] for row in rows))) for name in ("kind", "shape"))

    def cell(kind: str, shape: str) -> str:
        own = [row for row in rows if (row["kind"], row["shape"]) == (kind, shape)]
        return f"{right(own)} of {len(own)}" if own else ""

    lines = [[kind, *(cell(kind, shape) for shape in shapes)] for kind in kinds]
    return ["## Kind by shape: right of all", "", *table(["", *shapes], lines)]


def _by_delta(found: Mapping[str, Any], rows: Rows) -> list[str]:
    tried = [row for row in rows if row.get("by_delta")]
    if not tried:
        return []
    lines = []
    for delta in sorted(found["deltas"]):
        name = f"{delta:g}"
        own = [row if delta == found["deltas"][0] else {**row, **row["by_delta"][name]} for row in tried]
        low, high = wilson(right(own), len(own))
        cells = [
            f"{right(part) / len(part):.0%}"
            for excess in _excesses(tried)
            for part in [[row for row in own if row["excess"] == excess]]
        ]
        lines.append([name, f"{right(own) / len(own):.1%}", f"{low:.1%} to {high:.1%}", str(right(own, "is_nobody")),
                      *cells])  # fmt: skip
    return [
        "## Influence of δ", "",
        f"The {len(tried)} incidents of {tried[0]['ranks']} GPUs, judged anew with each δ. Holmes: below about 1.04 "
        "ordinary fluctuation swamps the signal.", "",
        *table(["δ", "top-1", "95 %", "nobody", *(f"excess {e:.0%}" for e in _excesses(tried))], lines),
    ]  # fmt: skip


def _excesses(rows: Rows) -> list[float]:
    return sorted({row["excess"] for row in rows})


def _promises(found: Mapping[str, Any]) -> tuple[list[float], list[bool]]:
    pairs = [tuple(pair) for name in ("cases", "further", "blameless") for row in found[name]
             if row["kind"] != "hang" for pair in row["promises"]]  # fmt: skip
    return [float(pair[0]) for pair in pairs], [bool(pair[1]) for pair in pairs]


def _calibration(found: Mapping[str, Any]) -> list[str]:
    probabilities, is_right = _promises(found)
    bins = reliability(probabilities, is_right)
    lines = []
    for one in bins:
        low, high = wilson(round(one.right * one.count), one.count)
        lines.append([f"{one.low:.1f} to {one.high:.1f}", str(one.count), f"{one.promised:.2f}", f"{one.right:.2f}",
                      f"{low:.2f} to {high:.2f}"])  # fmt: skip
    return [
        "## Calibration", "",
        f"The first suspect of every verdict, of jobs with and without a fault and of all excesses: "
        f"{len(probabilities)} accusations. Expected calibration error {calibration_error(bins):.3f}, Brier score "
        f"{brier(probabilities, is_right):.3f}.", "",
        *table(["probability", "accusations", "promised", "right", "95 %"], lines),
    ]  # fmt: skip


def _further(rows: Rows) -> list[str]:
    if not rows:
        return []
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        low, high = wilson(right(own), len(own))
        lines.append([kind, f"{right(own) / len(own):.0%}", f"{low:.0%} to {high:.0%}", str(len(own))])
    return [
        "## Kinds outside the grid", "",
        "A heavy stage (from the start), uneven data and hangs: named, and no device accused besides.", "",
        *table(["kind", "right", "95 %", "jobs"], lines),
    ]  # fmt: skip


def _blameless(rows: Rows) -> list[str]:
    if not rows:
        return []
    kinds = dict.fromkeys(row["kind"] for row in rows)
    lines = [blameless_line(kind, [row for row in rows if row["kind"] == kind]) for kind in kinds]
    lines.append(blameless_line("all", rows))
    return ["## Nobody to blame: accusations per 1,000 iterations", "", *table(BLAMELESS_HEAD, lines)]


def _speed(rows: Rows) -> list[str]:
    found = [row for row in rows if row["iterations_to_verdict"] is not None]
    if not found:
        return []
    lines = []
    for ranks in sorted({row["ranks"] for row in found}):
        own = [row for row in found if row["ranks"] == ranks]
        waits = sorted(row["iterations_to_verdict"] for row in own)
        hop_us = _mean(1e6 * row["reduced_s"] / (ranks * row["iterations"]) for row in own)
        hop_s = _mean(row["judged_s"] / max(len(row["irregular_iterations"]), 1) for row in own)
        lines.append([f"{ranks:,}", str(_quantile(waits, 0.5)), str(_quantile(waits, 0.9)), f"{hop_us:.0f}",
                      f"{hop_s:.2f}", str(LOCALIZATION_S.get(ranks, ""))])  # fmt: skip
    return [
        "## From data to verdict", "",
        "Iterations from the onset to the revision that names the culprit, its first included; processor time of one "
        "core: first hop per rank and iteration, second hop per irregular iteration, with all else that it does.", "",
        *table(["GPUs", "iterations, median", "90 %", "first hop, µs", "second hop, s", "Holmes, s"], lines),
    ]  # fmt: skip


def _bytes(found: Mapping[str, Any], rows: Rows) -> list[str]:
    if not rows:
        return []
    sizes = sorted({row["ranks"] for row in rows})
    lines = [_bytes_line(f"{n:,} GPUs of the suite", [row for row in rows if row["ranks"] == n]) for n in sizes]
    if found.get("bytes"):
        lines.append(_bytes_line(found["bytes"]["case"], [found["bytes"]]))
    return [
        "## Bytes after the first hop", "",
        "Evidence and all that was read back, against the full log of operators (Arrow, as in Kafka). Holmes moved "
        f"{BYTES_MOVED:.1%}.", "",
        *table(["jobs", "operators per rank and iteration", "evidence", "read back", "together"], lines),
    ]  # fmt: skip


def _bytes_line(name: str, rows: Rows) -> Cells:
    log = sum(row["log_bytes"] for row in rows)
    per_rank = _mean(row["operators"] / (row["ranks"] * row["iterations"]) for row in rows)
    evidence, read = (sum(row[what] for row in rows) / log for what in ("evidence_bytes", "read_bytes"))
    return [name, f"{per_rank:.0f}", f"{evidence:.2%}", f"{read:.2%}", f"{_moved(rows):.2%}"]


def _moved(rows: Rows) -> float:
    return sum(row["evidence_bytes"] + row["read_bytes"] for row in rows) / sum(row["log_bytes"] for row in rows)


def _wrong(rows: Rows) -> list[str]:
    wrong = [row for row in rows if not row["is_top1"]]
    lines = []
    for row in wrong:
        culprits = ", ".join(" ".join(map(str, device)) for device in row["truth"]["culprits"])
        lines.append([str(row["case"]), row["kind"], row["shape"], f"{row['excess']:.0%}", row["clock"], culprits,
                      said(row)])  # fmt: skip
    listed = table(["case", "fault", "shape", "excess", "clock", "truth", "said"], lines) if wrong else []
    return [f"## Wrong: {len(wrong)} of {len(rows)}", "", *listed]


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else math.nan


def _quantile(ordered: Sequence[int], part: float) -> int:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


HOLMES: Final = "Holmes (NSDI'25)"
ACCURACY_BY_RANKS: Final = {2048: 0.972, 8192: 0.882}
OTHERS_BY_RANKS: Final = {8192: {"RW": 0.780, "Seer": 0.807}}
ACCURACY_BY_DIMENSIONS: Final = {3: 0.946, 4: 0.896, 6: 0.860}
MUST_BY_RANKS: Final = {2048: 0.99, 8192: 0.97}
MUST_BY_DIMENSIONS: Final = {6: 0.96}
MUST_CALIBRATION: Final = 0.05
MUST_BYTES: Final = 0.01
BYTES_MOVED: Final = 0.84 / 24.36
LOCALIZATION_S: Final = {2048: 15.5, 8192: 30.3}


def field_sections(found: Mapping[str, Any]) -> list[list[str]]:
    """Write what was found in jobs of the preset ``field``; nothing where none was run."""
    rows, healthy_rows = found.get("field") or [], found.get("field_healthy") or []
    sections = []
    if rows:
        sections += [
            _field_head(rows),
            grouped("Field: by shape of the job", "job", rows, lambda row: row["job_shape"]),
            grouped("Field: by kind of fault", "kind", rows, lambda row: row["kind"]),
            grouped("Field: by shape of the fault", "shape", rows, lambda row: row["shape"]),
            grouped("Field: by excess", "excess", rows, lambda row: f"{row['excess']:.0%}"),
            grouped("Field: by clocks", "clocks", rows, lambda row: row["clock"]),
            grouped("Field: by resolution of times", "ns", rows, lambda row: f"{row['time_resolution_ns']:,}"),
        ]
    if healthy_rows:
        sections.append(_healthy_field(healthy_rows))
    return [*sections, _wrong_field(rows, healthy_rows)] if sections else []


def _field_head(rows: Rows) -> list[str]:
    return [
        "# Untidy reality", "",
        f"{len(rows)} incidents in jobs of the simulator's preset `field`, each untidiness in a size of its own: "
        "rounded times, durations on other clocks, iterations that compile, slow phases of hosts, heavy tails.",
    ]  # fmt: skip


def _healthy_field(rows: Rows) -> list[str]:
    sorts = dict.fromkeys(row["kind"] for row in rows)
    lines = []
    for sort in sorts:
        own = [row for row in rows if row["kind"] == sort]
        spread = [row["variation"] for row in own]
        lines.append([*blameless_line(sort, own), f"{min(spread):.1%} to {max(spread):.1%}"])
    lines.append([*blameless_line("all", rows), ""])
    return ["## Field: nobody to blame, accusations per 1,000 iterations", "",
            *table([*BLAMELESS_HEAD, "iteration times vary by"], lines)]  # fmt: skip


def _wrong_field(rows: Rows, healthy_rows: Rows) -> list[str]:
    lines = []
    for row in [one for one in rows if not one["is_top1"]]:
        culprits = ", ".join(" ".join(map(str, device)) for device in row["truth"]["culprits"])
        fault = f"{row['kind']}, {row['shape']}, {row['excess']:.0%}"
        lines.append([row["case"], row["job_shape"], fault, row["clock"], culprits, said(row)])
    for row in [one for one in healthy_rows if one["devices_accused"]]:
        lines.append([row["case"], row["job_shape"], row["kind"], row["clock"], "nobody", said(row)])
    listed = table(["case", "job", "what happened", "clock", "truth", "said"], lines) if lines else []
    return [f"## Field: wrong, {len(lines)} of {len(rows) + len(healthy_rows)}", "", *listed]
