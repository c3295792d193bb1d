"""Faults of arithmetic as devices have them: which bits, in which values, how often."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

PLACES: Final = ("forward", "local_gradient", "receive_buffer", "reduced_gradient", "optimizer_state", "weight")
BEFORE: Final = ("forward", "local_gradient")  # before the reduction, where replicas differ anyway
LANES: Final = 32  # a stuck lane computes each 32nd element


@dataclass(frozen=True, slots=True)
class Fault:
    """What a trial does wrong, and where.

    `kind`: ``corruption``, ``loss_spike`` or ``none``. `rank`: None: all alike. `iteration`: the first with it.
    `mask`: bits of each element hit: turned over, or, of a lane, stuck at one. `lane`: None: one element is hit.
    `rate`: share of the elements that are hit. `repeats`: whether each later iteration has it as well.
    """

    kind: str
    rank: int | None
    iteration: int
    place: str
    flip: str = ""
    mask: int = 0
    lane: int | None = None
    rate: float = 1.0
    repeats: bool = False
    seed: int = 0
    size: float = 0.0  # of a spike: factor of the learning rate, or share of the batch

    def is_due(self, iteration: int) -> bool:
        return iteration == self.iteration or (self.repeats and iteration > self.iteration)

    def label(self) -> dict[str, Any]:
        """Return the truth about a trial, for scoring."""
        return asdict(self)


def draw_corruption(random: np.random.Generator, iteration: int, ranks: int, bits: int) -> Fault:
    """Draw one corruption, its kinds and places in turn with equal chances; `bits`: of a value, 32 or 16."""
    place = str(random.choice(PLACES))
    own = {"kind": "corruption", "rank": int(random.integers(ranks)), "iteration": iteration, "place": place}
    own["seed"] = int(random.integers(1 << 31))
    exponent = range(bits - 9, bits - 1)  # of float32 and bfloat16 alike: 8 bits below the sign
    flip = str(random.choice(["mantissa", "exponent", "sign", "bits", "lane"]))
    if flip == "bits" or (flip == "lane" and random.random() < 0.5):
        mask = int(sum(1 << bit for bit in random.choice(bits, int(random.integers(2, 9)), replace=False).tolist()))
    else:
        among = {"exponent": exponent, "sign": [bits - 1]}.get(flip, range(bits - 9))
        mask = 1 << int(random.choice(list(among)))
    repeats = flip == "lane" or (place in BEFORE and random.random() < 0.3)
    lane = int(random.integers(LANES)) if flip == "lane" else None
    rate = float(random.choice([0.1, 1.0])) if repeats else 1.0
    return Fault(**own, flip=flip, mask=mask, lane=lane, rate=rate, repeats=repeats)


def draw_spike(random: np.random.Generator, iteration: int, ranks: int) -> Fault:
    """Draw a loss spike that no device causes: bad data of one rank or of all, or steps that are too large."""
    place = str(random.choice(["batch_of_one", "batch_of_all", "learning_rate"]))
    rank = int(random.integers(ranks)) if place == "batch_of_one" else None
    size = float(random.choice([10.0, 30.0])) if place == "learning_rate" else float(random.choice([0.5, 1.0]))
    return Fault("loss_spike", rank, iteration, place, size=size, seed=int(random.integers(1 << 31)))


class Injector:
    """Puts a fault into tensors of the rank that has it; draws elements by the fault's own seed."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.changed = 0  # elements whose bits were changed
        self.audits: list[bool] = []  # whether some were in each audit
        self._random = np.random.default_rng(fault.seed)
        self.choice = int(self._random.integers(1 << 31))  # which tensor: modulo their number

    def hit(self, tensor: Any) -> None:
        import torch

        fault, flat = self.fault, tensor.detach().reshape(-1)
        assert flat.data_ptr() == tensor.data_ptr(), "a fault must hit the tensor itself, not a copy"
        count = flat.numel()
        is_one = fault.lane is None
        places = np.array([self._random.integers(count)]) if is_one else np.arange(fault.lane or 0, count, LANES)
        places = places[self._random.random(len(places)) < fault.rate]
        kind, bits = (torch.int32, 32) if flat.element_size() == 4 else (torch.int16, 16)
        mask = fault.mask - (1 << bits) if fault.mask >> (bits - 1) else fault.mask
        at = torch.from_numpy(places)
        own = flat.view(kind)
        before = own[at]
        own[at] = before ^ mask if is_one else before | mask
        self.changed += int((own[at] != before).sum())
