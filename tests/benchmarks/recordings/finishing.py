"""Makes a trace directory of what a job left behind: rows as small as they get, NIC rates, and the label."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from irregulars.producers.torch_hook.leaving.trace_parts import PARTS, assemble
from tests.benchmarks.recordings.counters import bandwidth_table
from tests.benchmarks.recordings.recording import SETTLING, Recording

_ORDER: Final = {
    "commops": ("rank", "start_ns", "sequence"), "iterations": ("rank", "iteration"),
    "bandwidth": ("rank", "time_ns"),
}  # fmt: skip
_MARGIN_NS: Final = 100_000_000
"""NIC rates are kept from so long before the first operator to so long after the last, ns."""

NOISE_QUANTILE: Final = 0.9
"""An effect is `hard` where the window's median iteration is no longer than this quantile of the regular ones."""


def finish(recording: Recording, scratch: Path, target: Path, reference_ns: np.ndarray) -> dict[str, Any]:
    """Write the trace directory and its label; return the label."""
    if (scratch / PARTS).exists():  # the job hung, and nobody put them together
        assemble(scratch)
    target.mkdir(parents=True, exist_ok=True)
    commops = pq.read_table(scratch / "commops.parquet")
    iterations = pq.read_table(scratch / "iterations.parquet")
    write_small(commops, target / "commops.parquet", "commops")
    write_small(iterations, target / "iterations.parquet", "iterations")
    if recording.is_sampled:
        with np.load(scratch / "counters.npz") as counted:
            rates = bandwidth_table(recording.layout, counted["times_ns"], counted["counters"])
        write_small(_within(rates, commops), target / "bandwidth.parquet", "bandwidth")
    job = json.loads((scratch / "job.json").read_text(encoding="utf-8"))
    (target / "job.json").write_text(json.dumps(job) + "\n", encoding="utf-8")
    label = recording.label() | measure(recording, iterations, reference_ns)
    (target / "label.json").write_text(_lines(label), encoding="utf-8")
    return label


def _within(rates: pa.Table, commops: pa.Table) -> pa.Table:
    starts, ends = commops["start_ns"], pc.add(commops["start_ns"], commops["elapsed_ns"])
    first_ns, last_ns = pc.min(starts).as_py() - _MARGIN_NS, pc.max(ends).as_py() + _MARGIN_NS
    times = rates["time_ns"]
    return rates.filter(pc.and_(pc.greater_equal(times, first_ns), pc.less_equal(times, last_ns)))


def write_small(table: pa.Table, path: Path, schema: str) -> None:
    """Write a table in an order, and with encodings, in which it takes little room."""
    table = table.sort_by([(name, "ascending") for name in _ORDER[schema]])
    unused = {"loss", "grad_norm", "tokens"} & set(table.column_names)
    table = table.drop_columns([name for name in unused if table[name].null_count == len(table)])
    integers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    encodings = dict.fromkeys(integers, "DELTA_BINARY_PACKED")
    encodings |= {f.name: "BYTE_STREAM_SPLIT" for f in table.schema if pa.types.is_floating(f.type)}
    texts = [field.name for field in table.schema if field.name not in encodings]
    pq.write_table(
        table, path, compression="zstd", compression_level=19, use_dictionary=texts, column_encoding=encodings,
        write_statistics=False, store_schema=False,
    )  # fmt: skip


def iteration_times_ms(iterations: pa.Table) -> dict[int, float]:
    """Give for each training iteration the time of the rank that took longest, ms."""
    longest: dict[int, float] = defaultdict(float)
    is_train = iterations["phase"].to_pylist() if "phase" in iterations.column_names else [None] * len(iterations)
    for number, elapsed_ns, phase in zip(
        iterations["iteration"].to_pylist(), iterations["elapsed_ns"].to_pylist(), is_train, strict=True
    ):
        if phase in (None, "train"):
            longest[number] = max(longest[number], elapsed_ns / 1e6)
    return dict(longest)


def measure(recording: Recording, iterations: pa.Table, reference_ns: np.ndarray) -> dict[str, Any]:
    """Measure what the fault did: medians in and outside of its window, and whether noise hides it.

    Parameters
    ----------
    reference_ns
        By rank and unrecorded healthy iteration; taken as usual where the fault never ends.
    """
    times = iteration_times_ms(iterations)
    fault = recording.faults[0]
    inside = [ms for number, ms in times.items() if fault.acts(number)]
    regular = [ms for number, ms in times.items() if not fault.acts(number) and number >= SETTLING]
    if recording.is_from_start:
        regular = (reference_ns.max(axis=0) / 1e6).tolist()
    measured = {
        "regular_ms": round(float(np.median(regular)), 1),
        "regular_p90_ms": round(float(np.quantile(regular, NOISE_QUANTILE)), 1),
        "window_ms": round(float(np.median(inside)), 1) if inside else None,
        "inflation": round(float(np.median(inside) / np.median(regular)), 3) if inside else None,
    }
    is_told = recording.truth.kind not in ("none", "hang")
    return measured | {"hard": bool(is_told and inside and np.median(inside) <= np.quantile(regular, NOISE_QUANTILE))}


def _lines(label: dict[str, Any]) -> str:
    """One key a line."""
    return "{" + ",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in label.items()) + "}\n"
