"""Faults as text: ``slow_nic:rank=17,from=40,to=60,factor=8``.

=================  ==========================  ==============================================  =====================
kind               where                       how much                                        verdict it stands for
=================  ==========================  ==============================================  =====================
``slow_rank``      ``rank``                    ``factor`` on its work, or ``add_ms`` of        ``slow_rank``
                                               standstill in its first forward
``slow_host``      ``host`` (name or index)    as ``slow_rank``, for all ranks of the host     ``slow_rank``
``slow_stage``     ``stage``                   ``factor`` on the work of all its ranks         ``slow_stage``
``slow_nic``       ``rank`` (one that uses     ``factor`` on the time per byte, or ``add_ms``  ``slow_nic``
                   the NIC)                    to each transfer
``slow_link``      ``src``, ``dst`` (ranks)    as ``slow_nic``                                 ``slow_link``
``slow_switch``    ``switch`` (name or index)  as ``slow_nic``                                 ``slow_communicator``
``uneven_data``    everywhere                  ``spread``: standard deviation of the work of   ``imbalance``
                                               a micro-batch, relative to its mean
``hang``           ``rank``                    ``at``: after which part of its calls of        ``hang``
                                               iteration ``from`` it stops (0.5 if left out);
                                               ``inside=yes``: in its next call, not before it
=================  ==========================  ==============================================  =====================

``from`` (0 when left out) and ``to`` (the end of the run) are iterations, half-open. ``shape`` is ``lasting``,
``spike`` (iteration ``from`` alone), ``fluctuating`` (another strength in each iteration), ``from_start`` (lasting,
and older than the recording), ``ramp`` (grows evenly over the first ``over`` iterations, 10 if left out, and stays: a
power cap that is lowered step by step, a heat sink that fills with dust) or ``sawtooth`` (grows over ``over``
iterations, is gone, and grows anew: a GPU that throttles, cools down and speeds up again).

Instead of a strength, all but ``hang`` take ``excess``: how much longer the mean iteration shall get, relative to the
same run without the fault. The strength that does that is tried out (`producers.simulator.truth`);
``by=add_ms`` looks for a delay where a factor is the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from irregulars.errors import InputError
from irregulars.validation import nearest

SHAPES: Final = ("lasting", "spike", "fluctuating", "from_start", "ramp", "sawtooth")
GROWING: Final = ("ramp", "sawtooth")
_USUAL_OVER: Final = 10
_EXCESS: Final = ("excess", "by")
_TIMES: Final = ("from", "to", "shape", "over")
_HANG: Final = ("from", "at", "inside")


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault."""

    places: tuple[str, ...]  # keys that name the place
    strengths: tuple[str, ...]  # keys of which one gives the strength; the first is looked for to reach an `excess`
    verdict: str  # the kind of verdict that is right
    device: str | None  # the kind of suspect that is to blame; None: nobody


_SLOW: Final = ("factor", "add_ms")
FAULT_KINDS: Final[Mapping[str, FaultKind]] = {
    "slow_rank": FaultKind(("rank",), _SLOW, "slow_rank", "gpu"),
    "slow_host": FaultKind(("host",), _SLOW, "slow_rank", "host"),
    "slow_stage": FaultKind(("stage",), ("factor",), "slow_stage", "stage"),
    "slow_nic": FaultKind(("rank",), _SLOW, "slow_nic", "nic"),
    "slow_link": FaultKind(("src", "dst"), _SLOW, "slow_link", "link"),
    "slow_switch": FaultKind(("switch",), _SLOW, "slow_communicator", "switch"),
    "uneven_data": FaultKind((), ("spread",), "imbalance", None),
    "hang": FaultKind(("rank",), (), "hang", "gpu"),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected cause."""

    kind: str  # one of `FAULT_KINDS`
    # first, past: Iterations in which it acts, half-open; `past` None: to the end of the run
    first: int = 0
    past: int | None = None
    shape: str = "lasting"  # one of `SHAPES`
    factor: float = 1.0  # times as long: work, or the time per byte on the device
    add_ms: float = 0.0  # added to the rank's first forward, or to each transfer over the device
    spread: float = 0.0  # of ``uneven_data``: relative standard deviation
    # rank, peer: The rank; of a link the sender and the receiver
    rank: int | None = None
    peer: int | None = None
    # host, switch: Name or index
    host: str | None = None
    switch: str | None = None
    stage: int | None = None  # pipeline stage
    excess: float = 0.0  # wanted excess of the mean iteration time, as a ratio; 0: the strength is given
    by: str = ""  # name of the strength that is looked for to reach it
    over: int = _USUAL_OVER  # of a shape that grows: in how many iterations
    # at, is_inside: Of ``hang``: after which part of its calls, and whether inside the next one
    at: float = 0.5
    is_inside: bool = False

    @property
    def is_calibrated(self) -> bool:
        """Whether the strength is known."""
        return not self.excess or (self.factor, self.add_ms, self.spread) != (1.0, 0.0, 0.0)

    def with_strength(self, strength: float) -> Fault:
        """Return the same fault with this strength of the sort `by`; 0 does nothing."""
        match self.by:
            case "factor":
                return replace(self, factor=1 + strength)
            case "add_ms":
                return replace(self, add_ms=strength)
            case _:
                return replace(self, spread=strength)

    def part(self, iteration: int) -> float:
        """Return the part of its strength in an iteration, by its shape; a fluctuating one draws it.

        >>> fault = parse_fault("slow_rank:rank=1,from=5,factor=2,shape=ramp,over=4")
        >>> [fault.part(iteration) for iteration in (5, 6, 8, 9)]
        [0.25, 0.5, 1.0, 1.0]
        """
        since = iteration - self.first
        match self.shape:
            case "ramp":
                return min((since + 1) / self.over, 1.0)
            case "sawtooth":
                return (since % self.over + 1) / self.over
            case _:
                return 1.0

    def is_active(self, iteration: int) -> bool:
        """Whether the fault acts in this iteration."""
        return self.first <= iteration and (self.past is None or iteration < self.past)

    def iterations(self, run_iterations: int) -> tuple[int, int]:
        """Return the half-open range in which it acts, in a run of `run_iterations`."""
        return self.first, run_iterations if self.past is None else min(self.past, run_iterations)


def parse_fault(text: str) -> Fault:
    """Read one fault from its text; the module's table lists the kinds and their keys.

    Raises InputError if the kind or a key is unknown, a key is missing, or a value is out of range.

    >>> fault = parse_fault("slow_nic:rank=17,from=40,to=60,factor=8")
    >>> fault.rank, fault.first, fault.past, fault.factor
    (17, 40, 60, 8.0)
    """
    read = _FaultText(text)
    first, past = read.index("from") or 0, read.index("to")
    shape = read.values.get("shape", "lasting")
    read.need(shape in SHAPES, f"shape must be one of {', '.join(SHAPES)}", repr(shape))
    read.need(past is None or past > first, f"to must be above from = {first}", past)
    read.need(shape != "from_start" or not first, "from must be 0 where shape is from_start", first)
    over, over_text = read.index("over"), repr(read.values.get("over"))
    if over is not None:
        read.need(shape in GROWING, f"over must stand with shape {' or '.join(GROWING)}", over_text)
        read.need(over, "over must be 1 or more", over_text)
    try:
        at = float(read.values.get("at", 0.5))
    except ValueError:  # refused below, with the range
        at = -1.0
    read.need(0 <= at < 1, "at must be a number from 0 to below 1", repr(read.values.get("at")))
    inside = read.values.get("inside", "no")
    read.need(inside in ("yes", "no"), "inside must be yes or no", repr(inside))
    return Fault(
        kind=read.kind, first=first, past=first + 1 if shape == "spike" else past, shape=shape,
        factor=read.number("factor", least=1.0), add_ms=read.number("add_ms"), spread=read.number("spread"),
        rank=read.index("src" if "src" in read.values else "rank"), peer=read.index("dst"),
        host=read.values.get("host"), switch=read.values.get("switch"), stage=read.index("stage"),
        excess=read.number("excess"), by=read.sought(), over=_USUAL_OVER if over is None else over,
        at=at, is_inside=inside == "yes",
    )  # fmt: skip


class _FaultText:
    """A fault's kind and settings as text, with the keys that its kind has and needs."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.kind, _, rest = text.strip().partition(":")
        rule = f"fault must begin with one of {', '.join(FAULT_KINDS)}"
        self.need(self.kind in FAULT_KINDS, rule, repr(self.kind), nearest(self.kind, FAULT_KINDS))
        self.values: dict[str, str] = {}
        for part in filter(None, (p.strip() for p in rest.split(","))):
            key, sign, value = (p.strip() for p in part.partition("="))
            self.need(key and sign and value, "a setting of a fault must be key=value", repr(part))
            self.need(key not in self.values, "a setting of a fault must be given once", f"{key!r} twice")
            self.values[key] = value
        places, strengths = FAULT_KINDS[self.kind].places, FAULT_KINDS[self.kind].strengths
        known = (*places, *(_HANG if self.kind == "hang" else (*strengths, *_TIMES, *_EXCESS)))
        for key in self.values:
            rule = f"a setting of {self.kind} must be one of {', '.join(known)}"
            self.need(key in known, rule, repr(key), nearest(key, known))
        given, found = [key for key in strengths if key in self.values], sorted(self.values)
        for key in places:
            self.need(key in self.values, f"{self.kind} must say {key}=…", found)
        is_strong = given or "excess" in self.values or not strengths
        self.need(is_strong, f"{self.kind} must say {'=… or '.join((*strengths, 'excess'))}=…", found)
        is_one = not given or "excess" not in self.values
        self.need(is_one, f"excess must stand without {' and '.join(given)}", "both")

    def need(self, is_right: object, rule: str, got: object, hint: str = "") -> None:
        if not is_right:
            raise InputError(f"{rule}; got {got} (fault {self._text!r}){hint}")

    def sought(self) -> str:
        """Return the strength that is looked for, empty where it is given."""
        if "excess" not in self.values:
            self.need("by" not in self.values, "by must stand with excess", sorted(self.values))
            return ""
        strengths = FAULT_KINDS[self.kind].strengths
        by = self.values.get("by", strengths[0])
        self.need(by in strengths, f"by must be one of {', '.join(strengths)}", repr(by))
        return by

    def number(self, key: str, least: float = 0.0) -> float:
        """Return a number above `least`, which it is where it is not given: a strength that does nothing."""
        if key not in self.values:
            return least
        try:
            value = float(self.values[key])
        except ValueError:
            raise InputError(f"{key} must be a number; got {self.values[key]!r} (fault {self._text!r})") from None
        self.need(least < value < float("inf"), f"{key} must be above {least:g}", repr(self.values[key]))
        return value

    def index(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        is_index = value.isascii() and value.isdigit()
        self.need(is_index, f"{key} must be an integer of 0 or more", repr(value))
        return int(value)
