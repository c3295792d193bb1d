"""What counts as right, fixed before anything was measured. Knows the contract's verdicts and the truth, no detector.

* The *answer* of a job is its first verdict, most training time lost first, that names a suspect. Verdicts without
  suspects (`imbalance`, a communicator in which nobody stands out) accuse nobody.
* **Top-1**: the answer's kind is the truth's, and its first suspect is the truth's device: the rank of a rank, the
  host of a host, the NIC, the two ends of a link in any order (a cable has two directions), the switch, the stage. A
  verdict that accuses one GPU of a slow host is wrong, and so is one that accuses nobody.
* **Top-2**: the same of one of the first two different suspects, over the verdicts in their order.
* **Device**: the first suspect is the truth's device, whatever the kind.
* A fault may have several equal culprits: any of them is right.
* Each other verdict that names a suspect which is no culprit is a *further accusation*.
* `imbalance` is right if a verdict says so and no device is accused. A hang is right if the verdict's ranks hold no
  rank but those that did not arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

BLAMELESS: Final = ("imbalance", "slow_stage")  # kinds which accuse no device: uneven data, and a plan to rebalance
Device = tuple[Any, ...]
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Truth:
    """What was done to a job."""

    kind: str  # the verdict's kind that is right, by the contract
    culprits: tuple[Device, ...]  # each a device as `device_of` names it; empty where there is none to replace


@dataclass(frozen=True, slots=True)
class Score:
    """How a job's verdicts fare."""

    is_top1: bool
    is_top2: bool
    is_device: bool
    is_kind: bool  # some verdict has the right kind, whomever it names
    is_nobody: bool  # no device is accused
    further: int  # accusations beside the answer that hit no culprit
    # For each verdict with suspects the probability of the first, and whether it is a culprit and the kind right
    promises: tuple[tuple[float, bool], ...]


def device_of(suspect: Json) -> Device:
    """Name the device of a suspect so that equal devices have equal names.

    >>> device_of({"device": "link", "ranks": [5, 1]})
    ('link', 1, 5)
    """
    match suspect["device"]:
        case "gpu":
            return "gpu", suspect["rank"]
        case "host":
            return "host", suspect["host"]
        case "nic":
            return "nic", suspect["host"], suspect["nic"]
        case "link":
            return "link", *sorted(suspect["ranks"])
        case "switch":
            return "switch", suspect["switch"]
        case other:  # a stage
            return other, *sorted(suspect["ranks"])


def score(verdicts: Sequence[Json], truth: Truth) -> Score:
    """Score the verdicts of one job, in the order in which `analyze` lists them."""
    naming = [verdict for verdict in verdicts if verdict["suspects"]]
    answer = naming[0] if naming else None
    is_device = answer is not None and device_of(answer["suspects"][0]) in truth.culprits
    is_right = is_device and answer is not None and answer["kind"] == truth.kind
    if truth.kind == "imbalance":
        is_right = answer is None and any(verdict["kind"] == "imbalance" for verdict in verdicts)
    promises = tuple(_promise(verdict, truth) for verdict in naming)
    return Score(
        is_top1=is_right,
        is_top2=is_right or any(pair in _culprits(truth) for pair in _first_two(naming)),
        is_device=is_device,
        is_kind=any(verdict["kind"] == truth.kind for verdict in verdicts),
        is_nobody=answer is None,
        further=sum(device_of(verdict["suspects"][0]) not in truth.culprits for verdict in naming[1:]),
        promises=promises,
    )


def is_hang_right(verdicts: Sequence[Json], stopped: set[int]) -> bool:
    """Say whether the only accusation is a hang, of ranks that did not arrive and no others."""
    naming = [verdict for verdict in verdicts if verdict["suspects"]]
    if len(naming) != 1 or naming[0]["kind"] != "hang":
        return False
    return bool(naming[0]["suspects"][0]["ranks"]) and set(naming[0]["suspects"][0]["ranks"]) <= stopped


def accusations(verdicts: Sequence[Json]) -> tuple[int, int]:
    """Count the verdicts on a job without a fault: those that accuse a device, and those of blameless kinds."""
    blameless = sum(verdict["kind"] in BLAMELESS or not verdict["suspects"] for verdict in verdicts)
    return len(verdicts) - blameless, blameless


def _promise(verdict: Json, truth: Truth) -> tuple[float, bool]:
    first = verdict["suspects"][0]
    return float(first["probability"]), (verdict["kind"], device_of(first)) in _culprits(truth)


def _culprits(truth: Truth) -> set[tuple[str, Device]]:
    return {(truth.kind, device) for device in truth.culprits}


def _first_two(naming: Sequence[Json]) -> Iterator[tuple[str, Device]]:
    seen: list[Device] = []
    for verdict in naming:
        for suspect in verdict["suspects"]:
            device = device_of(suspect)
            if device in seen:
                continue
            if len(seen) == 2:
                return
            seen.append(device)
            yield verdict["kind"], device
