"""The truth about a simulated job, in the form of a recording's ``label.json``.

Find the strength of a fault with which the mean iteration gets longer by the wanted share.

Tried out on the job itself: iterations in the range of the fault are run with it, each from where the healthy run
began it, and the strength is searched by false position. The time of an iteration is a maximum of sums in which the
strength enters at most linearly, and so grows with it, slowly at first (the rank was not the last one) and then
evenly: a few steps suffice. First on two iterations, then on all that act, so that noise has its part in both.
Iterations in which the job compiles and warms up are left out: they are many times as long, and a fault hides there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from irregulars.dtypes import Floats
from irregulars.errors import InputError
from irregulars.messages.kinds import device_kind
from irregulars.producers.simulator.effects import Faults, check_place, fault_ranks
from irregulars.producers.simulator.engine import Engine, Run
from irregulars.producers.simulator.faults import FAULT_KINDS, Fault
from irregulars.producers.simulator.settings import NS_PER_S, RECORDED_START_NS, SimulatorSettings
from irregulars.producers.simulator.topology import Topology

# The excess that is reached differs from the one that is wanted by at most this part of it, or nearly so.
TOLERANCE_RATIO: Final = 0.02
# Steps of the search, and of the bracket before it, until it gives up.
_MOST_TRIALS: Final = 24
_MOST_STEPS: Final = 12
_HASTE: Final = 1.5  # the more often the bracket was too small, the faster it grows
_COLD_STEP: Final = 2.0
_WARM_STEP: Final = 1.1
# A longer range is sampled evenly; small jobs, whose iterations differ most, can afford more.
_FEWEST_ITERATIONS, _MOST_ITERATIONS, _SAMPLED_STEPS = 24, 64, 5_000_000
_FIRST_GUESS: Final = {"factor": 0.5, "add_ms": 10.0, "spread": 0.1}


def fit(engine: Engine, healthy: Callable[[int], Run], fault: Fault, number: int) -> Fault:
    """Return the fault with the strength that gives its `excess`, or as it is if it has a strength.

    `engine`: of the healthy job. `healthy`: returns an iteration of it. `number`: place of the fault among those of
    the job, on which its random draws depend. Raises InputError if it does not fit the cluster, acts in no iteration,
    or no strength gives the excess.
    """
    check_place(fault, engine.topology, engine.network)
    if fault.is_calibrated:
        return fault
    first, past = fault.iterations(engine.settings.iterations)
    warm_from = engine.settings.warm_from
    sample_size = min(max(_SAMPLED_STEPS // len(engine.plan.step_rank), _FEWEST_ITERATIONS), _MOST_ITERATIONS)
    active = _spread(range(max(first, warm_from) if warm_from < past else first, past), sample_size)
    if not active:
        span = f"{first} to {past}"
        raise InputError(f"excess must be wanted of iterations that are run; got {span} (fault {fault.kind})")

    def excess(iterations: Sequence[int], strength: float) -> float:
        """Mean excess of these iterations at a strength, over the same iterations without any fault."""
        faults = Faults(engine.topology, engine.network, {number: fault.with_strength(strength)})
        usual_ns = sum(healthy(n).elapsed_ns for n in iterations)
        slow_ns = sum(engine.run(n, healthy(n).start_ns, faults.effects(n)).elapsed_ns for n in iterations)
        return slow_ns / usual_ns - 1

    strength = _FIRST_GUESS[fault.by]
    for iterations, step in ((_spread(active, 2), _COLD_STEP), (active, _WARM_STEP)):
        strength = _solve(partial(excess, iterations), fault.excess, strength, step, fault)
    return fault.with_strength(strength)


def calibrated(settings: SimulatorSettings) -> SimulatorSettings:
    """Return settings in which each fault has a strength. Each is calibrated alone, on the job without any fault."""
    if all(fault.is_calibrated for fault in settings.faults):
        return settings
    engine = Engine(replace(settings, faults=()))
    runs: list[Run] = []

    def healthy(iteration: int) -> Run:
        while len(runs) <= iteration:
            runs.append(engine.advance())
        return runs[iteration]

    fitted = tuple(fit(engine, healthy, fault, number) for number, fault in enumerate(settings.faults))
    return replace(settings, faults=fitted)


def _solve(excess_at: Callable[[float], float], wanted: float, guess: float, step: float, fault: Fault) -> float:
    """Solve for a strength: Illinois form of false position on a growing function, from a guess and its error."""
    near = TOLERANCE_RATIO * wanted
    (low, low_miss), (high, high_miss) = _bracket(lambda at: excess_at(at) - wanted, guess, step, near, fault)
    found, miss = (low, low_miss) if abs(low_miss) < abs(high_miss) else (high, high_miss)
    side = 0
    for _ in range(_MOST_TRIALS if abs(miss) > near else 0):
        found = (low * high_miss - high * low_miss) / (high_miss - low_miss)
        miss = excess_at(found) - wanted
        if abs(miss) <= near:
            break
        if miss > 0:
            # Illinois: an end that stays twice has its error halved, or it would stay for good.
            high, high_miss, low_miss, side = found, miss, low_miss / 2 if side > 0 else low_miss, 1
        else:
            low, low_miss, high_miss, side = found, miss, high_miss / 2 if side < 0 else high_miss, -1
    return found


def _bracket(
    miss_at: Callable[[float], float], guess: float, step: float, near: float, fault: Fault
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return two strengths, one too small and one large enough; twice the same if it is near enough."""
    at, miss = guess, miss_at(guess)
    grow = step if miss < 0 else 1 / step
    for _ in range(_MOST_STEPS):
        if abs(miss) <= near:
            return (at, miss), (at, miss)
        other = at * grow
        other_miss = miss_at(other)
        if (miss < 0) != (other_miss < 0):
            return ((at, miss), (other, other_miss)) if miss < 0 else ((other, other_miss), (at, miss))
        at, miss, grow = other, other_miss, grow**_HASTE
    rule = f"excess must be one that {fault.kind} can cause"
    raise InputError(f"{rule}; got {fault.excess!r} (not reached with {fault.by} at {at:.3g})")


def _spread(iterations: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the iterations, evenly.

    >>> _spread(range(10), 3)
    [0, 4, 9]
    """
    count = len(iterations)
    if count <= most:
        return list(iterations)
    return [iterations[round(n * (count - 1) / (most - 1))] for n in range(most)]


# Of normal noise: the median of |x - y| of two values is 0.954 of its standard deviation.
_STD_OF_MEDIAN_STEP: Final = 1 / 0.954


@dataclass(frozen=True, slots=True)
class Truth:
    """A job with the strengths of its faults, and their effect."""

    settings: SimulatorSettings
    label: dict[str, Any]  # see `label_of`
    # Of a job that starts at `RECORDED_START_NS`: when recording ends, ns since the epoch; None if it does not hang
    recorded_until_ns: int | None = None


def measure(settings: SimulatorSettings) -> Truth:
    """Run a job twice, with and without its faults, and return the faults and their effect.

    Raises InputError if a fault does not fit the cluster, or can't cause the excess that is wanted.
    """
    settings = calibrated(settings)
    topology = Topology(settings)
    if not settings.faults:
        return Truth(settings, label_of(settings, topology, np.empty(0), np.empty(0)))
    measured_s, hung_ns = _run(settings)
    healthy_s, _ = _run(replace(settings, faults=()))
    label = label_of(settings, topology, healthy_s[: len(measured_s)], measured_s)
    if hung_ns is None:
        return Truth(settings, label)
    return Truth(settings, label, RECORDED_START_NS + round(hung_ns + settings.recorded_after_hang_s * NS_PER_S))


def label_of(
    settings: SimulatorSettings, topology: Topology, healthy_s: Floats, measured_s: Floats
) -> dict[str, Any]:
    """Describe the faults and their effect.

    Returns the keys of a recording's label for the first fault; ``faults`` has the same for each of them, with
    ``excess_ratio``: by how much the iterations in its range took longer than in the same run without any fault,
    those left out in which the job warms up. ``hard``: that is less than the spread of healthy iterations.
    """
    further = {axis: getattr(settings, axis) for axis in ("cp", "ep", "shards") if getattr(settings, axis) > 1}
    dims = {"dp": settings.dp, "pp": settings.pp, "tp": settings.tp} | further
    common = {"world_size": settings.world_size, "dims": dims}
    if not settings.faults:
        empty = dict.fromkeys(("rank", "peer", "communicator", "switch"))
        return {"kind": "none", **empty, "ranks": [], "iterations": [0, 0], "hard": False} | common
    warm_from = settings.warm_from
    measured = (_measured(fault, healthy_s, measured_s, warm_from) for fault in settings.faults)
    found = [_described(fault, topology) | own for fault, own in zip(settings.faults, measured, strict=True)]
    return found[0] | common | {"faults": found}


def _described(fault: Fault, topology: Topology) -> dict[str, Any]:
    ranks = fault_ranks(fault, topology).tolist()
    kind = FAULT_KINDS[fault.kind]
    # The smallest communicator that both ends of a link are in: the one whose transfers it carries.
    shared = (
        [one for one in topology.groups.communicators if set(ranks) <= set(one.ranks)]
        if device_kind(kind.device).is_way
        else []
    )
    return {
        "kind": kind.verdict, "rank": ranks[0] if ranks else None, "peer": fault.peer, "ranks": ranks,
        "communicator": min(shared, key=lambda one: len(one.ranks)).id if shared else None,
        "switch": topology.name_of("switch", topology.find("switch", fault.switch)) if fault.switch else None,
        "iterations": list(fault.iterations(topology.settings.iterations)), "fault": fault.kind, "shape": fault.shape,
        "factor": fault.factor, "add_ms": fault.add_ms, "spread": fault.spread,
        "wanted_excess_ratio": fault.excess or None,
    }  # fmt: skip


def _measured(fault: Fault, healthy_s: Floats, measured_s: Floats, warm_from: int) -> dict[str, Any]:
    first, past = fault.iterations(len(healthy_s))
    span = slice(max(first, warm_from) if warm_from < past else first, past)
    if fault.kind == "hang":
        return {"iterations": [fault.first, fault.first + 1], "excess_ratio": None, "hard": False}
    # Nothing to compare: the job ends before the fault acts, or hangs before its range is over.
    if not (len(healthy_s[span]) and np.isfinite(measured_s[span]).all()):
        return {"excess_ratio": 0.0, "hard": True}
    excess = float(measured_s[span].mean() / healthy_s[span].mean() - 1)
    # Spread of healthy iterations from one to the next: neither a drift nor a few long ones are part of it.
    steps_s = np.abs(np.diff(healthy_s))
    noise_ratio = float(_STD_OF_MEDIAN_STEP * np.median(steps_s) / np.median(healthy_s)) if len(steps_s) else 0.0
    return {"excess_ratio": excess, "hard": excess < noise_ratio}


def _run(settings: SimulatorSettings) -> tuple[Floats, float | None]:
    """Times of the iterations, and when the job hung."""
    engine, times_s = Engine(settings), []
    while engine.iteration < settings.iterations:
        run = engine.advance()
        times_s.append(run.elapsed_ns / NS_PER_S)
        if run.is_hung:
            return np.array(times_s), run.last_ns
    return np.array(times_s), None
