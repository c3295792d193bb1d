"""What is true of a job, read from the label of whichever maker wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = Mapping[str, Any]
Span = tuple[int, int]

_DEVICES: Final = {
    "slow_nic": "nic", "slow_link": "link", "slow_stage": "stage", "hang": "gpu",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Truth:
    maker: str
    name: str
    kind: str | None  # the verdict's kind that is right; None: the job is healthy
    device: str | None  # None: nobody is to be accused
    ranks: tuple[int, ...]  # all that the device carries
    spans: tuple[Span, ...]  # the stretches in which it acts, half-open; empty of a healthy job
    # How much longer the iterations in the stretches took, as a ratio; None: not measured, or they never ended
    excess: float | None
    is_hard: bool  # the maker says that it is within the noise, or that no log tells it from another device's
    what: str  # in the maker's words
    ratios: tuple[float, ...] = ()  # of each iteration from the first on, where the label lists them


def truth_of(maker: str, name: str, label: Json) -> Truth:
    """Read a label: of our simulator, `closed_form`, `event_level`, a recording, or a blind case."""
    kind = None if label["kind"] in (None, "none") else str(label["kind"])
    notes = label.get("notes") or {}
    what = label.get("what") or label.get("injected") or label.get("fault") or notes.get("fault") or kind or "healthy"
    if kind is None:
        return Truth(maker, name, None, None, (), (), None, False, str(what))
    ends = (one for one in (label.get("rank"), label.get("peer")) if one is not None)
    ranks = tuple(label["ranks"] or ends)
    device = label["device"] if "device" in label else _device(kind, ranks, label.get("switch"))
    excess = None if kind == "hang" else _excess(label, notes)
    each = label.get("inflation", notes.get("inflation"))
    ratios = tuple(each) if isinstance(each, list) else ()
    return Truth(maker, name, kind, device, ranks, _spans(label), excess, bool(label["hard"]), str(what), ratios)


def _device(kind: str, ranks: Sequence[int], switch: str | None) -> str | None:
    """Return the sort of device where the label leaves it to the kind."""
    match kind:
        case "slow_rank":
            return "gpu" if len(ranks) == 1 else "host"
        case "slow_communicator":
            return "switch" if switch else None
    return _DEVICES.get(kind)


def _spans(label: Json) -> tuple[Span, ...]:
    on = label.get("on") or label.get("active")
    if on:
        return runs_of(on)
    return tuple((first, past) for first, past in label.get("spans") or [label["iterations"]])


def runs_of(iterations: Iterable[int]) -> tuple[Span, ...]:
    """Join iterations to half-open stretches.

    >>> runs_of([4, 5, 9])
    ((4, 6), (9, 10))
    """
    found: list[Span] = []
    for one in sorted(iterations):
        if found and found[-1][1] == one:
            found[-1] = found[-1][0], one + 1
        else:
            found.append((one, one + 1))
    return tuple(found)


def _excess(label: Json, notes: Json) -> float | None:
    """Return by how much the iterations in the stretches took longer; some labels list each iteration's ratio."""
    for key in ("effect_active", "effect"):
        if label.get(key) is not None:
            return float(label[key]) - 1
    if label.get("faults"):
        ratios = [float(one["excess_ratio"]) for one in label["faults"]]
        return sum(ratios) / len(ratios)
    ratio = label.get("inflation", notes.get("inflation"))
    if isinstance(ratio, list):
        longer = [one for one in ratio if one > 1]
        ratio = sum(longer) / len(longer) if longer else 1.0
    return None if ratio is None else float(ratio) - 1
