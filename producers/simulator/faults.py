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
same run without the fault. What strength does that is tried out (`producers.simulator.truth`);
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
_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "slow_rank": ("rank",), "slow_host": ("host",), "slow_stage": ("stage",), "slow_nic": ("rank",),
    "slow_link": ("src", "dst"), "slow_switch": ("switch",), "uneven_data": (), "hang": ("rank",),
}  # fmt: skip
_STRENGTHS: Final[Mapping[str, tuple[str, ...]]] = {
    "slow_rank": ("factor", "add_ms"), "slow_host": ("factor", "add_ms"), "slow_stage": ("factor",),
    "slow_nic": ("factor", "add_ms"), "slow_link": ("factor", "add_ms"), "slow_switch": ("factor", "add_ms"),
    "uneven_data": ("spread",), "hang": (),
}  # fmt: skip
_EXCESS: Final = ("excess", "by")
_TIMES: Final = ("from", "to", "shape", "over")
_HANG: Final = ("from", "at", "inside")
FAULT_KINDS: Final = tuple(_PLACES)
_NAMES: Final = frozenset({"host", "switch"})  # a name of the cluster, or an index


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
    kind, _, rest = text.strip().partition(":")
    if kind not in _PLACES:
        raise InputError(f"fault must begin with one of {', '.join(FAULT_KINDS)}; got {kind!r} (fault {text!r})"
                         f"{nearest(kind, FAULT_KINDS)}")  # fmt: skip
    pairs: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, sign, value = (p.strip() for p in part.partition("="))
        if not (key and sign and value):
            raise InputError(f"a setting of a fault must be key=value; got {part!r} (fault {text!r})")
        if key in pairs:
            raise InputError(f"a setting of a fault must be given once; got {key!r} twice (fault {text!r})")
        pairs[key] = value
    values = pairs
    _check_keys(kind, values, text)
    first, past, shape = _times(values, text)
    try:
        at = float(values.get("at", 0.5))
    except ValueError:
        at = -1.0
    if not 0 <= at < 1:
        raise InputError(f"at must be a number from 0 to below 1; got {values['at']!r} (fault {text!r})")
    inside = values.get("inside", "no")
    if inside not in ("yes", "no"):
        raise InputError(f"inside must be yes or no; got {inside!r} (fault {text!r})")
    return Fault(
        kind=kind, first=first, past=past, shape=shape, factor=_number(values, "factor", text, least=1.0),
        add_ms=_number(values, "add_ms", text), spread=_number(values, "spread", text),
        rank=_index(values, "src" if "src" in values else "rank", text), peer=_index(values, "dst", text),
        host=values.get("host"), switch=values.get("switch"), stage=_index(values, "stage", text),
        excess=_number(values, "excess", text), by=_sought(kind, values, text), over=_over(shape, values, text),
        at=at, is_inside=inside == "yes",
    )  # fmt: skip


def _check_keys(kind: str, values: Mapping[str, str], text: str) -> None:
    known = (*_PLACES[kind], *(_HANG if kind == "hang" else (*_STRENGTHS[kind], *_TIMES, *_EXCESS)))
    for key in values:
        if key not in known:
            raise InputError(f"a setting of {kind} must be one of {', '.join(known)}; got {key!r} (fault {text!r})"
                             f"{nearest(key, known)}")  # fmt: skip
    for key in _PLACES[kind]:
        if key not in values:
            raise InputError(f"{kind} must say {key}=…; got {sorted(values)} (fault {text!r})")
    strengths = _STRENGTHS[kind]
    given = [key for key in strengths if key in values]
    if strengths and not given and "excess" not in values:
        raise InputError(
            f"{kind} must say {'=… or '.join((*strengths, 'excess'))}=…; got {sorted(values)} (fault {text!r})"
        )
    if given and "excess" in values:
        raise InputError(f"excess must stand without {' and '.join(given)}; got both (fault {text!r})")


def _sought(kind: str, values: Mapping[str, str], text: str) -> str:
    if "excess" not in values:
        if "by" in values:
            raise InputError(f"by must stand with excess; got {sorted(values)} (fault {text!r})")
        return ""
    by = values.get("by", _STRENGTHS[kind][0])
    if by not in _STRENGTHS[kind]:
        raise InputError(f"by must be one of {', '.join(_STRENGTHS[kind])}; got {by!r} (fault {text!r})")
    return by


def _over(shape: str, values: Mapping[str, str], text: str) -> int:
    over = _index(values, "over", text)
    if over is None:
        return _USUAL_OVER
    if shape not in GROWING or not over:
        rule = "over must be 1 or more" if shape in GROWING else f"over must stand with shape {' or '.join(GROWING)}"
        raise InputError(f"{rule}; got {values['over']!r} (fault {text!r})")
    return over


def _times(values: Mapping[str, str], text: str) -> tuple[int, int | None, str]:
    first, past = _index(values, "from", text) or 0, _index(values, "to", text)
    shape = values.get("shape", "lasting")
    if shape not in SHAPES:
        raise InputError(f"shape must be one of {', '.join(SHAPES)}; got {shape!r} (fault {text!r})")
    if past is not None and past <= first:
        raise InputError(f"to must be above from = {first}; got {past!r} (fault {text!r})")
    if shape == "from_start" and first:
        raise InputError(f"from must be 0 where shape is from_start; got {first!r} (fault {text!r})")
    return first, first + 1 if shape == "spike" else past, shape


def _number(values: Mapping[str, str], key: str, text: str, least: float = 0.0) -> float:
    """Read a number above `least`, which it is where it is not given: a strength that does nothing."""
    if key not in values:
        return least
    try:
        value = float(values[key])
    except ValueError:
        raise InputError(f"{key} must be a number; got {values[key]!r} (fault {text!r})") from None
    if not least < value < float("inf"):
        raise InputError(f"{key} must be above {least:g}; got {values[key]!r} (fault {text!r})")
    return value


def _index(values: Mapping[str, str], key: str, text: str) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()):
        raise InputError(f"{key} must be an integer of 0 or more; got {value!r} (fault {text!r})")
    return int(value)
