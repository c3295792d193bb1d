"""Train the forest that ships with us, on simulated jobs: ``python -m tests.benchmarks.train_operator_forest``.

An operator is truly abnormal if it takes more than 1.1 times what the same operator takes in the run without the
fault. Both runs draw the same noise, since the simulator's randomness comes from the seed alone. Who waits for a late
rank is abnormal too; the late rank's own operators get shorter. `bench_operators` measures on such jobs too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from irregulars.detectors.arrays.runs import starts_of
from irregulars.detectors.plugins.forest.features import FEATURES, FeatureRows, OperatorFeatures
from irregulars.detectors.plugins.forest.random_forest import MODEL, Trees, save_trees
from irregulars.dtypes import Flags, Floats
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.faults import Fault
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import Simulation

ABNORMAL_RATIO = 1.1
LEAST_DELTA = 1.04
"""Below it ordinary fluctuation swamps an irregular iteration (Holmes): nobody would look at its operators."""

EXCESSES = (0.05, 0.10, 0.20, 0.50, 1.00)
KINDS = ("slow_rank", "slow_host", "slow_nic", "slow_link")
SHAPES = ("lasting", "fluctuating", "spike")
FIRST_FAULT = 48  # iterations for the past to fill

_FIELDS = ("communicator", "operator", "peer", "sequence", "size_bytes", "elapsed_ns", "iteration")
_KEY = ("communicator", "operator", "peer", "sequence")
_FAULT_LENGTH = {"lasting": 10, "fluctuating": 10, "spike": 1}


@dataclass(frozen=True, slots=True)
class Case:
    """One job: its shape, seed and fault."""

    shape_of_job: tuple[int, int, int, int]  # dp, pp, tp, micro-batches
    seed: int
    kind: str
    shape: str
    excess_ratio: float
    drift_ratio: float = 0.0
    iterations: int = 96
    is_untidy: bool = False
    step_ratio: float = 0.0  # at once, between the first time that the fault acts and the second

    def healthy(self) -> SimulatorSettings:
        """The job without the fault, of unequal ranks, hosts and data if it is untidy."""
        return replace(self._plain(), **self._untidiness()) if self.is_untidy else self._plain()

    def _plain(self) -> SimulatorSettings:
        """Speed, sizes and wiring follow from the seed; noise and spikes are the simulator's defaults."""
        rng = np.random.default_rng([self.seed, 77])
        dp, pp, tp, micro_batches = self.shape_of_job
        forward_ms = float(rng.uniform(1.5, 9.0))
        return SimulatorSettings(
            dp=dp, pp=pp, tp=tp, micro_batches=micro_batches, seed=self.seed, iterations=self.iterations,
            gpus_per_host=int(rng.choice([4, 8])), forward_ms=forward_ms, backward_ms=2 * forward_ms,
            data_loading_ms=float(rng.uniform(1, 4)), optimizer_ms=float(rng.uniform(2, 8)),
            activation_bytes=int(rng.choice([8, 16, 32])) << 20,
            gradient_bytes=int(rng.choice([128, 256, 512])) << 20,
            gradient_sync=str(rng.choice(["sharded", "all_reduce"])), gradient_buckets=int(rng.choice([1, 4])),
            is_send_buffered=bool(rng.integers(2)), drift_ratio=self.drift_ratio, bandwidth_period_ms=0.0,
            workload_changes=((self.iterations * 2 // 5, 1 + self.step_ratio),) if self.step_ratio else (),
        )  # fmt: skip

    def _untidiness(self) -> dict[str, Any]:
        rng = np.random.default_rng([self.seed, 78])
        return {
            "rank_spread_ratio": float(rng.uniform(0, 0.02)),
            "micro_batch_spread_ratio": float(rng.choice([0, 0.03])),
            "host_slow_probability": float(rng.choice([0, 0.01])),
            "stalls_per_iteration": float(rng.choice([0, 0.05])),
            "is_gradient_overlapped": bool(rng.integers(2)), "has_data_broadcast": bool(rng.integers(2)),
            "has_loss_reduction": bool(rng.integers(2)), "loss_ratio": float(rng.choice([0, 0.003])),
        }  # fmt: skip

    def windows(self) -> list[tuple[int, int]]:
        """When the fault acts: early, in the middle and late, so that drift has its time between."""
        length = _FAULT_LENGTH[self.shape]
        last = self.iterations - length
        firsts = np.linspace(FIRST_FAULT, last, 3 if self.iterations >= FIRST_FAULT + 4 * length else 1)
        return [(int(first), int(first) + length) for first in firsts]


def shapes_of_faults(seed: int, count: int, jobs: tuple[tuple[int, int, int, int], ...], **more: Any) -> list[Case]:
    """Return cases with kinds, shapes and excesses in equal shares, and jobs in turn."""
    pairs = list(product(EXCESSES, KINDS, SHAPES))
    order = np.random.default_rng(seed).permutation(len(pairs))
    cases = []
    for number in range(count):
        excess_ratio, kind, shape = pairs[order[number % len(pairs)]]
        cases.append(Case(jobs[number % len(jobs)], seed + number, kind, shape, excess_ratio, **more))
    return cases


@dataclass(frozen=True, slots=True)
class Example:
    """A frame of one rank and what is true of it. ``is_irregular`` is None where the fault acts without effect."""

    rank: int
    iteration: int
    frame: dict[str, np.ndarray]
    is_abnormal: np.ndarray
    is_irregular: bool | None


class Recorded(NamedTuple):
    """One job that has run: operators per rank in the order of their starts, and the job's iterations.

    ``starts_ns`` says when each rank began each iteration, ``times_ns`` how long the job's iterations took.
    """

    operators: dict[int, dict[str, np.ndarray]]
    starts_ns: dict[tuple[int, int], int]
    times_ns: np.ndarray


@dataclass(frozen=True, slots=True)
class CaseRun:
    case: Case
    world_size: int
    with_fault: Recorded
    without: Recorded

    def ranks(self, most: int) -> list[int]:
        """Return the ranks to look at: of more than `most` a random choice."""
        rng = np.random.default_rng([self.case.seed, 5])
        return sorted(rng.permutation(self.world_size)[:most].tolist())

    def is_irregular(self, iteration: int) -> bool | None:
        """Whether the fault shows in an iteration; None: it acts, and changes next to nothing."""
        if not any(first <= iteration < past for first, past in self.case.windows()):
            return False
        delta = self.with_fault.times_ns[iteration] / self.without.times_ns[iteration]
        return True if delta >= LEAST_DELTA else None


def simulate_case(case: Case) -> CaseRun:
    healthy = case.healthy()
    fault = find_strength(case, healthy)
    faulty = replace(healthy, faults=tuple(replace(fault, first=a, past=b) for a, b in case.windows()))
    return CaseRun(case, healthy.world_size, _run(faulty), _run(healthy))


def run_case(case: Case, *, most_ranks: int = 32) -> Iterator[list[Example]]:
    """Yield the frames of each rank, in the order of iterations; of more than `most_ranks` a random choice."""
    yield from examples_of(simulate_case(case), most_ranks=most_ranks)


def examples_of(run: CaseRun, *, most_ranks: int) -> Iterator[list[Example]]:
    for rank in run.ranks(most_ranks):
        yield list(_examples(run, rank))


def find_strength(case: Case, healthy: SimulatorSettings) -> Fault:
    """Search the fault's strength that makes an iteration `excess_ratio` longer; its place follows from the seed."""
    fault = _place(case, healthy)
    short = replace(healthy, iterations=4, drift_ratio=0.0)
    usual = _run(short).times_ns
    low, high = 1e-3, 2e3
    for _ in range(12):
        middle = float(np.sqrt(low * high))
        times = _run(replace(short, faults=(replace(_strengthen(fault, middle), shape="lasting"),))).times_ns
        is_enough = (times / usual)[1:].mean() >= 1 + case.excess_ratio
        low, high = (low, middle) if is_enough else (middle, high)
    return replace(_strengthen(fault, high), shape="lasting" if case.shape == "spike" else case.shape)


def _strengthen(fault: Fault, strength: float) -> Fault:
    return replace(fault, add_ms=strength) if fault.kind == "slow_rank" and fault.add_ms else replace(
        fault, factor=1 + strength
    )  # fmt: skip


def _place(case: Case, settings: SimulatorSettings) -> Fault:
    rng = np.random.default_rng([case.seed, 6])
    rank = int(rng.integers(settings.world_size))
    match case.kind:
        case "slow_rank":  # half of them work longer all the time, half stand still once
            return Fault("slow_rank", rank=rank, add_ms=float(rng.integers(2)))
        case "slow_host":
            return Fault("slow_host", host=str(rank // settings.gpus_per_host))
        case kind:
            network = Engine(settings).network
            hop = int(rng.integers(len(network.hop_source)))
            source, destination = int(network.hop_source[hop]), int(network.hop_destination[hop])
            return Fault(kind, rank=source, peer=destination if kind == "slow_link" else None)


def _run(settings: SimulatorSettings) -> Recorded:
    operators: dict[int, dict[str, np.ndarray]] = {}
    starts_ns: dict[tuple[int, int], int] = {}
    times_ns = np.zeros(settings.iterations)
    codes: dict[str, int] = {}
    for part in Simulation(settings, 0).parts(max_span_s=1e9, max_rows=1 << 40):
        for batch in part.batches:
            columns, rank = batch.columns, batch.header.rank
            if batch.header.schema == "commops":
                own = np.array([codes.setdefault(name, len(codes)) for name in batch.header.names])
                operators[rank] = _in_order({**columns, "job_communicator": own[columns["communicator"]]})
            elif batch.header.schema == "iterations":
                times_ns = np.maximum(times_ns, columns["elapsed_ns"])
                starts_ns |= {(rank, number): ns for number, ns in enumerate(columns["start_ns"].tolist())}
    return Recorded(operators, starts_ns, times_ns)


def _in_order(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = np.lexsort((columns["start_ns"], columns["iteration"]))
    rows = {name: np.asarray(column)[order] for name, column in columns.items()}
    ends_ns = np.maximum.accumulate(rows["start_ns"] + rows["elapsed_ns"])
    gap_ns = np.maximum(rows["start_ns"] - np.r_[np.nan, ends_ns[:-1]], 0.0)
    kept = (*_FIELDS, "start_ns", "job_communicator")
    return {
        **{
            name: rows[name].astype(
                {"operator": "uint8", "size_bytes": "float64", "elapsed_ns": "float64"}.get(name, "int64")
            )
            for name in kept
        },
        "gap_ns": gap_ns,
    }


def _examples(run: CaseRun, rank: int) -> Iterator[Example]:
    rows, twin = run.with_fault.operators[rank], run.without.operators[rank]
    is_abnormal = rows["elapsed_ns"] > ABNORMAL_RATIO * twin["elapsed_ns"][_match(rows, twin)]
    bounds = np.searchsorted(rows["iteration"], np.arange(run.case.iterations + 1))
    for iteration in range(run.case.iterations):
        own = slice(bounds[iteration], bounds[iteration + 1])
        frame = {name: rows[name][own] for name in (*_FIELDS, "gap_ns")}
        yield Example(rank, iteration, frame, is_abnormal[own], run.is_irregular(iteration))


def _match(rows: dict[str, np.ndarray], twin: dict[str, np.ndarray]) -> np.ndarray:
    order = np.lexsort([rows[name] for name in _KEY])
    twin_order = np.lexsort([twin[name] for name in _KEY])
    for name in _KEY:
        if not np.array_equal(rows[name][order], twin[name][twin_order]):
            raise ValueError(f"runs with and without the fault must hold the same operators; {name} differs")
    match = np.empty(len(order), dtype=np.int64)
    match[order] = twin_order
    return match


TRAINING_JOBS = (
    (4, 2, 4, 8), (2, 4, 2, 4), (4, 4, 1, 8), (2, 2, 8, 6), (8, 1, 2, 4), (2, 8, 1, 8), (16, 2, 1, 4), (3, 3, 4, 6),
    (2, 12, 1, 8), (2, 6, 2, 8), (3, 4, 2, 6), (2, 4, 8, 4), (4, 8, 1, 16), (2, 10, 2, 10), (6, 2, 4, 4),
    (4, 2, 2, 12),
)  # fmt: skip
"""dp, pp, tp, micro-batches; none of them is among those of `tests.benchmarks.bench_operators`."""

TRAINING_SEED = 1000
_HEALTHY_EVERY = 16  # of the healthy frames so many-th teaches too: that what is regular scores low


def training_cases(count: int) -> list[Case]:
    """Return the jobs to train on: with little drift and with much, plain and untidy, in equal shares."""
    cases: list[Case] = []
    for drift_ratio, is_untidy in product((0.03, 0.15), (False, True)):
        seed, share = TRAINING_SEED + len(cases), -(-count // 4)
        cases += shapes_of_faults(seed, share, TRAINING_JOBS, drift_ratio=drift_ratio, is_untidy=is_untidy)
    return cases


def labelled_features(cases: Iterable[Case], *, most_ranks: int = 12) -> Iterator[tuple[FeatureRows, np.ndarray]]:
    """Yield features and truth of irregular frames, and of a few healthy ones."""
    for case in cases:
        for examples in run_case(case, most_ranks=most_ranks):
            features = OperatorFeatures(window=32, warm_up=20, tuning="always", most_slots=4096)
            for example in examples:
                if example.is_irregular or (
                    example.is_irregular is False and example.iteration % _HEALTHY_EVERY == 1
                ):
                    yield features.rows(example.frame), example.is_abnormal
                if example.is_irregular is False:
                    features.learn(example.frame)


Singles: TypeAlias = NDArray[np.float32]

_LEAF: Final = -1
_ABNORMAL_WEIGHT: Final = 1.3  # of an abnormal row: moves the threshold of the best F1 from 0.43 to 0.5


def gather_examples(frames: Iterable[tuple[FeatureRows, Flags]]) -> tuple[Singles, Flags]:
    """Stack the rows that pass the first test.

    `frames`: features of a frame, and for each row of the frame whether it is abnormal.

    Returns
    -------
    Array ``(rows, features)``, float32, and one bool per row.
    """
    matrices, labels = [np.zeros((0, len(FEATURES)), dtype=np.float32)], [np.zeros(0, dtype=np.bool_)]
    for found, is_abnormal in frames:
        is_seen = found.is_suspicious()
        matrices.append(found.matrix[is_seen].astype(np.float32))
        labels.append(is_abnormal[found.rows][is_seen])
    return np.concatenate(matrices), np.concatenate(labels)


def train_forest(
    matrix: Singles, labels: Flags, *, trees: int = 40, depth: int = 10, least_leaf: int = 20, seed: int = 0
) -> Any:
    """Train scikit-learn's forest; the same arguments give the same forest.

    `matrix`, `labels`: as `gather_examples` returns them.
    `trees`, `depth`, `least_leaf`: number of trees, their depth, and the fewest training rows in a leaf.
    `seed`: of scikit-learn's random numbers.
    """
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(
        trees, max_depth=depth, min_samples_leaf=least_leaf, max_features=10, random_state=seed,
        class_weight={False: 1.0, True: _ABNORMAL_WEIGHT},
    )  # fmt: skip
    return forest.fit(matrix, labels)


def export_trees(forest: Any, names: tuple[str, ...] = FEATURES) -> Trees:
    """Turn scikit-learn's fitted forest of two classes into plain arrays."""
    fitted = [one.tree_ for one in forest.estimators_]
    counts = np.array([tree.node_count for tree in fitted])
    roots = starts_of(counts)
    feature = np.concatenate([tree.feature for tree in fitted])
    is_leaf = np.concatenate([tree.children_left for tree in fitted]) == _LEAF
    own = np.arange(len(feature))
    base = np.repeat(roots, counts)
    children = [
        np.where(is_leaf, own, base + np.concatenate([getattr(tree, name) for tree in fitted]))
        for name in ("children_left", "children_right")
    ]
    return Trees(
        names=names,
        roots=roots.astype(np.int32),
        feature=np.where(is_leaf, _LEAF, feature).astype(np.int8),
        threshold=_round_down(np.concatenate([tree.threshold for tree in fitted])),
        left=children[0].astype(np.int32),
        right=children[1].astype(np.int32),
        probability=np.concatenate([_probability(tree.value) for tree in fitted]).astype(np.float32),
        depth=max(int(tree.max_depth) for tree in fitted),
    )


def _round_down(threshold: Floats) -> Singles:
    """Largest float32 that is not above: a float32 is at most the one exactly if it is at most the other."""
    rounded = threshold.astype(np.float32)
    return np.where(rounded > threshold, np.nextafter(rounded, np.float32(-np.inf)), rounded).astype(np.float32)


def _probability(value: Floats) -> Floats:
    weights = value[:, 0, :]
    return np.asarray(weights[:, 1] / weights.sum(axis=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=240)
    parser.add_argument("--rows", type=int, default=400_000, help="most training rows; of more a random choice")
    parser.add_argument("--out", type=Path, default=MODEL)
    options = parser.parse_args()
    started_s = time.monotonic()
    matrix, labels = gather_examples(labelled_features(training_cases(options.cases)))
    chosen = np.sort(np.random.default_rng(0).permutation(len(labels))[: options.rows])
    print(f"{len(labels)} rows, {labels.mean():.3f} abnormal, {time.monotonic() - started_s:.0f} s", flush=True)
    save_trees(export_trees(train_forest(matrix[chosen], labels[chosen])), options.out)
    print(f"{options.out}: {options.out.stat().st_size} bytes, {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
