"""Thresholds for facts of a job: offsets of clocks, stray transfers, pipelines that nobody announced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class JobThresholds:
    """Limits for clocks, lanes and pipelines."""

    # Times of one log
    drift_ratio: float = threshold(1e-4, "ns per ns",
        "An elapsed time by another clock is taken to be off by up to this share.",
        "chosen: two quartz oscillators of +-50 ppm each")  # fmt: skip
    least_resolution_ns: int = threshold(1_000, "ns",
        "No log is taken to be finer.",
        "chosen: reading a clock and recording an event take about a microsecond")  # fmt: skip
    min_rows_of_resolution: int = threshold(4, "rows of a rank",
        "With fewer, the resolution of a rank's times is not measured.",
        "computed: of times in whole us four are multiples of 10 us by chance once in 10^4")  # fmt: skip
    clock_error_ns: int = threshold(100_000, "ns",
        "Error allowed for where moments of different hosts are compared.",
        "the promise of the trace format (trace-directory.md, clock)")  # fmt: skip

    # Offsets of hosts' clocks
    collectives_per_communicator: int = threshold(4, "collectives",
        "Newest collectives of a communicator that are compared, at most.",
        "chosen: the mean of four halves the noise of one; more would be older")  # fmt: skip
    newest_ns: float = threshold(10e9, "ns",
        "Collectives and messages that are older than the newest by more are left out.",
        "computed: at drift_ratio two clocks part by a millisecond in ten seconds")  # fmt: skip
    outlier_sigmas: float = threshold(5.0, "robust standard deviations",
        "Ends farther from the fitted offsets are left out.",
        "chosen: of normal noise one end in two million is lost")  # fmt: skip
    noise_sigmas: float = threshold(3.0, "robust standard deviations",
        "What differs by less is noise: the offset of a clock, a lane beside an accused one, an iteration's time.",
        "chosen: the usual three sigma; one healthy iteration in 740 exceeds it where noise is normal")  # fmt: skip
    least_drift_ns: int = threshold(10_000, "ns",
        "Offsets that moved by less did not drift.",
        "chosen: members of a collective leave it within some microseconds of each other")  # fmt: skip
    least_baseline_ns: int = threshold(1_000_000_000, "ns",
        "Two estimates that are less apart give no drift.",
        "chosen: over less, the noise of both estimates would be extrapolated too far")  # fmt: skip

    # Lanes
    stray_transfers: float = threshold(1.5, "transfers (participation number)",
        "If the excess of a lane of several transfers is spread over fewer, one of them hung.",
        "chosen: half way between one transfer and two")  # fmt: skip

    # Pipelines that nobody announced
    min_stages: int = threshold(3, "ranks of a chain",
        "Shorter chains of senders are no pipelines.",
        "computed: two ranks that send to each other may be a ring as well")  # fmt: skip
    min_peers: int = threshold(2, "chains, ranks or lanes",
        "Fewer chains are not taken for pipelines; with fewer in a role, nothing is usual in it.",
        "computed: the least with which there is another one; a pipeline stage often has two ranks")  # fmt: skip
    way_back_ratio: float = threshold(0.95, "ratio to the messages between neighbours",
        "If more messages go from the last stage to the first, or back, the chain is no pipeline.",
        "computed: with m micro-batches and v chunks, m (v - 1) to m v; 0.95 leaves room for lost rows up to 20 "
        "chunks")  # fmt: skip
    min_messages: int = threshold(2, "messages of one iteration between neighbours",
        "With fewer, a chain whose ends exchange messages is no pipeline.",
        "chosen: one lost row must not look like a way that is used less often")  # fmt: skip


JOB: Final = JobThresholds()
