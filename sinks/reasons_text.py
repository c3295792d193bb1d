"""The reasons of a verdict in words: each text is made of `messages.reasons` alone, wherever it is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from irregulars.messages.judgements import Verdict
from irregulars.messages.reasons import Considered, Reasons, Step
from irregulars.sinks.advice import name_device
from irregulars.words import duration, name_ranks

_SUSPECTS_SHOWN: Final = 3

NameRank = Callable[[int], str]  # names a rank for people, with its host where that is known


def rank_alone(rank: int) -> str:
    """Name a rank where its host is not known."""
    return f"rank {rank}"


def head_text(reasons: Reasons) -> str:
    """Return a heading: the shown iteration, and its standard of comparison."""
    others = "" if reasons.against == "past" else "; usual is what its peers took"
    order = ", the costliest part last" if len(reasons.path) > 1 else ""
    return f"in iteration {reasons.iteration}{order}{others}:"


def step_text(step: Step, usual: str = "usual", name: NameRank = rank_alone) -> str:
    """Put one step into words; `usual` is the word for its standard of comparison.

    >>> step_text(Step("work", 5, "all_reduce", "tp0", 21.2e6, 7e6, True, waiting=3, waited_rank=2, waited_ns=14e6))
    'rank 5 worked 21.2 ms before all_reduce on tp0 (usual 7 ms); rank 2 and 2 more waited up to 14 ms for it'
    >>> step_text(Step("transfer", 1, "recv", "pp1", 24.9e6, 411e3, True, peer=3))
    'rank 1 to rank 3 on pp1 took 24.9 ms after both had arrived (usual 411 µs)'
    """
    where = step.operator if step.communicator is None else f"{step.operator} on {step.communicator}"
    if step.what == "absence":
        waiting = "1 rank waits" if step.waiting == 1 else f"{step.waiting} ranks wait"
        return f"{name(step.rank)} is missing in {where}; {waiting}"
    elapsed = "an unknown time" if step.elapsed_ns is None else duration(step.elapsed_ns)
    beside = "" if step.usual_ns is None else f" ({usual} {duration(step.usual_ns)})"
    if step.what == "work":
        return f"{name(step.rank)} worked {elapsed} before {where}{beside}{_waits(step, name)}"
    if step.peer is None:
        return f"{where} took {elapsed} after its last rank had arrived{beside}"
    on = "" if step.communicator is None else f" on {step.communicator}"
    return f"rank {step.rank} to rank {step.peer}{on} took {elapsed} after both had arrived{beside}"


def _waits(step: Step, name: NameRank) -> str:
    if step.waited_rank is None or step.waited_ns is None:
        return ""
    more, up_to = (f" and {step.waiting - 1} more", "up to ") if step.waiting > 1 else ("", "")
    return f"; {name(step.waited_rank)}{more} waited {up_to}{duration(step.waited_ns)} for it"


def path_texts(reasons: Reasons, name: NameRank = rank_alone) -> list[str]:
    """Put the path into words, a line a step."""
    usual = "usual" if reasons.against == "past" else "peers"
    return [step_text(one, usual, name) for one in reasons.path]


def alternatives_of(verdict: Verdict, name: NameRank = rank_alone) -> list[tuple[str, str]]:
    """Return the other causes and why each is ruled out, a name and a text each; other suspects come last."""
    considered = () if verdict.explanation is None else verdict.explanation.considered
    found = [(_ALTERNATIVES.get(one.what, one.what), considered_text(one, name)) for one in considered]
    suspects = verdict.suspects
    found += [
        ("other suspect", f"{name_device(one)}: {one.probability:.1%}") for one in suspects[1 : 1 + _SUSPECTS_SHOWN]
    ]
    if left := suspects[1 + _SUSPECTS_SHOWN :]:
        ranks = name_ranks([one.rank for one in left])
        found.append(("other suspect", f"{len(left)} more ({ranks}): {sum(one.probability for one in left):.1%}"))
    none = 1 - sum(one.probability for one in suspects)
    if suspects and none >= 0.0005:
        found.append(("none of these", f"{none:.1%}"))
    return found


_ALTERNATIVES: Final = {
    "own_work": "own work", "one_link": "one link", "whole_nic": "a whole NIC", "its_transfers": "its NIC",
    "everybody": "the whole job",
}  # fmt: skip


def considered_text(one: Considered, name: NameRank = rank_alone) -> str:
    """Say whether an alternative is ruled out, and by which numbers.

    >>> considered_text(Considered("own_work", True, 1, 280e3)), considered_text(Considered("own_work", None, 2))
    ('no: rank 1 worked 280 µs longer than usual', 'how long rank 2 worked was not read')
    """
    verdict = {True: "no: ", False: "maybe: ", None: ""}[one.is_ruled_out]
    who = "all ranks" if one.rank is None else name(one.rank)
    uncompared = f"of {who} no transfers were compared"
    if one.what in ("one_link", "whole_nic"):
        if not one.known:
            return uncompared
        return f"{verdict}{one.slow} of {one.known} ways of {who} are slow"
    if one.excess_ns is None:
        return f"how long {who} worked was not read" if one.what == "own_work" else uncompared
    if one.what == "its_transfers":
        beside = "" if one.usual_ns is None else f" (usual {duration(one.usual_ns)})"
        ways = f", the slowest of {one.known} ways" if (one.known or 0) > 1 else ""
        return f"{verdict}transfers of {who} took {_longer(one.excess_ns)}{beside}{ways}"
    return f"{verdict}{who} worked {_longer(one.excess_ns)}"


def _longer(excess_ns: float) -> str:
    return f"{duration(abs(excess_ns))} {'less' if excess_ns < 0 else 'longer'} than usual"
