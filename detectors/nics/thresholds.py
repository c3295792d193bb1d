"""Thresholds for bandwidth samples of NICs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold

_EROICA_1: Final = "EROICA (NSDI 2026), algorithm 1"
_EROICA_LOCALIZATION: Final = "EROICA (NSDI 2026), localization"
_FIGURES: Final = "chosen: by EROICA's figures 3 to 5, simulated in tests/benchmarks/bench_ring.py"


@dataclass(frozen=True, slots=True)
class NicThresholds:
    """Limits for patterns, peaks and swings of NICs' rates."""

    # Behaviour patterns
    min_samples: float = threshold(5.0, "samples; one that an operator overlaps by half counts as half",
        "A pattern that rests on fewer is not known.",
        "chosen: a standard deviation of five values is off by a third")  # fmt: skip
    kept_ratio: float = threshold(0.8, "share of the bytes of an execution",
        "The piece that the busy part is cut from holds at least so many.",
        _EROICA_1)  # fmt: skip
    idle_ratio: float = threshold(0.01, "share of the execution's highest rate",
        "A sample at this rate or a lower one is idle.",
        "chosen: EROICA takes samples of 0, but a host's NIC is never quite silent")  # fmt: skip
    min_share: float = threshold(0.01, "share of the iteration in which operators of the class ran",
        "A pattern with no more is not abnormal.",
        _EROICA_LOCALIZATION + " (β > 0.01)")  # fmt: skip
    far: float = threshold(0.4, "Manhattan distance of two patterns whose components are scaled to 1",
        "Two workers at least so far apart behave differently.",
        _EROICA_LOCALIZATION)  # fmt: skip
    deviations: float = threshold(5.0, "median absolute deviations",
        "A differential distance further above the median of its class stands out.",
        _EROICA_LOCALIZATION)  # fmt: skip
    least_room: float = threshold(0.1, "share of the largest value of the class",
        "The expected range of a component reaches at least so far to both sides.",
        "chosen: few regular iterations that are alike by chance would make a range of no width")  # fmt: skip

    # Who is capped: at the peak, and on average
    capped_ratio: float = threshold(0.8, "ratio to the NIC's usual peak",
        "If the lowest peak of all ends is higher, no end is capped by its peak.",
        "chosen: bursts vary by a tenth or two on their own")  # fmt: skip
    most_alike_ratio: float = threshold(0.5, "share of all ends",
        "If more ends are steady, none counts as steady; if more are low, none counts as low.",
        "computed: what most do is what is usual")  # fmt: skip
    least_capped_ratio: float = threshold(0.3, "ratio to the NIC's usual peak",
        "A lowest peak up to this may be a cap.",
        "chosen: samples of 10 ms flatten usual bursts to about a third")  # fmt: skip
    flattened: float = threshold(3.0, "times",
        "Divided by the slow-down of a transfer, this is the highest peak of a cap, between least_capped_ratio and "
        "capped_ratio.", "chosen: the same flattening by samples of 10 ms")  # fmt: skip
    near_ratio: float = threshold(1.25, "ratio to the lowest peak of all ends",
        "An end with a higher peak is not one of the lowest.",
        "chosen: who moves the bytes next after a capped NIC peaks 1.1 to 1.2 times as high")  # fmt: skip
    alike_ratio: float = threshold(1.1, "ratio to the lowest peak of all ends",
        "An end with a peak up to this is one of the lowest.",
        "chosen: two ports held at one rate differ by some percent, by what a shaper lets through")  # fmt: skip
    higher_sigmas: float = threshold(2.0, "standard errors of the median over iterations",
        "An end between these two ratios that is higher by more is not one of the lowest.",
        "chosen: the usual 95 %")  # fmt: skip
    min_paired: int = threshold(4, "iterations",
        "With fewer, an end between these two ratios is one of the lowest.",
        "chosen: a median deviation of three values is one of them")  # fmt: skip

    # Likelihoods: that an end of a slow transfer is one of those with the lowest peak
    low_if_nic_sends: float = threshold(0.8, "probability",
        "A sending end stands out if its NIC is slow.", "chosen: queues build where a slow NIC sends")  # fmt: skip
    low_if_nic_receives: float = threshold(0.6, "probability",
        "A receiving end stands out if its NIC is slow.",
        "chosen: a fault may leave this direction alone, so it is less than for sending")  # fmt: skip
    low_if_link: float = threshold(0.3, "probability",
        "An end of a slow link stands out.",
        "chosen: other transfers of the same NIC mostly reach their usual peak")  # fmt: skip
    low_if_switch: float = threshold(0.5, "probability",
        "An end stands out if its switch is slow.",
        "chosen: between a NIC and a link, since only traffic that leaves the switch is held up")  # fmt: skip
    switch_shows: float = threshold(0.5, "probability",
        "A slow switch shows at the NICs below it at all.",
        "chosen: if its uplink alone is slow, what stays below it bursts as ever, and the NICs of a leaf beyond are "
        "held up as well (hsdp16-leaf-uplink)")  # fmt: skip
    low_by_chance: float = threshold(0.1, "probability",
        "An end stands out though another device is slow.",
        "chosen: in a ring the neighbour of a capped NIC has the same peak, one of ten ends or so")  # fmt: skip

    # Who is steady
    steady_ratio: float = threshold(1 / 3, "ratio to the middle swing of all ends",
        "An end whose rate swings (σ / μ) more is not steady.",
        _FIGURES)  # fmt: skip
    bursts: float = threshold(0.2, "swing (σ / μ)",
        "If the middle swing of all ends is not larger, no end is steady.",
        _FIGURES)  # fmt: skip
    min_ends: int = threshold(6, "ends; a NIC has two",
        "With fewer, no end is steady; if a stage has fewer, NICs are compared over the whole job.",
        "computed: of two NICs either may be the odd one")  # fmt: skip
    window_samples: int = threshold(50, "samples",
        "Without iterations, a window of time is at least so long.",
        "chosen: half a second at 10 ms a sample, which holds several bursts")  # fmt: skip
    min_windows: int = threshold(3, "windows in a row",
        "A NIC that was steady in fewer is not told.",
        "chosen: only recordings of a slow NIC or switch have as many (judgement.md#bandwidth-of-nics)")  # fmt: skip


NICS: Final = NicThresholds()
