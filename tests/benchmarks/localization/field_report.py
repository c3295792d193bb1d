"""The sections of the report about untidy reality. Knows no detector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.benchmarks.localization.tables import (
    BLAMELESS_HEAD,
    Rows,
    blameless_line,
    grouped,
    said,
    table,
)


def field_sections(found: Mapping[str, Any]) -> list[list[str]]:
    """Write what was found in jobs of the preset ``field``; nothing where none was run."""
    rows, healthy_rows = found.get("field") or [], found.get("field_healthy") or []
    sections = []
    if rows:
        sections += [
            _head(rows),
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


def _head(rows: Rows) -> list[str]:
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
