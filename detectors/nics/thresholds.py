"""Thresholds of what bandwidth samples tell of NICs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold

_EROICA_1: Final = "EROICA (NSDI 2026), algorithm 1"
_EROICA_LOCALIZATION: Final = "EROICA (NSDI 2026), localization"
_FIGURES: Final = "chosen: by EROICA's figures 3 to 5, simulated in tests/benchmarks/bench_ring.py"


@dataclass(frozen=True, slots=True)
class NicThresholds:
    """What patterns, peaks and swings of NICs' rates are held against."""

    # Behaviour patterns
    min_samples: float = threshold(
        5.0,
        unit="samples; one that an operator overlaps by half counts as half",
        meaning="A pattern that rests on fewer is not known.",
        source="chosen: a standard deviation of five values is off by a third",
    )
    kept_ratio: float = threshold(
        0.8,
        unit="share of the bytes of an execution",
        meaning="The piece that the busy part is cut from holds at least so many.",
        source=_EROICA_1,
    )
    idle_ratio: float = threshold(
        0.01,
        unit="share of the execution's highest rate",
        meaning="A sample at this rate or a lower one is idle.",
        source="chosen: EROICA takes samples of 0, but a host's NIC is never quite silent",
    )
    min_share: float = threshold(
        0.01,
        unit="share of the iteration in which operators of the class ran",
        meaning="A pattern with no more is not abnormal.",
        source=_EROICA_LOCALIZATION + " (β > 0.01)",
    )
    far: float = threshold(
        0.4,
        unit="Manhattan distance of two patterns whose components are scaled to 1",
        meaning="Two workers at least so far apart behave differently.",
        source=_EROICA_LOCALIZATION,
    )
    deviations: float = threshold(
        5.0,
        unit="median absolute deviations",
        meaning="A differential distance further above the median of its class stands out.",
        source=_EROICA_LOCALIZATION,
    )
    least_room: float = threshold(
        0.1,
        unit="share of the largest value of the class",
        meaning="The expected range of a component reaches at least so far to both sides.",
        source="chosen: few regular iterations that are alike by chance would make a range of no width",
    )

    # Who is capped: at the peak, and on average
    capped_ratio: float = threshold(
        0.8,
        unit="ratio to the NIC's usual peak",
        meaning="If the lowest peak of all ends is higher, no end is capped by its peak.",
        source="chosen: bursts vary by a tenth or two on their own",
    )
    most_alike_ratio: float = threshold(
        0.5,
        unit="share of all ends",
        meaning="If more ends are steady, none counts as steady; if more are low, none counts as low.",
        source="computed: what most do is what is usual",
    )
    least_capped_ratio: float = threshold(
        0.3,
        unit="ratio to the NIC's usual peak",
        meaning="A lowest peak up to this may be a cap.",
        source="chosen: samples of 10 ms flatten usual bursts to about a third",
    )
    flattened: float = threshold(
        3.0,
        unit="times",
        meaning="Divided by the slow-down of a transfer, this is the highest peak of a cap, between "
        "least_capped_ratio and capped_ratio.",
        source="chosen: the same flattening by samples of 10 ms",
    )
    near_ratio: float = threshold(
        1.25,
        unit="ratio to the lowest peak of all ends",
        meaning="An end with a higher peak is not one of the lowest.",
        source="chosen: who moves the bytes next after a capped NIC peaks 1.1 to 1.2 times as high",
    )
    alike_ratio: float = threshold(
        1.1,
        unit="ratio to the lowest peak of all ends",
        meaning="An end with a peak up to this is one of the lowest.",
        source="chosen: two ports held at one rate differ by some percent, by what a shaper lets through",
    )
    higher_sigmas: float = threshold(
        2.0,
        unit="standard errors of the median over iterations",
        meaning="An end between these two ratios that is higher by more is not one of the lowest.",
        source="chosen: the usual 95 %",
    )
    min_paired: int = threshold(
        4,
        unit="iterations",
        meaning="With fewer, an end between these two ratios is one of the lowest.",
        source="chosen: a median deviation of three values is one of them",
    )

    # Likelihoods: that an end of a slow transfer is one of those with the lowest peak
    low_if_nic_sends: float = threshold(
        0.8,
        unit="probability",
        meaning="A sending end stands out if its NIC is slow.",
        source="chosen: queues build where a slow NIC sends",
    )
    low_if_nic_receives: float = threshold(
        0.6,
        unit="probability",
        meaning="A receiving end stands out if its NIC is slow.",
        source="chosen: a fault may leave this direction alone, so it is less than for sending",
    )
    low_if_link: float = threshold(
        0.3,
        unit="probability",
        meaning="An end of a slow link stands out.",
        source="chosen: other transfers of the same NIC mostly reach their usual peak",
    )
    low_if_switch: float = threshold(
        0.5,
        unit="probability",
        meaning="An end stands out if its switch is slow.",
        source="chosen: between a NIC and a link, since only traffic that leaves the switch is held up",
    )
    low_by_chance: float = threshold(
        0.1,
        unit="probability",
        meaning="An end stands out though another device is slow.",
        source="chosen: in a ring the neighbour of a capped NIC has the same peak, one of ten ends or so",
    )
    capped_by_chance: float = threshold(
        0.1,
        unit="probability",
        meaning="Some end stands out though nothing in the network is slow.",
        source="chosen: as low_by_chance",
    )

    # Who is steady
    steady_ratio: float = threshold(
        1 / 3,
        unit="ratio to the middle swing of all ends",
        meaning="An end whose rate swings (σ / μ) more is not steady.",
        source=_FIGURES,
    )
    bursts: float = threshold(
        0.2,
        unit="swing (σ / μ)",
        meaning="If the middle swing of all ends is not larger, no end is steady.",
        source=_FIGURES,
    )
    min_ends: int = threshold(
        6,
        unit="ends; a NIC has two",
        meaning="With fewer, no end is steady.",
        source="computed: of two NICs either may be the odd one",
    )
    window_samples: int = threshold(
        50,
        unit="samples",
        meaning="Without iterations, a window of time is at least so long.",
        source="chosen: half a second at 10 ms a sample, which holds several bursts",
    )
    min_windows: int = threshold(
        3,
        unit="windows in a row",
        meaning="A NIC that was steady in fewer is not told.",
        source="chosen: only recordings of a slow NIC or switch have as many (judgement.md#bandwidth-of-nics)",
    )


NICS: Final = NicThresholds()
