"""Runs jobs with and without their fault, and finds the strength at which a fault costs what was drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tests.benchmarks.independent.closed_form.arrays import Floats
from tests.benchmarks.independent.closed_form.engine import Engine, Rows
from tests.benchmarks.independent.closed_form.operations import Compute, Operation, World
from tests.benchmarks.independent.closed_form.program import Program
from tests.benchmarks.independent.closed_form.scenario import Fault

MOST = {"network": 60.0, "replica": 4.0}  # strength; 5 in other modes
FIRST_GUESS = {"clock": 1.2, "stage": 1.2, "loader": 1, "cpu": 1, "replica": 1, "network": 8}


class Iteration(NamedTuple):
    """When an iteration began and how long it took, by (stage, lane), and whether it trained."""

    begin: Floats
    took: Floats
    phase: str


@dataclass
class Run:
    """All iterations of a job; its rows may have some of before the first."""

    fault: Fault | None
    history: list[Rows] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)

    def times(self) -> Floats:
        """How long each iteration took its slowest rank."""
        return np.array([iteration.took.max() for iteration in self.iterations])


@dataclass
class Job:
    """What is run: an engine, a program for each phase, and when ranks begin."""

    engine: Engine
    programs: dict[str, Program]
    iterations: int
    clock: Floats

    def set_up(self, pace: float) -> Rows:
        """Broadcast of the parameters and a barrier before the first iteration; rows without iteration."""
        stages: list[list[Operation]] = [
            [Compute(0.3 * pace), World("broadcast", 1 << 20), World("barrier", 0)]
            for _ in range(self.engine.layout.pp)
        ]
        rows, self.clock, _ = self.engine.run(Program(self.engine.layout, stages, {}), 0, self.clock)
        rows.iteration = None
        return rows

    def run(self, fault: Fault | None = None, twin: Run | None = None) -> Run:
        """All iterations; those before the fault are taken over from the twin (they are the same)."""
        run, clock, first = Run(fault), self.clock, 0
        if fault is not None and twin is not None and fault.iterations[0]:
            first = fault.iterations[0]
            run.history, run.iterations = twin.history[:first], twin.iterations[:first]
            clock = twin.iterations[first].begin
        for i in range(first, self.iterations):
            phase = self.engine.scenario.phase[i]
            rows, after, took = self.engine.run(self.programs[phase], i, clock, fault)
            run.history.append(rows)
            run.iterations.append(Iteration(clock, took, phase))
            clock = after
            if not np.isfinite(took).all():
                break
        return run

    def calibrate(self, fault: Fault, twin: Run, pace: float) -> None:
        """Give the fault the strength at which its effect is what was drawn, or as near as it gets."""
        # A few training iterations that the fault is on in.
        on = np.flatnonzero(fault.active).tolist()
        training = [i for i in on if self.engine.scenario.phase[i] == "train"]
        count = 10 if fault.mode == "replica" else 4
        some = training[:: max(1, len(training) // count)][:count] or on[:1]
        usual = float(sum(twin.times()[i] for i in some))
        computes = float(np.mean([len(work) for work in self.programs["train"].compute_work]))

        def effect(strength: float) -> float:
            """Duration of these iterations with a fault of that strength, over the twin's."""
            self.engine.forget_fault()
            fault.apply(strength, self.engine.fabric, pace, computes)
            runs = (self.engine.run(self.programs["train"], i, twin.iterations[i].begin, fault) for i in some)
            return sum(float(outcome.took.max()) for outcome in runs) / usual

        most = MOST.get(fault.mode, 5.0)
        low, high = 0.0, np.inf
        strength = min(max(FIRST_GUESS[fault.mode] * (fault.target - 1), 0.02), most)
        best = (np.inf, strength)
        for _ in range(9):
            reached = effect(strength)
            best = min(best, (abs(reached - fault.target), strength))
            if best[0] < 0.1 * (fault.target - 1) or (reached < fault.target and strength >= most):
                break
            if reached < fault.target:
                low = strength
            else:
                high = strength
            guess = strength * float(np.clip((fault.target - 1) / max(reached - 1, 0.01), 0.2, 6))
            if np.isfinite(high):  # between the bounds, not too near to either
                guess = float(np.clip(guess, low + 0.1 * (high - low), high - 0.1 * (high - low)))
            strength = min(guess, most)
        self.engine.forget_fault()
        fault.apply(best[1], self.engine.fabric, pace, computes)
