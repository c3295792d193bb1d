"""The mechanisms of the judgement, each with how it is switched off from outside.

A seam is a function in a module or a class, and what is made of it. While a job is judged as always, each seam
may be asked whether the other would have answered otherwise (`touched`): where it never does, the job need not be
judged without it. Detectors with a say, and the ranks that they find strange, are no mechanism here: `irregulars
analyze` runs none unless somebody chose it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, Final, NamedTuple

from irregulars.detectors.blame import causes, observation, standing_causes, transfer_causes, work_causes
from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.explanation import Explanation
from irregulars.detectors.blame.slow_lanes import SeenLanes
from irregulars.detectors.irregular import late_rank
from irregulars.detectors.job.lanes import LaneExcess
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging import investigation, iteration_judge, standing_review, suspicion
from irregulars.detectors.judging.investigation import Investigator
from irregulars.detectors.judging.standing_review import StandingReview
from irregulars.detectors.judging.suspicion import Reason, Suspicion
from irregulars.detectors.verdicts import open_verdict, opening, revision, single_spikes, tracker
from irregulars.detectors.verdicts.opening import Evidence
from irregulars.detectors.verdicts.suspicions import Suspicions
from irregulars.detectors.verdicts.tracker import VerdictTracker

_NEVER: Final = 1 << 30
_INFINITE: Final = float("inf")


class Seam(NamedTuple):
    """Where a mechanism is switched off, and what is made of what stands there."""

    owner: Any
    name: str
    instead: Callable[[Any], Any]


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _own: lambda *_args, **_named: value


def _as_given(_own: Any) -> Any:
    return lambda given, *_args, **_named: given


def _limits(owner: Any, name: str, module: ModuleType, **limits: Any) -> Seam:
    """Let one function judge by other thresholds; the functions that share them keep their own."""
    sets = (name for name in ("BLAME", "JOB") if hasattr(module, name))
    thresholds = next(name for name in sets if all(hasattr(getattr(module, name), one) for one in limits))

    def instead(own: Any) -> Any:
        def judge(*args: Any, **named: Any) -> Any:
            with _at(module, thresholds, replace(getattr(module, thresholds), **limits)):
                return own(*args, **named)

        return judge

    return Seam(owner, name, instead)


def _everywhere(name: str, instead: Callable[[Any], Any]) -> tuple[Seam, ...]:
    """Replace a function in every module that imports it."""
    owners = (opening, tracker, single_spikes, standing_causes, open_verdict)
    return tuple(Seam(owner, name, instead) for owner in owners if hasattr(owner, name))


def _reason(reason: Reason) -> tuple[Seam, ...]:
    def instead(own: Any) -> Any:
        def suspect(*args: Any, **named: Any) -> Suspicion:
            reasons = own(*args, **named).reasons & ~reason
            is_shifted = Reason.SHIFTED in reasons and not named["has_open"]
            return Suspicion(reasons, Reason.UNHEALTHY in reasons or is_shifted)

        return suspect

    return (Seam(iteration_judge, "suspicion_of", instead),)


def _spike(**limits: Any) -> tuple[Seam, ...]:
    return tuple(_limits(owner, "clear_cause", single_spikes, **limits) for owner in (tracker, single_spikes))


def _search(**limits: Any) -> tuple[Seam, ...]:
    return _everywhere("find_causes", _limits(causes, "find_causes", causes, **limits).instead)


MECHANISMS: Final[Mapping[str, tuple[Seam, ...]]] = {
    # What makes an iteration suspect
    "suspect: late rank": (Seam(suspicion, "_is_lateness_felt", _always(False)),),
    "suspect: late again and again": (Seam(late_rank, "_is_still_late", _always(False)),),
    "suspect: 3/4 of δ": _reason(Reason.LONG),
    "suspect: shift": _reason(Reason.SHIFTED),
    # Rules of opening
    "rule: rank in 3 of 6": (_limits(Evidence, "is_seen_enough", opening, repeated=_NEVER),),
    "rule: transfers in 4 of 6": (_limits(Evidence, "is_seen_enough", opening, often=_NEVER),),
    "rule: transfers in 3 in a row": (Seam(opening, "_is_clear_run", _always(False)),),
    "rule: rank in 2, alone": (Seam(opening, "stands_alone", _always(False)),),
    "rule: in all of 6": (Seam(Evidence, "_is_in_all", _always(False)),),
    "rule: uneven data": (Seam(VerdictTracker, "_new_imbalance", _always([])),),
    "rule: single spikes": (Seam(VerdictTracker, "_decide_spikes", _always([])),),
    "rule: review": (Seam(iteration_judge, "review_regular", _always(None)),),
    "review: stages": (Seam(standing_causes, "_slow_stage", _always(None)),),
    "review: uneven data": (Seam(standing_causes, "_imbalance", _always(None)),),
    "review: of more than 512 ranks": (
        Seam(standing_review, "ranks_to_review", lambda own: lambda *args: own(*args)._replace(is_odd=False)),
    ),
    # Vetoes
    "veto: not half of the excess": (
        Seam(observation.Observation, "is_mainly", lambda _own: observation.Observation.shows),
    ),
    "veto: a tenth suffices for mainly": (
        _limits(observation.Observation, "is_mainly", observation, alike=_INFINITE),
    ),
    "veto: within noise": (Seam(observation.Observation, "is_beyond_noise", _always(True)),),
    "veto: others as often": (Seam(Evidence, "_is_one_of_few", _always(True)),),
    "veto: data are uneven": (Seam(Suspicions, "uneven", _always({})),),
    "veto: rivals": _everywhere("stands_alone", _always(True)),
    "veto: what if": (
        Seam(VerdictTracker, "_hardly_comes_back", _always(False)),
        _limits(VerdictTracker, "_cause_of_spike", tracker, most=-_INFINITE),
    ),
    "veto: unsure": _everywhere("is_sure", _always(True)),
    "veto: unlogged ranks": (Seam(Topology, "hides_late_ranks", _always(False)),),
    "veto: everybody late": (_limits(causes, "explain_work", work_causes, nearly_all=_INFINITE),),
    "veto: unconfirmed review": (
        Seam(StandingReview, "confirmed", lambda _own: lambda _self, found, *_args, **_named: found),
    ),
    "spike veto: a whole iteration, of one rank": _spike(most=0.1),
    "spike veto: rank 0": (Seam(single_spikes, "_is_chore", _always(False)),),
    "spike veto: rows lost": (Seam(single_spikes, "_may_be_loss", _always(False)),),
    "spike veto: 8 sigmas": _spike(sigmas=-_INFINITE),
    "spike veto: 3 transfers": _spike(repeated=0),
    "stray transfers": (Seam(LaneExcess, "is_stray", lambda _own: property(lambda _self: False)),),
    # Who is to blame
    "NIC rates": (Seam(investigation, "with_rates", _as_given), Seam(standing_review, "with_rates", _as_given)),
    "how slow lanes were": (
        Seam(SeenLanes, "observe", lambda own: lambda *args: {one: min(t, 1.0) for one, t in own(*args).items()}),
    ),
    "starved ranks": (Seam(transfer_causes, "_or_starved", _as_given),),
    "ranks of a host in turns": (Seam(work_causes, "_host_in_turns", _always(None)),),
    "long iterations weigh less": _search(twice=_INFINITE),
    "second and third cause": _everywhere(
        "find_causes", lambda own: lambda *given, **named: own(*given, **named)[:1]
    ),
    "like the one that was read": (Seam(Investigator, "_carry_over", _always(None)),),
    "odds of the first suspect times 3": (Seam(revision, "calibrated", lambda _own: tuple),),
}


@contextmanager
def switched_off(names: Iterable[str]) -> Iterator[None]:
    """Judge without some mechanisms, in this process and for as long as this lasts."""
    with ExitStack() as stack:
        for owner, name, instead in (seam for mechanism in names for seam in MECHANISMS[mechanism]):
            stack.enter_context(_at(owner, name, instead(vars(owner)[name])))
        yield


@contextmanager
def touched() -> Iterator[set[str]]:
    """Judge as always; fill in the mechanisms without which a function would have answered otherwise, even once."""
    found: set[str] = set()
    with ExitStack() as stack:
        for mechanism, seams in MECHANISMS.items():
            for owner, name, instead in seams:
                # Of a function that two mechanisms replace each probe wraps the one before.
                stack.enter_context(_at(owner, name, _probe(mechanism, vars(owner)[name], instead, found)))
        yield found


def _probe(mechanism: str, own: Any, instead: Callable[[Any], Any], found: set[str]) -> Any:
    if isinstance(own, property):
        return property(_probe(mechanism, own.fget, lambda one: instead(property(one)).fget, found))
    other = instead(own)

    def probe(*args: Any, **named: Any) -> Any:
        answer = own(*args, **named)
        if mechanism not in found and not _is_same(answer, other(*args, **named)):
            found.add(mechanism)
        return answer

    return probe


def _is_same(answer: Any, other: Any) -> bool:
    """Whether two answers are surely the same; a review that finds nothing is as none."""
    if isinstance(answer, tuple) and other is None:
        return not answer[0]
    plain = (bool, float, list, tuple, dict, set, frozenset, type(None), Suspicion, Cause, Explanation)
    try:
        return answer is other or (isinstance(answer, plain) and bool(answer == other))
    except ValueError:  # arrays in it, which may differ
        return False


@contextmanager
def _at(owner: Any, name: str, instead: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, instead)
    try:
        yield
    finally:
        setattr(owner, name, before)
