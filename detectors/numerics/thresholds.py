"""The thresholds of this room: when equal numbers are expected, and when a number is a spike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class NumericThresholds:
    """Limits for values that are equal by nature, and for spikes among peers or in the job's own past."""

    memory: int = threshold(64, "iterations",
        "Over about as many the usual level and its noise are learned.",
        "the robust window of the trial with 350 injected bit flips: 64 steps")  # fmt: skip
    peer_times: float = threshold(2.5, "times",
        "And that is further by this factor than the furthest of the memory: tails are heavy.",
        "fitted: in noise of a t distribution of 5 degrees of freedom 2 raised 0.4 in 1,000 steps")  # fmt: skip
    norm_times: float = threshold(3.0, "times",
        "A gradient norm is no spike below this multiple of the level.",
        "chosen: between Megatron's 10 and the noise of a norm, which doubles now and then")  # fmt: skip
    loss_times: float = threshold(1.5, "times",
        "A loss is no spike below this multiple of the level.",
        "chosen: below llm-foundry's 2; other data change a loss by a tenth or two")  # fmt: skip
    logit: float = threshold(100.0, "logits",
        "An attention logit that grows is told beyond this level.",
        "QK-clip's of Kimi K2 (arXiv 2507.20534), which rescales heads above it")  # fmt: skip


NUMERIC: Final = NumericThresholds()
