"""Thresholds that all rooms share, and those for facts of a job: offsets of clocks, lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class JobThresholds:
    """Limits that all rooms share, and limits for clocks and lanes."""

    # Shared by all rooms
    most: float = threshold(0.5, "share, or probability",
        "From here on a part is the main one, a suspect likelier than not, and the rest of a fault still the fault.",
        "formula: more than all the rest together")  # fmt: skip
    nearly_all: float = threshold(0.8, "share, or probability",
        "From here on nearly all take part, or are explained: iterations, excess, a NIC's usual peak.",
        "chosen: four of five, since rows get lost, and peaks vary by a tenth or two")  # fmt: skip
    sure: float = threshold(0.9, "probability",
        "A suspect with less is not sure: it is not accused of a slow phase, and may be another's alternative.",
        "chosen: nine of ten, above nearly_all, as a job has slow phases that nobody is to blame for (commit "
        "848b513)")  # fmt: skip
    part: float = threshold(0.25, "share",
        "A smaller part does not count: of an excess, of a lane's time, of the late ranks, or of a certainty.",
        "chosen: three causes and noise may share an iteration")  # fmt: skip
    alike: float = threshold(0.1, "share",
        "Sizes, rates, peaks and times that differ by less are alike.",
        "chosen: what δ allows by default; batches of replicas differ by a per cent or so")  # fmt: skip
    least_share: float = threshold(0.05, "share, or probability",
        "Less is next to nothing: of the work or rows of a rank, of a rate, of an excess; or is hardly chance.",
        "chosen: a twentieth accuses nobody, whoever hides behind it")  # fmt: skip
    negligible: float = threshold(0.01, "share, or logarithm of a ratio",
        "Less is nothing: a rate is idle, a gap a launch, a pattern of no account, and noise counts as this.",
        "EROICA (NSDI 2026), β > 0.01; repeated work of a GPU varies by about a percent")  # fmt: skip
    twice: float = threshold(2.0, "times",
        "A time, probability or loss that is so many times another one differs clearly.",
        "chosen: twice, as SCOUT's limit of a slow write (LM Resiliency 0.2)")  # fmt: skip
    sigmas: float = threshold(4.0, "standard deviations",
        "A lane, rank or iteration that is slower by less does not stand out; a single iteration by twice as many.",
        "chosen: hundreds of ranks and lanes are looked at, and of normal noise one in 30,000 is above")  # fmt: skip
    repeated: int = threshold(3, "iterations, transfers, ranks or windows",
        "Fewer may be chance.",
        "chosen: one or two happen to anybody; the median of three bears a stray one")  # fmt: skip
    often: int = threshold(4, "iterations, collectives, lanes or rows",
        "With fewer their spread is not known, and newest collectives beyond are left out.",
        "computed: of three, a median deviation is one of them")  # fmt: skip

    another: int = threshold(2, "iterations, ranks, chains or lanes",
        "With fewer there is none to compare with, or to confirm it.",
        "computed: the least with which there is another one")  # fmt: skip

    # Times of one log
    drift_ratio: float = threshold(1e-4, "ns per ns",
        "An elapsed time by another clock is taken to be off by up to this share.",
        "chosen: two quartz oscillators of +-50 ppm each")  # fmt: skip
    least_resolution_ns: int = threshold(1_000, "ns",
        "No log is taken to be finer.",
        "chosen: reading a clock and recording an event take about a microsecond")  # fmt: skip
    clock_error_ns: int = threshold(100_000, "ns",
        "Error allowed for where moments of different hosts are compared.",
        "the promise of the trace format (trace-directory.md, clock)")  # fmt: skip

    # Offsets of hosts' clocks
    newest_ns: float = threshold(10e9, "ns",
        "Collectives and messages that are older than the newest by more are left out.",
        "computed: at drift_ratio two clocks part by a millisecond in ten seconds")  # fmt: skip
    noise_sigmas: float = threshold(3.0, "robust standard deviations",
        "What differs by less is noise: the offset of a clock, a lane beside an accused one, an iteration's time.",
        "chosen: the usual three sigma; one healthy iteration in 740 exceeds it where noise is normal")  # fmt: skip
    least_drift_ns: int = threshold(10_000, "ns",
        "Offsets that moved by less did not drift.",
        "chosen: members of a collective leave it within some microseconds of each other")  # fmt: skip

    # Metrics of ranks, from traces of their GPUs
    metric_least_count: int = threshold(10, "kernels, or multiplications of a kind",
        "With fewer, the distribution of a rank is not compared: their times may be a few µs, counted in whole ones.",
        "chosen: roundings by half a µs of calls of 5 µs then differ by 3% at the mean")  # fmt: skip

    # Lanes
    stray_transfers: float = threshold(1.5, "transfers (participation number)",
        "If the excess of a lane of several transfers is spread over fewer, one of them hung.",
        "chosen: half way between one transfer and two")  # fmt: skip


JOB: Final = JobThresholds()
FAR_SIGMAS: Final = 2 * JOB.sigmas
"""Standard deviations that the largest of many values with heavy tails reaches. Of gradient norms and losses of three
small models in clean runs 6 was exceeded (tests.benchmarks.numerics)."""
DRIFT_NS: Final = JOB.clock_error_ns / JOB.drift_ratio
"""Time in which two clocks may part by the error allowed for: of less the noise of both would be told as drift."""
