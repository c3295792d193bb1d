"""What counts as right, fixed before anything was measured. Knows the contract's verdicts and labels, no detector.

* The *answer* is the first verdict, most training time lost first, that names a suspect; of that verdict the first
  suspect.
* **right**: the answer's kind is the label's, its device is of the label's sort (`gpu`, `host`, `nic`, `link`,
  `switch`, `stage`), *and* its set of ranks is exactly the label's. One GPU of a slow host is wrong, and so is a host
  whose one GPU is slow. A link has its two ends in any order; whether the direction is right too is told apart, and
  changes no result.
* Where nobody is to be accused (`imbalance`, a switch that ``job.json`` does not name) right is a verdict of the
  label's kind, and no suspect in any verdict.
* **wrong**: somebody else was accused. **missed**: nobody was, and somebody should have been; or nothing was said.
* A healthy recording is right if no verdict names a suspect.
* *Overlap*: iterations that answer and label share, over those that either has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """How one recording's verdicts fare."""

    outcome: str  # ``right``, ``wrong`` or ``missed``
    # is_kind, is_device, is_ranks: Whether the answer has the label's kind, sort of device, and set of ranks
    is_kind: bool
    is_device: bool
    is_ranks: bool
    # Of a link that is slow one way: whether sender and receiver are told apart rightly. None elsewhere.
    is_direction: bool | None
    # Of the iterations of the answer (where nobody is to be accused: of the first verdict of the right kind) and of
    # the label; None where there is no such verdict, or no fault
    overlap: float | None
    accusations: int  # verdicts that name a suspect

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return asdict(self)


def score(verdicts: Sequence[Json], label: Json) -> Score:
    """Score the verdicts of one recording, in the order in which `analyze` lists them."""
    naming = [verdict for verdict in verdicts if verdict["suspects"]]
    if label["kind"] == "none":
        return Score("wrong" if naming else "right", False, False, False, None, None, len(naming))
    if label["device"] is None:
        alike = [verdict for verdict in verdicts if verdict["kind"] == label["kind"] and not verdict["suspects"]]
        shared = overlap(alike[0]["iterations"], label["iterations"]) if alike else None
        outcome = "wrong" if naming else "right" if alike else "missed"
        return Score(outcome, bool(alike), not naming, not naming, None, shared, len(naming))
    if not naming:
        return Score("missed", False, False, False, None, None, 0)
    answer = naming[0]
    suspect = answer["suspects"][0]
    is_kind, is_device = answer["kind"] == label["kind"], is_same_device(suspect, label)
    is_ranks = set(suspect["ranks"]) == set(label["ranks"])
    is_right = is_kind and is_device and is_ranks
    return Score(
        "right" if is_right else "wrong", is_kind, is_device, is_ranks,
        _is_direction(suspect, label) if is_right else None,
        overlap(answer["iterations"], label["iterations"]), len(naming),
    )  # fmt: skip


def is_same_device(suspect: Json, label: Json) -> bool:
    """Whether a suspect is a device of the label's sort, and, where that has a name, of its name."""
    if suspect["device"] != label["device"]:
        return False
    name = {"host": "host", "switch": "switch"}.get(label["device"])
    return name is None or suspect[name] == label[name]


def _is_direction(suspect: Json, label: Json) -> bool | None:
    if label["device"] != "link" or label["direction"] == "both":
        return None
    return (suspect["rank"], suspect["peer"]) == (label["rank"], label["peer"])


def overlap(found: Sequence[int], true: Sequence[int]) -> float:
    """Intersection of two half-open ranges over their union.

    >>> overlap([40, 60], [50, 60]), overlap([1, 2], [3, 4])
    (0.5, 0.0)
    """
    shared = max(0, min(found[1], true[1]) - max(found[0], true[0]))
    return shared / ((found[1] - found[0]) + (true[1] - true[0]) - shared)
