"""Thresholds of what is known of a job: what clocks can tell, what is a pipeline, what is a stray transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class JobThresholds:
    """What clocks, lanes and pipelines are held against."""

    # Times of one log
    drift_ratio: float = threshold(
        1e-4,
        unit="ns per ns",
        meaning="An elapsed time by another clock is taken to be off by up to this share.",
        source="chosen: two quartz oscillators of +-50 ppm each",
    )
    least_resolution_ns: int = threshold(
        1_000,
        unit="ns",
        meaning="No log is taken to be finer.",
        source="chosen: reading a clock and recording an event take about a microsecond",
    )
    min_rows_of_resolution: int = threshold(
        4,
        unit="rows of a rank",
        meaning="With fewer, the resolution of a rank's times is not measured.",
        source="computed: of times in whole us four are multiples of 10 us by chance once in 10^4",
    )
    clock_error_ns: int = threshold(
        100_000,
        unit="ns",
        meaning="Error allowed for where moments of different hosts are compared.",
        source="the promise of the trace format (trace-directory.md, clock)",
    )

    # Offsets of hosts' clocks
    collectives_per_communicator: int = threshold(
        4,
        unit="collectives",
        meaning="Newest collectives of a communicator that are compared, at most.",
        source="chosen: the mean of four halves the noise of one; more would be older",
    )
    newest_ns: float = threshold(
        10e9,
        unit="ns",
        meaning="Collectives and messages that are older than the newest by more are left out.",
        source="computed: at drift_ratio two clocks part by a millisecond in ten seconds",
    )
    outlier_sigmas: float = threshold(
        5.0,
        unit="robust standard deviations",
        meaning="Ends farther from the fitted offsets are left out.",
        source="chosen: of normal noise one end in two million is lost",
    )
    drift_sigmas: float = threshold(
        3.0,
        unit="robust standard deviations of single ends",
        meaning="Offsets that moved by less did not drift.",
        source="chosen: the usual three sigma; offsets are means of many ends, so this is on the safe side",
    )
    least_drift_ns: int = threshold(
        10_000,
        unit="ns",
        meaning="Offsets that moved by less did not drift.",
        source="chosen: members of a collective leave it within some microseconds of each other",
    )
    least_baseline_ns: int = threshold(
        1_000_000_000,
        unit="ns",
        meaning="Two estimates that are less apart give no drift.",
        source="chosen: over less, the noise of both estimates would be extrapolated too far",
    )
    most_drift_ratio: float = threshold(
        2e-4,
        unit="ns per ns",
        meaning="A clock that moved faster is not taken to drift.",
        source="computed: twice drift_ratio, since both clocks and both estimates may be off",
    )

    # Lanes
    stray_transfers: float = threshold(
        1.5,
        unit="transfers (participation number)",
        meaning="If the excess of a lane of several transfers is spread over fewer, one of them hung.",
        source="chosen: half way between one transfer and two",
    )

    # Pipelines that nobody announced
    min_stages: int = threshold(
        3,
        unit="ranks of a chain",
        meaning="Shorter chains of senders are no pipelines.",
        source="computed: two ranks that send to each other may be a ring as well",
    )
    min_pipelines: int = threshold(
        2,
        unit="chains",
        meaning="Fewer chains are not taken for pipelines.",
        source="computed: in a single one each rank would be a stage by itself, without peers",
    )
    way_back_ratio: float = threshold(
        0.95,
        unit="ratio to the messages between neighbours",
        meaning="If more messages go from the last stage to the first, or back, the chain is no pipeline.",
        source="computed: with m micro-batches and v chunks, m (v - 1) to m v; 0.95 leaves room for lost rows up to "
        "20 chunks",
    )
    min_messages: int = threshold(
        2,
        unit="messages of one iteration between neighbours",
        meaning="With fewer, a chain whose ends exchange messages is no pipeline.",
        source="chosen: one lost row must not look like a way that is used less often",
    )


JOB: Final = JobThresholds()
