"""Draw how cost, memory, snapshot and bytes grow with the ranks of a job: infra/docs/growth.png.

    python -m tests.benchmarks.table.growth                          # from infra/docs/bench-scale.json
    python -m tests.benchmarks.table.growth build/bench-scale.json   # take these sizes into it first, then draw

Both axes are logarithmic: what grows with the ranks rises as the dotted line does, what is the same for each rank is
level. It needs matplotlib, of the extra `dev`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).resolve().parents[3] / "infra" / "docs"
SIZES: Final = DOCS / "bench-scale.json"
PICTURE: Final = DOCS / "growth.png"
ITERATIONS: Final = 26  # of each job that `bench_scale` simulates
Cost = Mapping[str, Any]


@dataclass(frozen=True)
class Panel:
    """One of the plots; `each_rank` says whether its values are of a rank, and level is what they should be."""

    title: str
    unit: str
    lines: Mapping[str, Callable[[Cost], float]]
    each_rank: bool


def per_rank_us(seconds: float, cost: Cost) -> float:
    return seconds / cost["ranks"] / ITERATIONS * 1e6


PANELS: Final[Sequence[Panel]] = (
    Panel(
        "CPU time of a rank in an iteration", "µs",
        {
            "first hop": lambda cost: per_rank_us(cost["reduce_s"], cost),
            "second hop": lambda cost: per_rank_us(sum(cost["regular_s"] + cost["irregular_s"]), cost),
        },
        each_rank=True,
    ),
    Panel(
        "CPU time of an iteration in the second hop", "s",
        {
            "regular": lambda cost: statistics.median(cost["regular_s"]),
            "irregular, the slowest": lambda cost: max(cost["irregular_s"]),
        },
        each_rank=False,
    ),
    Panel("Memory of the second hop", "MiB", {"memory": lambda cost: max(cost["memory_mib"], 1.0)}, each_rank=False),
    Panel(
        "Bytes of a rank", "bytes",
        {
            "snapshot": lambda cost: cost["snapshot_bytes"] / cost["ranks"],
            "evidence, an iteration": lambda cost: cost["evidence_bytes"] / cost["ranks"] / ITERATIONS,
        },
        each_rank=True,
    ),
)  # fmt: skip


def taken_in(sizes: Sequence[Cost], new: Sequence[Cost]) -> list[Cost]:
    """Return sizes by ranks, those that were measured anew in place of older ones."""
    by_ranks = {one["ranks"]: one for one in (*sizes, *new)}
    return [by_ranks[ranks] for ranks in sorted(by_ranks)]


def values(panel: Panel, sizes: Sequence[Cost]) -> dict[str, list[float]]:
    return {name: [float(value(cost)) for cost in sizes] for name, value in panel.lines.items()}


def draw(sizes: Sequence[Cost], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ranks = [cost["ranks"] for cost in sizes]
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True, layout="constrained")
    for panel, ax in zip(PANELS, axes.flat, strict=True):
        lines = values(panel, sizes)
        for name, heights in lines.items():
            ax.plot(ranks, heights, marker="o", label=name)
        first = min(heights[0] for heights in lines.values())
        if not panel.each_rank:
            ax.plot(ranks, [first * one / ranks[0] for one in ranks], "k:", linewidth=1, label="as the ranks grow")
        ax.set(xscale="log", yscale="log", title=panel.title, ylabel=panel.unit)
        ax.set_xticks(ranks, [f"{one:,}" for one in ranks], rotation=45)
        ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        low, high = ax.get_ylim()
        ax.set_ylim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
        ax.grid(visible=True, alpha=0.3)
        ax.legend()
    for ax in axes[-1]:
        ax.set_xlabel("ranks of the job")
    figure.savefig(out, dpi=110, metadata={"Software": None})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("new", type=Path, nargs="?", help="JSON of bench_scale")
    parser.add_argument("--out", type=Path, default=PICTURE)
    own = parser.parse_args(arguments)
    sizes = json.loads(SIZES.read_text(encoding="utf-8"))
    if own.new:
        sizes = taken_in(sizes, json.loads(own.new.read_text(encoding="utf-8")))
        SIZES.write_text(json.dumps(sizes, indent=1) + "\n", encoding="utf-8")
    draw(sizes, own.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
