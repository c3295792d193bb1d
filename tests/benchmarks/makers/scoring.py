"""What counts as right: one function for the labels of all makers, which knows no detector.

* The *answer* is the first verdict, in the order in which `analyze` lists them, that accuses somebody.
* **right** is a verdict of the label's kind, whose first suspect is a device of the label's sort with exactly the
  label's ranks, as far as the job names these. One GPU of a slow host is wrong, and so is a host whose one GPU is
  slow. The ends of a link come in any order. Of a hang some of the ranks that stopped suffice, and no others.
* Where nobody is to be accused (uneven data, a switch without a name) right is a verdict of the kind, and no
  accusation in any.
* **Top-1**: the answer is right. **Kind**: its kind is; without an answer, the first verdict's. **Recall**: any
  verdict is right, whatever else was said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.benchmarks.makers.labels import Truth

Json = Mapping[str, Any]
LOUD: Final = ("ticket", "page")


@dataclass(frozen=True, slots=True)
class Found:
    verdicts: Sequence[Json]  # newest revisions, in the order of `analyze`
    revisions: Sequence[tuple[int, Json]]  # all of them, each after the iteration in which it was decided
    elapsed_s: Mapping[int, float]  # of each judged iteration of training
    named: frozenset[int]  # ranks that the job names; of others nobody can know


@dataclass(frozen=True, slots=True)
class Outcome:
    """One judged job: what is true, how it fares, and on one line what was said."""

    truth: Truth
    score: Score
    said: str


@dataclass(frozen=True, slots=True)
class Score:
    is_top1: bool
    is_kind: bool
    is_recalled: bool
    promised: float | None  # probability of the answer's first suspect; None without an answer
    iterations: int
    accusations: int  # verdicts above `note` that accuse somebody
    tickets: int  # verdicts above `note`, whomever they accuse
    notes: int  # notes that accuse somebody
    wrong_notes: int  # of these, with a first suspect that is not the label's device
    # Of a right answer whose cost is known: iterations that answer and label share, over those that either has; and
    # the loss that it tells, over the true one
    overlap: float | None = None
    loss_ratio: float | None = None
    delay: int | None = None  # iterations from the onset, its own included, until the culprit was named first


def score(truth: Truth, found: Found) -> Score:
    accusing = [one for one in found.verdicts if one["suspects"]]
    answer = accusing[0] if accusing else None
    first = next(iter((*accusing, *found.verdicts)), None)
    rights = [one for one in found.verdicts if is_right(one, truth, found.named)]
    is_top1 = bool(rights) and (rights[0] is answer if truth.device else not accusing)
    notes = [one for one in accusing if one["severity"] == "note"]
    loud = [one for one in found.verdicts if one["severity"] in LOUD]
    told: dict[str, Any] = _told(rights[0], truth, found) if is_top1 and truth.excess is not None else {}
    return Score(
        is_top1=is_top1,
        is_kind=first is not None and first["kind"] == truth.kind,
        is_recalled=bool(rights),
        promised=None if answer is None else float(answer["suspects"][0]["probability"]),
        iterations=len(found.elapsed_s),
        accusations=sum(bool(one["suspects"]) for one in loud),
        tickets=len(loud),
        notes=len(notes),
        wrong_notes=sum(not is_device(one, truth, found.named) for one in notes),
        delay=_delay(truth, found),
        **told,
    )


def said(found: Found) -> str:
    """Put the first verdicts on one line."""
    texts = []
    for one in found.verdicts[:3]:
        who = [
            f"{s['device']} {'-'.join(map(str, s['ranks'][:3]))} {s['probability']:.0%}" for s in one["suspects"][:1]
        ]
        first, past = one["iterations"]
        texts.append(f"{one['kind']} {who[0] if who else 'nobody'} [{first}, {past}) {one['severity']}")
    return "; ".join(texts) or "nothing"


def is_right(verdict: Json, truth: Truth, named: frozenset[int]) -> bool:
    """Whether a verdict says what is true."""
    if verdict["kind"] != truth.kind:
        return False
    return is_device(verdict, truth, named) if truth.device else not verdict["suspects"]


def is_device(verdict: Json, truth: Truth, named: frozenset[int]) -> bool:
    """Whether the first suspect is the label's device, whatever the verdict's kind."""
    first = verdict["suspects"][0] if verdict["suspects"] else None
    if first is None or first["device"] != truth.device:
        return False
    said, true = named.intersection(first["ranks"]), named.intersection(truth.ranks)
    return bool(said) and (said <= true if truth.kind == "hang" else said == true)


def _told(answer: Json, truth: Truth, found: Found) -> dict[str, float | None]:
    """Hold window and loss of a right answer against the truth.

    The true loss is what the iterations in the stretches took, less what they would have taken without the excess: of
    each by its own ratio, where the label lists them, since a stall beside the fault is none of its loss.
    """
    assert truth.excess is not None
    slow = {i: s for i, s in found.elapsed_s.items() if any(first <= i < past for first, past in truth.spans)}
    ratios = dict(enumerate(truth.ratios, min(found.elapsed_s, default=0)))
    true_s = sum(s * (1 - 1 / max(ratios.get(i, 1 + truth.excess), 1.0)) for i, s in slow.items())
    window = truth.spans[0][0], truth.spans[-1][1]
    loss_ratio = answer["lost_s"] / true_s if true_s > 0 else None
    return {"overlap": overlap(answer["iterations"], window), "loss_ratio": loss_ratio}


def _delay(truth: Truth, found: Found) -> int | None:
    if truth.device is None:
        return None
    decided = [at for at, one in found.revisions if is_right(one, truth, found.named)]
    onset = max(truth.spans[0][0], min(found.elapsed_s, default=0))
    return max(min(decided) - onset + 1, 1) if decided else None


def overlap(found: Sequence[int], true: Sequence[int]) -> float:
    """Intersection of two half-open ranges over their union.

    >>> overlap([40, 60], [50, 60]), overlap([1, 2], [3, 4])
    (0.5, 0.0)
    """
    shared = max(0, min(found[1], true[1]) - max(found[0], true[0]))
    return shared / ((found[1] - found[0]) + (true[1] - true[0]) - shared)
