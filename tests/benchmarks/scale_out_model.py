"""What more workers and cores give, from the CPU time and throughput of runs with a few workers.

Two models are fitted to the same runs, by least squares with no coefficient below zero:

* **Costs.** CPU seconds of the workers for a message, ``w0 + w1 (N - 1)`` with `N` workers, beside those that a
  worker takes for each second that it runs and those that the job's ranks take for each second (their snapshots);
  the same of the broker. The throughput follows from the cores there are.
* **Throughput.** Gunther's Universal Scalability Law, ``X(N) = l N / (1 + s (N - 1) + k N (N - 1))``: `s` is the
  share that stands in line for something, `k` what each pair of workers costs each other.

The first asks what a core can do, the second whether workers wait for each other: they see different errors.
Intervals come from fitting anew to runs that are drawn from the measured ones, with replacement among those of equal
`N`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_DRAWS: Final = 500
_INTERVAL: Final = (5.0, 95.0)


@dataclass(frozen=True)
class Run:
    """Some workers that read one backlog."""

    workers: int
    quota: float  # cores that each worker may use at most
    # Whether the quota was what held the workers up; else they shared cores with the broker and each other
    is_limited: bool
    messages: int
    operators: int
    largest_share: float  # share of the messages that the worker with the most of them had
    took_s: float  # from the moment at which all may read to the last evidence
    # worker_s, broker_s: CPU time in `took_s`, of all workers together and of the broker
    worker_s: float
    broker_s: float
    # idle_s, idle_worker_s, idle_broker_s: The same of a time before, in which there was nothing to read
    idle_s: float
    idle_worker_s: float
    idle_broker_s: float
    load: float = 0.0

    @property
    def messages_per_s(self) -> float:
        """Messages a second, as the slowest worker has it."""
        return self.messages / self.took_s

    @property
    def even_messages_per_s(self) -> float:
        """What it would be if all workers had equally many messages."""
        return self.messages_per_s * self.largest_share * self.workers


@dataclass(frozen=True)
class Costs:
    """CPU seconds: of a message, for each second of a running worker, and for each second of the job's ranks."""

    worker_message_s: float
    worker_more_s: float
    worker_idle_ratio: float
    ranks_ratio: float
    broker_message_s: float
    broker_more_s: float
    broker_idle_ratio: float
    broker_worker_ratio: float

    def worker_s(self, workers: float) -> float:
        """CPU seconds of the workers for a message."""
        return self.worker_message_s + self.worker_more_s * (workers - 1)

    def messages_per_s(self, workers: float, quota: float = 1.0) -> float:
        """Messages a second of workers that have a `quota` of a core each, all of them equally many."""
        free = workers * (quota - self.worker_idle_ratio) - self.ranks_ratio
        return max(free, 0.0) / self.worker_s(workers)

    def broker_cores(self, workers: float) -> float:
        """Cores of brokers for as much as so many workers can read, a core each."""
        message_s = self.broker_message_s + self.broker_more_s * (workers - 1)
        return self.broker_idle_ratio + self.broker_worker_ratio * workers + message_s * self.messages_per_s(workers)

    def workers_on(self, cores: float) -> float:
        """Workers on so many cores, if the brokers get what they need of them."""
        low, high = 0.0, float(cores)
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if middle + self.broker_cores(middle) <= cores else (low, middle)
        return low


@dataclass(frozen=True)
class Scalability:
    """The Universal Scalability Law, for workers with a core each."""

    one_per_s: float
    in_line: float
    each_pair: float

    def messages_per_s(self, workers: float) -> float:
        """Messages a second."""
        loss = 1 + self.in_line * (workers - 1) + self.each_pair * workers * (workers - 1)
        return self.one_per_s * workers / loss


@dataclass(frozen=True)
class Estimate:
    """A value, and the interval that holds nine of ten fits to drawn runs."""

    value: float
    low: float
    high: float


def least_squares(columns: Sequence[Floats], wanted: Floats) -> list[float]:
    """Return the coefficients of some columns, none below zero, that fit best.

    There are few columns: all subsets are tried, as the best fit is the plain one of the columns that it uses.
    """
    best, least = [0.0] * len(columns), float(wanted @ wanted)
    for count in range(1, len(columns) + 1):
        for used in combinations(range(len(columns)), count):
            found, *_ = np.linalg.lstsq(np.stack([columns[one] for one in used], axis=1), wanted, rcond=None)
            rest = wanted - sum(columns[one] * value for one, value in zip(used, found, strict=True))
            if found.min() >= 0 and float(rest @ rest) < least:
                best, least = [0.0] * len(columns), float(rest @ rest)
                for one, value in zip(used, found, strict=True):
                    best[one] = float(value)
    return best


def _each(runs: Sequence[Run], value: Callable[[Run], float]) -> Floats:
    return np.array([value(run) for run in runs], dtype=np.float64)


def fit_costs(runs: Sequence[Run]) -> Costs:
    """Fit the model of costs."""
    ones, workers = np.ones(len(runs)), _each(runs, lambda run: run.workers)
    idle = least_squares([workers], _each(runs, lambda run: run.idle_worker_s / run.idle_s))[0]
    broker_idle, each_worker = least_squares([ones, workers], _each(runs, lambda run: run.idle_broker_s / run.idle_s))
    worker_s = _each(runs, lambda run: (run.worker_s - idle * run.workers * run.took_s) / run.messages)
    beside = _each(runs, lambda run: (broker_idle + each_worker * run.workers) * run.took_s)
    broker_s = (_each(runs, lambda run: run.broker_s) - beside) / _each(runs, lambda run: run.messages)
    seconds = _each(runs, lambda run: run.took_s / run.messages)
    own = least_squares([ones, workers - 1, seconds], worker_s)
    others = least_squares([ones, workers - 1], broker_s)
    return Costs(own[0], own[1], idle, own[2], others[0], others[1], broker_idle, each_worker)


def fit_scalability(runs: Sequence[Run]) -> Scalability:
    """Fit the law to runs whose workers were held up by their quota, as if each had had a core.

    ``N / X`` is linear in ``1/l``, ``s/l`` and ``k/l``. Uneven partitions are taken out: they are no contention.
    """
    limited = [run for run in runs if run.is_limited]
    workers = _each(limited, lambda run: run.workers)
    wanted = workers / _each(limited, lambda run: run.even_messages_per_s / run.quota)
    weight = 1 / wanted  # relative errors are what is alike in all runs
    columns = [np.ones(len(limited)), workers - 1, workers * (workers - 1)]
    one, in_line, each_pair = least_squares([column * weight for column in columns], wanted * weight)
    return Scalability(1 / one, in_line / one, each_pair / one)


def drawn(runs: Sequence[Run], seed: int) -> Iterator[list[Run]]:
    """Give runs drawn with replacement, of each number of workers and quota as many as were measured."""
    rng = np.random.default_rng(seed)
    groups: dict[tuple[int, bool], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.workers, run.is_limited), []).append(run)
    for _ in range(_DRAWS):
        yield [own[place] for own in groups.values() for place in rng.integers(0, len(own), len(own))]


@dataclass(frozen=True)
class Fit:
    """Both models, fitted to the same runs."""

    costs: Costs
    law: Scalability


def fits(runs: Sequence[Run], seed: int) -> list[Fit]:
    """Return what is fitted to the runs, and after it what is fitted to drawn ones."""
    return [Fit(fit_costs(own), fit_scalability(own)) for own in (list(runs), *drawn(runs, seed))]


def estimate(found: Sequence[Fit], value: Callable[[Fit], float]) -> Estimate:
    """Return a value by the first fit, with its interval by the others."""
    first, *others = [value(one) for one in found]
    low, high = np.percentile(others, _INTERVAL)
    return Estimate(first, float(low), float(high))
