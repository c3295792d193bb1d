"""Why a recording without a verdict could not be judged at all: that is another thing than "nobody is to blame"."""

from __future__ import annotations

from collections.abc import Sequence

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.verdicts.thresholds import VERDICTS
from irregulars.messages.judgements import JudgedIteration
from irregulars.messages.records import UNKNOWN
from irregulars.producers.trace.directory import Trace
from irregulars.words import name_ranks


def why_unjudged(trace: Trace, iterations: Sequence[JudgedIteration]) -> str | None:
    """Return why nobody can say who is to blame, in a trace that gave no verdict; None where nobody is.

    Returns
    -------
    str
        A clause that follows "because", without a stop.
    """
    if not iterations:
        return _why_no_iterations(trace)
    if trace.commops and not _have_lengths(trace):
        return (
            "nothing tells how long its operators took: such a log tells hangs alone. (clog's times can be used on "
            "gloo, where calls block, and not where a watchdog looks at the GPU)"
        )
    if not any(one.elapsed_ns > 0 for one in iterations):
        return (
            "its operators have no start times, and no times of iterations are logged: how long an iteration took is "
            "not known. (NCCL Inspector writes start times with NCCL_INSPECTOR_DUMP_VERBOSE=1)"
        )
    judged = [one for one in iterations if one.is_irregular is not None]
    if not judged:
        return _why_none_judged(iterations)
    irregular = [one.iteration for one in judged if one.is_irregular]
    if not trace.commops:
        return f"{_some(irregular)} and there are no operators to tell why" if irregular else None
    if irregular and not _have_starts(trace):
        return f"{_some(irregular)} and its operators have no start times: who waited for whom is not known"
    if len(trace.commops) == 1 and trace.world_size > 1:
        return _why_one_rank(trace, irregular)
    if len(irregular) >= VERDICTS.seen and len(trace.commops) < trace.world_size:
        return _why_some_ranks(trace, irregular)
    return None


def _why_no_iterations(trace: Trace) -> str:
    if trace.commops:
        return "no iterations are marked, and its operators show no period that would tell them"
    if trace.bandwidth:
        return "there are no operators, and no iterations are known"
    return "there are neither operators nor iterations in it"


def _why_none_judged(iterations: Sequence[JudgedIteration]) -> str:
    trained = [one for one in iterations if one.phase == "train"]
    if not trained:
        return "all of its iterations are evaluations or checkpoints"
    count = "1 training iteration is" if len(trained) == 1 else f"{len(trained)} training iterations are"
    least = IRREGULAR.min_iterations
    return f"{count} too few: what is usual is known after {least}. Record {2 * least} or more"


def _some(irregular: Sequence[int]) -> str:
    if len(irregular) == 1:
        return f"iteration {irregular[0]} was irregular,"
    return f"{len(irregular)} iterations were irregular,"


def _have_starts(trace: Trace) -> bool:
    return any((batch.columns["start_ns"] != UNKNOWN).any() for batch in trace.commops.values())


def _have_lengths(trace: Trace) -> bool:
    return any((batch.columns["elapsed_ns"] > 0).any() for batch in trace.commops.values())


def _why_one_rank(trace: Trace, irregular: Sequence[int]) -> str:
    (rank,) = trace.commops
    seen = _some(irregular) if irregular else "no iteration was longer than those before it,"
    why = "it has no peers to compare with, and what it waited for may be a slow transfer or a late rank"
    return f"{seen} and of {trace.world_size} ranks only rank {rank} is logged: {why}"


def _why_some_ranks(trace: Trace, irregular: Sequence[int]) -> str:
    lacking = sorted(set(range(trace.world_size)) - trace.commops.keys())
    is_one = len(lacking) == 1
    why = f"{'it' if is_one else 'one of them'} may have been late, and its log is needed"
    return f"{_some(irregular)} and {name_ranks(lacking)} {'is' if is_one else 'are'} not logged: {why}"
