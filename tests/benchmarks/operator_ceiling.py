"""What any detector that sees one operator at a time could reach at best: an oracle that knows job and fault.

Whether an operator is abnormal depends on the luck of its run, which nobody sees. The oracle runs the same iteration
of the same job with the same fault many times with other luck, with the fault and without, and so knows how probable
it is that an operator which took so long is abnormal. A detector knows less: it has to guess fault and job.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from irregulars.producers.simulator.effects import Effects, Faults
from irregulars.producers.simulator.engine import Engine, Run
from tests.benchmarks.incidents import abnormal_operators
from tests.benchmarks.operator_cases import LEAST_DELTA, Case, find_strength

_DRAWS = 150
_PER_WINDOW = 2
_OTHER_SEEDS = 900_000
_WIDTH = 0.3  # of the kernel over log elapsed, in standard deviations
_LEAST_WIDTH = 1e-3


def ceiling_of_case(case: Case, *, most_ranks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for some irregular operators whether they are abnormal, and what two oracles say of them.

    Returns
    -------
    One bool per operator; its probability to be abnormal given fault, job and its own elapsed; and the ratio of what
    it is expected to take with the fault and without (medians).
    """
    parts = list(_oracles(case, most_ranks))
    if not parts:
        return np.zeros(0, dtype=np.bool_), np.zeros(0), np.zeros(0)
    truth, probability, ratio = (np.concatenate(part) for part in zip(*parts, strict=True))
    return truth, probability, ratio


def _oracles(case: Case, most_ranks: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    healthy = case.healthy()
    fault = find_strength(case, healthy)
    engine = Engine(healthy)
    acting = dict(enumerate(replace(fault, first=a, past=b) for a, b in case.windows()))
    faults = Faults(engine.topology, engine.network, acting)
    chosen = {int(at) for a, b in case.windows() for at in np.linspace(a, b - 1, _PER_WINDOW)}
    ranks = np.random.default_rng([case.seed, 5]).permutation(healthy.world_size)[:most_ranks]
    for iteration in range(case.iterations):
        ready_ns = engine._ready_ns.copy()
        twin = engine.advance()
        if iteration not in chosen:
            continue
        effects = faults.effects(iteration)
        run = engine.run(iteration, ready_ns, effects)
        if run.elapsed_ns >= LEAST_DELTA * twin.elapsed_ns:
            rows = np.flatnonzero(np.isin(run.plan.step_rank[run.plan.rows.step], ranks))
            yield _judge(engine, run, twin, effects, ready_ns, rows)


def _judge(
    engine: Engine, run: Run, twin: Run, effects: Effects, ready_ns: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    other = copy.copy(engine)
    without, with_fault = np.empty((2, _DRAWS, len(rows)))
    for draw in range(_DRAWS):
        other.settings = replace(engine.settings, seed=_OTHER_SEEDS + draw)
        without[draw] = _elapsed_ns(other.run(run.iteration, ready_ns))[rows]
        with_fault[draw] = _elapsed_ns(other.run(run.iteration, ready_ns, effects))[rows]
    values, seen = np.log(np.maximum(with_fault, 1.0)), np.log(np.maximum(_elapsed_ns(run)[rows], 1.0))
    width = _WIDTH * values.std(axis=0) + _LEAST_WIDTH
    weights = np.exp(-0.5 * np.clip((values - seen) / width, -8.0, 8.0) ** 2)
    probability = (weights * (with_fault > 1.1 * without)).sum(axis=0) / weights.sum(axis=0)
    expected = np.median(with_fault, axis=0) / np.maximum(np.median(without, axis=0), 1.0)
    return abnormal_operators(run, twin)[rows], probability, expected


def _elapsed_ns(run: Run) -> np.ndarray:
    step = run.plan.rows.step
    return np.asarray(run.departure_ns[step] - run.arrival_ns[step])
