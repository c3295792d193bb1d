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
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from irregulars.errors import InputError
from irregulars.validation import LARGEST, Count, Positive, Text, describe, nearest, one_of

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
    kind, values = _values_of(text)
    need = partial(_need, text)
    first, past, shape = values.get("from", 0), values.get("to"), values.get("shape", "lasting")
    need(past is None or past > first, f"to must be above from = {first}", past)
    need(shape != "from_start" or not first, "from must be 0 where shape is from_start", first)
    over = values.get("over")
    need(over is None or shape in GROWING, f"over must stand with shape {' or '.join(GROWING)}", over)
    strengths, by = FAULT_KINDS[kind].strengths, values.get("by", "")
    if "excess" in values:
        by = by or strengths[0]
        need(by in strengths, f"by must be one of {', '.join(strengths)}", repr(by))
    need(not by or "excess" in values, "by must stand with excess", sorted(values))
    return Fault(
        kind=kind, first=first, past=first + 1 if shape == "spike" else past, shape=shape,
        factor=values.get("factor", 1.0), add_ms=values.get("add_ms", 0.0), spread=values.get("spread", 0.0),
        rank=values.get("src", values.get("rank")), peer=values.get("dst"), host=values.get("host"),
        switch=values.get("switch"), stage=values.get("stage"), excess=values.get("excess", 0.0), by=by,
        over=over or _USUAL_OVER, at=values.get("at", 0.5), is_inside=values.get("inside") == "yes",
    )  # fmt: skip


# The keys of a fault's text, each with the rule of its value
_VALUES: Final[Mapping[str, Any]] = {
    "rank": Count, "src": Count, "dst": Count, "host": Text, "switch": Text, "stage": Count,
    "factor": Annotated[float, Meta(gt=1, le=1e308)], "add_ms": Positive, "spread": Positive, "excess": Positive,
    "by": Text, "from": Count, "to": Count, "over": Annotated[int, Meta(ge=1, le=LARGEST)],
    "shape": Annotated[str, one_of(*SHAPES)], "inside": Annotated[str, one_of("yes", "no")],
    "at": Annotated[float, Meta(ge=0, lt=1, description="a number from 0 to below 1")],
}  # fmt: skip


def _values_of(text: str) -> tuple[str, dict[str, Any]]:
    """Return a fault's kind, and the values of the keys that its kind has and needs."""
    need = partial(_need, text)
    kind, _, rest = text.strip().partition(":")
    rule = f"fault must begin with one of {', '.join(FAULT_KINDS)}"
    need(kind in FAULT_KINDS, rule, repr(kind), nearest(kind, FAULT_KINDS))
    places, strengths = FAULT_KINDS[kind].places, FAULT_KINDS[kind].strengths
    known = (*places, *(_HANG if kind == "hang" else (*strengths, *_TIMES, *_EXCESS)))
    values: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, sign, value = (p.strip() for p in part.partition("="))
        need(key and sign and value, "a setting of a fault must be key=value", repr(part))
        need(key not in values, "a setting of a fault must be given once", f"{key!r} twice")
        need(key in known, f"a setting of {kind} must be one of {', '.join(known)}", repr(key), nearest(key, known))
        try:
            values[key] = msgspec.convert(value, _VALUES[key], strict=False)
        except msgspec.ValidationError:
            need(False, f"{key} must be {describe(_VALUES[key])}", repr(value))
    given, found = [key for key in strengths if key in values], sorted(values)
    for key in places:
        need(key in values, f"{kind} must say {key}=…", found)
    is_strong = given or "excess" in values or not strengths
    need(is_strong, f"{kind} must say {'=… or '.join((*strengths, 'excess'))}=…", found)
    need(not given or "excess" not in values, f"excess must stand without {' and '.join(given)}", "both")
    return kind, values


def _need(text: str, is_right: object, rule: str, got: object, hint: str = "") -> None:
    if not is_right:
        raise InputError(f"{rule}; got {got} (fault {text!r}){hint}")
