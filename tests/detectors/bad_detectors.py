"""One deliberately bad detector per check: each makes a mistake that is easy to make, and must be rejected for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from irregulars.detectors.plugins.baseline import RobustBaseline
from irregulars.detectors.plugins.peers import PeerDeviation
from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores


class LogWork:
    """log work against an exponential mean per rank: right, and the ground on which mistakes are made below."""

    level: ClassVar[Level] = "rank"
    against: ClassVar[Against] = "past"
    reads: ClassVar[tuple[str, ...]] = ("rank", "work_ns")

    def __init__(self) -> None:
        self.means: dict[int, float] = {}

    def values(self, frame: Frame) -> list[tuple[int, float]]:
        return list(zip(frame["rank"].tolist(), np.log(frame["work_ns"]).tolist(), strict=True))

    def score(self, frame: Frame) -> Scores:
        return np.array(
            [value - self.means.get(rank, np.nan) for rank, value in self.values(frame)], dtype=np.float64
        )

    def learn(self, frame: Frame) -> None:
        for rank, value in self.values(frame):
            if np.isfinite(value):
                self.means[rank] = self.update(self.means.get(rank, value), value)
        self.forget(set(frame["rank"].tolist()))

    def update(self, mean: float, value: float) -> float:
        return 0.9 * mean + 0.1 * value

    def forget(self, seen: set[int]) -> None:
        if len(self.means) > 1024:
            self.means = dict(list(self.means.items())[-1024:])


class ReadsTheUnknown(PeerDeviation):
    reads = ("work_ns", "temperature")


class HalfPrecision(PeerDeviation):
    def score(self, frame: Frame) -> Scores:
        return super().score(frame).astype(np.float32)  # type: ignore[return-value]


class RaisesWhileCold(LogWork):
    def score(self, frame: Frame) -> Scores:
        if not self.means and len(frame["rank"]):
            np.nanargmax(frame["work_ns"])  # raises where all is NaN
        return super().score(frame)


class AsksTheGlobalDice(PeerDeviation):
    def __init__(self) -> None:
        super().__init__()
        self.tilt = np.random.random()

    def score(self, frame: Frame) -> Scores:
        return super().score(frame) + self.tilt


class LearnsWhileScoring(LogWork):
    def score(self, frame: Frame) -> Scores:
        self.learn(frame)
        return super().score(frame)


class KeepsTheNan(LogWork):
    def learn(self, frame: Frame) -> None:
        for rank, value in self.values(frame):
            self.means[rank] = self.update(self.means.get(rank, value), value)
        self.forget(set())


class BelievesInNumbers(PeerDeviation):
    reads = ("work_ns", "stage", "rank")

    def score(self, frame: Frame) -> Scores:
        return super().score(frame) + 1e-3 * frame["rank"]


class ForgetsTheAbsent(LogWork):
    def forget(self, seen: set[int]) -> None:
        self.means = {rank: mean for rank, mean in self.means.items() if rank in seen}


class KeepsTheFrame(PeerDeviation):
    def __init__(self) -> None:
        super().__init__()
        self.last: np.ndarray = np.ones(1)

    def score(self, frame: Frame) -> Scores:
        return super().score(frame) + 1e-3 * np.log(np.median(self.last))

    def learn(self, frame: Frame) -> None:
        if np.isfinite(frame["work_ns"]).all() and len(frame["work_ns"]):
            self.last = frame["work_ns"]


class LosesItsState(LogWork):
    def __getstate__(self) -> dict[str, Any]:
        return {"means": {}}


class KeepsEverything(PeerDeviation):
    def __init__(self) -> None:
        super().__init__()
        self.past: list[np.ndarray] = []

    def learn(self, frame: Frame) -> None:
        self.past.append(frame["work_ns"].copy())


class RemembersEveryName(RobustBaseline):
    def __init__(self) -> None:
        super().__init__(most_classes=10**9)
        self.names: set[tuple[int, int]] = set()

    def learn(self, frame: Frame) -> None:
        super().learn(frame)
        self.names.update((communicator, n) for communicator in frame["communicator"].tolist() for n in range(64))


class OnlySaysAbove(PeerDeviation):
    def score(self, frame: Frame) -> Scores:
        scores = super().score(frame)
        return np.where(np.isnan(scores), np.nan, np.sign(scores))


class NeverForgetsTheWorst(LogWork):
    def update(self, mean: float, value: float) -> float:
        return max(mean, value)


class CallsAllStrange(PeerDeviation):
    strange_from = 0.5


class NamesItselfInWords(PeerDeviation):
    name = "my best detector"


class StoresTooLittle(LogWork):
    def state(self) -> dict[str, Any]:
        return {"ranks": list(self.means)}

    def restore(self, state: dict[str, Any]) -> None:
        self.means = dict.fromkeys(state["ranks"], 18.0)


class StoresItself(PeerDeviation):
    def state(self) -> dict[str, Any]:
        return {"me": self}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class TakesNothing(PeerDeviation):
    def state(self) -> dict[str, Any]:
        return {}


class ExplainsAtLength(PeerDeviation):
    def explain(self, frame: Frame, row: int) -> str:
        return "it all began\nwhen I was young"


class Dawdles(PeerDeviation):
    def score(self, frame: Frame) -> Scores:
        if len(frame["work_ns"]) >= 1024:
            busy_until_s = time.thread_time() + 0.06
            while time.thread_time() < busy_until_s:
                pass
        return super().score(frame)


BAD_DETECTORS: list[tuple[str, Callable[[], Any], str]] = [
    ("declaration", ReadsTheUnknown, r"reads must be columns of level rank .*; got \['temperature'\]"),
    ("one_float64_per_row", HalfPrecision, r"got float32 of shape \(48,\) for 48 rows"),
    ("cold", RaisesWhileCold, "must not raise; got ValueError: All-NaN slice"),
    (
        "same_seed_same_scores",
        AsksTheGlobalDice,
        "scores must stay the same from two detectors made and taught alike",
    ),
    ("score_changes_nothing", LearnsWhileScoring, "after another 6 calls of score per frame; got .* rows differ"),
    ("one_nan_never_poisons", KeepsTheNan, "must stay finite; got NaN for 48 of 48 rows"),
    ("renaming", BelievesInNumbers, "must stay the same with ranks renamed"),
    ("ranks_come_and_go", ForgetsTheAbsent, "while others come and go; got 0 of 48"),
    ("no_aliasing", KeepsTheFrame, "after the arrays of learned frames were used for something else"),
    ("pickle_round_trip", LosesItsState, "after a pickle round trip"),
    ("bounded_state", KeepsEverything, r"must not grow with iterations; got \d+ bytes after 60, \d+ after 300"),
    ("bounded_state", RemembersEveryName, r"state must forget; got \d+ bytes after 150 sets of names"),
    ("quiet_on_healthy_noise", OnlySaysAbove, r"got \d+ of 100 at or above it"),
    ("scale", CallsAllStrange, r"must score below strange_from = 0\.5; got \d+ of 100"),
    ("recovers_after_a_fault", NeverForgetsTheWorst, r"100 healthy frames after a fault of 20; got \d+ of 100"),
    ("declaration", NamesItselfInWords, "name must match .*; got 'my best detector'"),
    ("state", StoresTooLittle, "must stay the same after a restart from its state"),
    ("state", StoresItself, "state of a detector must be a mapping of plain values .*; got StoresItself"),
    ("state", TakesNothing, "must have state and restore, or neither; got state alone"),
    ("explanation", ExplainsAtLength, r"must be one line of text; got 'it all began\\nwhen"),
    ("time_budget", Dawdles, r"1,024 rows must take at most 50 ms; got \d+"),
]
"""Name of the check that must reject it, the detector, and what the message says."""


class FewTokens:
    """Scores 2 for a rank with under half of the median's tokens or over twice as many, else 0; NaN: not known."""

    level: ClassVar[Level] = "rank"
    against: ClassVar[Against] = "peers"
    reads: ClassVar[tuple[str, ...]] = ("rank", "tokens")
    opens_verdicts: ClassVar[bool] = True

    def __init__(self) -> None:
        self.learned = 0

    def score(self, frame: Frame) -> Scores:
        tokens = frame["tokens"]
        usual = np.median(tokens) if len(tokens) else np.nan
        is_odd = (tokens < usual / 2) | (tokens > usual * 2)
        return np.where(np.isnan(tokens), np.nan, np.where(is_odd, 2.0, 0.0))

    def learn(self, frame: Frame) -> None:
        self.learned += 1

    def explain(self, frame: Frame, row: int) -> str:
        return f"{frame['tokens'][row]:.0f} tokens, the others {np.median(frame['tokens']):.0f}"

    def state(self) -> dict[str, Any]:
        return {"learned": self.learned}

    def restore(self, state: dict[str, Any]) -> None:
        self.learned = int(state["learned"])
