"""Runs as the batches that the ranks of a real job would send.

Times are as in logs: starts and durations, rounded apart and taken on clocks that are not the same.

Some rows never arrive, some arrive twice: an exporter that can't keep up drops rows in bursts. Drawn per iteration
from the seed, and so the same for a run and its healthy twin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from irregulars.dtypes import Flags, Floats, Ints
from irregulars.messages.records import OPERATOR_CODES, PATHS, SCHEMAS, Batch, Header, iteration_columns
from irregulars.producers.simulator.engine import Contention, Engine, Run
from irregulars.producers.simulator.network import count_up
from irregulars.producers.simulator.noise import DELIVERY, clock_errors, generator_of
from irregulars.producers.simulator.plan import OperatorRows, Plan
from irregulars.producers.simulator.settings import NS_PER_MS, NS_PER_S, NS_PER_US, SimulatorSettings


def delivered(settings: SimulatorSettings, rows: OperatorRows, iteration: int) -> tuple[Flags, Flags] | None:
    """Return which rows of an iteration arrive, and which of these arrive twice; None: all, and none."""
    if not (settings.loss_ratio or settings.repeat_ratio):
        return None
    generator = generator_of(settings, DELIVERY, iteration)
    count = len(rows.step)
    comes = np.ones(count, dtype=np.bool_)
    if settings.loss_ratio:
        # Bursts begin anywhere, and end with the rank's rows of the iteration at the latest.
        burst_rows = max(settings.loss_burst_rows, 1.0)
        begins = np.flatnonzero(generator.random(count) < settings.loss_ratio / burst_rows)
        ends = begins + generator.geometric(1 / burst_rows, len(begins))
        ends = np.minimum(ends, rows.first[np.searchsorted(rows.first, begins, side="right")])
        # 1 where a burst begins and -1 where it ends: the running sum counts the bursts over each row.
        edges = np.zeros(count + 1, dtype=np.int64)
        np.add.at(edges, begins, 1)
        np.add.at(edges, ends, -1)
        comes = np.cumsum(edges)[:-1] == 0
    again = (generator.random(count) < settings.repeat_ratio) & comes
    return comes, again


class MeasuredTime:
    """True times as a job's logs hold them.

    Kineto writes microseconds (``libkineto`` until 2024; nanoseconds since), NCCL Inspector whole microseconds, and
    some trainers hundredths of a millisecond. Start and duration are rounded each by itself, so an operator may seem
    to end after the next one of its stream began.
    """

    def __init__(self, settings: SimulatorSettings) -> None:
        self._resolution_ns = int(settings.time_resolution_ns)
        # How much faster the clock of each rank's durations runs than a true one
        self._drift = clock_errors(settings, settings.elapsed_clock_ppm / 1e6, settings.world_size, 2)

    def starts_ns(self, times_ns: Ints) -> Ints:
        """Round starts, ns."""
        step_ns = self._resolution_ns
        return times_ns if step_ns == 1 else (times_ns + step_ns // 2) // step_ns * step_ns

    def elapsed_ns(self, lengths_ns: Floats, rank: int) -> Floats:
        """Durations as the rank's own clock gives them, rounded; NaN stays NaN."""
        step_ns, drift = self._resolution_ns, float(self._drift[rank])
        if step_ns == 1 and not drift:
            return lengths_ns
        return np.asarray(np.rint(lengths_ns * (1 + drift) / step_ns) * step_ns)

    def watermark_ns(self, last_ns: int, length_ns: float) -> int:
        """Return up to when nothing comes after a run: its end, and by how much rounding and drift may move it."""
        step_ns, drift = self._resolution_ns, float(np.abs(self._drift).max())
        return last_ns if step_ns == 1 and not drift else last_ns + step_ns + int(np.ceil(drift * length_ns))


class JobRows:
    """Makes batches of the runs of one job."""

    def __init__(self, engine: Engine, start_ns: int) -> None:
        self._engine = engine
        settings, topology = engine.settings, engine.topology
        hosts = int(topology.host[-1]) + 1
        # Per rank: when the job started by its host's clock, and how much faster that runs than a true one
        is_shared = settings.clock == "shared"
        apart_ns = settings.shared_clock_error_us * NS_PER_US if is_shared else settings.clock_offset_ms * NS_PER_MS
        offset_ns = np.rint(clock_errors(settings, apart_ns, hosts)).astype(np.int64)
        self._zero_ns = start_ns + offset_ns[topology.host]
        drift_ratio = 0.0 if is_shared else settings.clock_drift_ppm / 1e6
        self._drift = clock_errors(settings, drift_ratio, hosts, 1)[topology.host]
        self._measured = MeasuredTime(settings)
        self._ranks = np.flatnonzero(topology.is_logged).tolist()
        self._names = [
            tuple(topology.groups.communicators[c].id for c in topology.groups.of_rank(rank))
            for rank in range(topology.world_size)
        ]
        plans = list(engine.plans.values())
        # By plan, for each of its rows: the operators of its series in one training iteration, and in one evaluation
        self._per_turn = {id(plan): [_in_series_of(plan, turn) for turn in plans] for plan in plans}
        self._published = {schema: np.zeros(topology.world_size, dtype=np.int64) for schema in SCHEMAS}

    def commops(self, runs: Sequence[Run]) -> Iterator[Batch]:
        """Yield one batch per logged rank with the operators of consecutive runs."""
        for _, own in groupby(runs, key=lambda run: id(run.plan)):
            yield from self._commops(list(own))

    def _commops(self, runs: Sequence[Run]) -> Iterator[Batch]:
        plan, settings = runs[0].plan, self._engine.settings
        rows, seats = plan.rows, self._engine.topology.seat
        iterations = np.array([run.iteration for run in runs])
        before = [self._operators_before(plan, run.iteration) for run in runs]
        scale = np.array([settings.workload_factor(run.iteration) for run in runs])
        sizes = np.where(rows.is_scaled, np.rint(scale[:, None] * rows.size_bytes), rows.size_bytes)
        sizes = self._sizes_of_experts(plan, runs, sizes)
        starts_ns, elapsed_ns, ways = _operators(settings, runs)
        for rank in self._ranks:
            own = rows.of_seat(int(seats[rank]))
            count = own.stop - own.start
            started_ns = self._local_ns(rank, starts_ns[:, own])
            columns: dict[str, np.ndarray] = {
                "communicator": np.tile(rows.local_communicator[own], len(runs)),
                "operator": np.tile(rows.operator[own], len(runs)),
                "sequence": np.stack([one[own] for one in before]).ravel() + np.tile(rows.ordinal[own], len(runs)),
                "peer": np.tile(rows.peer[own], len(runs)),
                "start_ns": self._measured.starts_ns(started_ns).ravel(),
                "elapsed_ns": self._measured.elapsed_ns(elapsed_ns[:, own], rank).ravel(),
                "size_bytes": sizes[:, own].ravel(),
                "iteration": np.repeat(iterations, count),
            }
            if ways is not None:
                index = np.concatenate([np.flatnonzero(way[:, own]) for way in ways])
                columns = {name: column[index] for name, column in columns.items()}
            last_ns = self._watermark_ns(runs[-1], rank, columns)
            yield self._batch("commops", rank, last_ns, columns, self._names[rank])

    def _sizes_of_experts(self, plan: Plan, runs: Sequence[Run], sizes: Floats) -> Floats:
        """Scale the bytes that experts send back by the tokens they get; bytes sent to them name no receiver."""
        if runs[0].expert_load is None:
            return sizes
        rows, topology = plan.rows, self._engine.topology
        # Every second all_to_all of a communicator brings tokens back, as `calls.part_shares` has it.
        is_back = (rows.operator == OPERATOR_CODES["all_to_all"]) & (rows.ordinal % 2 == 0)
        place = topology.seat[plan.step_rank[rows.step]] % topology.stage_ranks
        loads = np.array([run.expert_load for run in runs])[:, place]
        return np.where(is_back, np.rint(sizes * loads), sizes)

    def _operators_before(self, plan: Plan, iteration: int) -> Ints:
        """Return for each row of a plan the number of operators of its series before this iteration."""
        every = self._engine.settings.evaluate_every
        evaluations = iteration // every if every else 0
        turns = (iteration - evaluations, evaluations)
        return sum((count * per for count, per in zip(turns, self._per_turn[id(plan)], strict=False)),
                   start=np.zeros(1, dtype=np.int64))  # fmt: skip

    def iterations(self, runs: Sequence[Run]) -> Iterator[Batch]:
        """Yield one batch per logged rank with the rows of consecutive iterations which it ended."""
        ended = [run for run in runs if not run.is_hung]
        if not ended:
            return
        numbers = np.array([run.iteration for run in ended])
        phases = np.array([run.phase for run in ended], dtype=np.uint8)
        settings = self._engine.settings
        planned = settings.micro_batches * settings.tokens_per_micro_batch
        tokens = np.array([float(np.rint(planned * settings.workload_factor(run.iteration))) for run in ended])
        starts_ns = _whole_ns([run.start_ns for run in ended])
        ends_ns = _whole_ns([run.end_ns for run in ended])
        for rank in self._ranks:
            start_ns = self._measured.starts_ns(self._local_ns(rank, starts_ns[:, rank]))
            elapsed_ns = self._measured.elapsed_ns((ends_ns - starts_ns)[:, rank].astype(np.float64), rank)
            columns = iteration_columns(numbers, start_ns, elapsed_ns, phases) | {"tokens": tokens}
            last_ns = int(self._local_ns(rank, ends_ns[-1:, rank])[0])
            watermark_ns = self._measured.watermark_ns(last_ns, ended[-1].elapsed_ns)
            yield self._batch("iterations", rank, watermark_ns, columns)

    def bandwidth(self, samples: Samples) -> Iterator[Batch]:
        """Yield one batch per NIC, as its first logged rank; nothing if there is no sample."""
        topology = self._engine.topology
        times_ns, sent, received = _whole_ns(samples[0]), *samples[1:]
        count = times_ns.shape[1]
        for nic, rank in enumerate(topology.nic_rank.tolist() if count else ()):
            if rank < 0:
                continue
            time_ns = self._local_ns(rank, times_ns[nic])
            columns = {
                "time_ns": time_ns, "path": np.full(count, PATHS.index("nic"), dtype=np.uint8),
                "device": np.zeros(count, dtype=np.uint16), "tx_bytes_per_s": sent[nic],
                "rx_bytes_per_s": received[nic],
            }  # fmt: skip
            yield self._batch("bandwidth", rank, int(time_ns[-1]), columns, (topology.nic_name(nic),))

    def _local_ns(self, rank: int, times_ns: Ints) -> Ints:
        """Return the time on a rank's host's clock at these times since the start of the job."""
        drift = float(self._drift[rank])
        shown_ns = times_ns + int(self._zero_ns[rank])
        return shown_ns + np.rint(drift * times_ns).astype(np.int64) if drift else shown_ns

    def _watermark_ns(self, run: Run, rank: int, columns: dict[str, np.ndarray]) -> int | None:
        if not run.is_hung:
            last_ns = int(self._local_ns(rank, _whole_ns(run.end_ns[rank : rank + 1]))[0])
            return self._measured.watermark_ns(last_ns, run.elapsed_ns)
        # It waits, and so all that it did before has been written.
        return int(columns["start_ns"].max()) if len(columns["start_ns"]) else None

    def _batch(
        self,
        schema: str,
        rank: int,
        watermark_ns: int | None,
        columns: dict[str, np.ndarray],
        names: tuple[str, ...] = (),
    ) -> Batch:
        settings, published = self._engine.settings, self._published[schema]
        header = Header(schema, settings.job, settings.attempt, rank, int(published[rank]), watermark_ns, names)
        batch = Batch(header, columns)
        published[rank] += len(batch)
        return batch


def _in_series_of(plan: Plan, turn: Plan) -> Ints:
    """Return for each row of one plan the number of operators of its series in an iteration of another."""
    if plan is turn:
        return plan.rows.per_iteration
    series, first = np.unique(turn.rows.series, return_index=True)
    # A series beyond all of `turn` would be out of range; the comparison below finds that it is another.
    place = np.minimum(np.searchsorted(series, plan.rows.series), len(series) - 1)
    return np.where(series[place] == plan.rows.series, turn.rows.per_iteration[first][place], 0)


def _operators(settings: SimulatorSettings, runs: Sequence[Run]) -> tuple[Ints, Floats, tuple[Flags, Flags] | None]:
    """Return starts, elapsed times (NaN: not ended), and masks of the rows that come, and that come once more.

    The masks are None where all rows come once.
    """
    rows = runs[0].plan.rows
    arrival_ns = np.array([run.arrival_ns[rows.step] for run in runs])
    departure_ns = np.array([run.departure_ns[rows.step] for run in runs])
    is_entered, is_left = np.isfinite(arrival_ns), np.isfinite(departure_ns)  # of a job that hangs: not all
    # Infinite times have no integer; their rows are left out, or get no elapsed time, below.
    starts_ns = _whole_ns(np.where(is_entered, arrival_ns, 0.0))
    ends_ns = _whole_ns(np.where(is_left, departure_ns, 0.0))
    elapsed_ns = np.where(is_left, ends_ns - starts_ns, np.nan)
    comes, again = is_entered, np.zeros_like(is_entered)
    ways = [way for run in runs if (way := delivered(settings, rows, run.iteration)) is not None]
    if ways:
        comes, again = is_entered & np.array([way[0] for way in ways]), np.array([way[1] for way in ways])
    return starts_ns, elapsed_ns, None if comes.all() and not again.any() else (comes, again & comes)


def _whole_ns(times_ns: Sequence[Floats] | Floats) -> Ints:
    return np.rint(np.asarray(times_ns)).astype(np.int64)


Samples = tuple[Floats, Floats, Floats]
"""Samples of all NICs: times, ns, bytes per s that were sent, and received, each of shape ``(nics, samples)``."""


class BandwidthSampler:
    """Turns transfers into samples of NICs' counters; the runs of the job come to `add`, each once and in order.

    Bytes of a flow are spread evenly over the time that it takes. A sample is the mean rate over the period before
    it, as a reader of counters gets it; hosts read theirs at different moments.
    """

    def __init__(self, engine: Engine) -> None:
        topology, network = engine.topology, engine.network
        self._hop_load = network.hop_load
        self._crossings = {id(plan): Contention.of(topology, network, plan) for plan in engine.plans.values()}
        self._workload_factor = engine.settings.workload_factor
        self._period_ns = engine.settings.bandwidth_period_ms * NS_PER_MS
        self._phase_ns = self._period_ns * topology.nic_host / len(topology.nic_host)
        self._taken = 0
        self._sent = np.zeros((2, len(topology.nic_host), 0))

    def add(self, run: Run) -> None:
        """Count the bytes of one iteration."""
        found, flows = self._crossings[id(run.plan)], run.plan.flows
        begin_ns, length_ns = run.begin_ns[flows.transfer[found.flow]], run.flow_ns[found.flow]
        sent_bytes = flows.wire_bytes[found.flow] * self._hop_load[found.hop]
        sent_bytes *= np.where(flows.is_scaled[found.flow], self._workload_factor(run.iteration), 1.0)
        happens = np.isfinite(begin_ns + length_ns)
        begin_ns, length_ns, sent_bytes = begin_ns[happens], length_ns[happens], sent_bytes[happens]
        self._reserve(float((begin_ns + length_ns).max(initial=0.0)))
        for direction, nic in enumerate(found.nics):
            self._sent[direction] += self._binned(nic[happens], begin_ns, length_ns, sent_bytes)

    def take(self, until_ns: float) -> Samples:
        """Return the samples up to a moment before which no further transfer will begin; each sample once."""
        count = max(int((until_ns - self._phase_ns.max(initial=0.0)) // self._period_ns) + 1 - self._taken, 0)
        self._reserve(until_ns)
        time_ns = self._phase_ns[:, None] + np.arange(self._taken, self._taken + count) * self._period_ns
        rates = self._sent[:, :, :count] * (NS_PER_S / self._period_ns)
        self._sent = self._sent[:, :, count:]
        self._taken += count
        return time_ns, rates[0], rates[1]

    def _reserve(self, until_ns: float) -> None:
        wanted = int(until_ns // self._period_ns) + 2 - self._taken - self._sent.shape[2]
        if wanted > 0:
            self._sent = np.pad(self._sent, ((0, 0), (0, 0), (0, wanted)))

    def _binned(self, nic: Ints, begin_ns: Floats, length_ns: Floats, sent_bytes: Floats) -> Floats:
        """Return the bytes of each NIC in each period not taken yet; a transfer may reach over several."""
        period_ns, phase_ns = self._period_ns, self._phase_ns[nic]
        first = np.ceil((begin_ns - phase_ns) / period_ns).astype(np.int64)
        last = np.ceil((begin_ns + length_ns - phase_ns) / period_ns).astype(np.int64)
        # Period n ends at n: a transfer from 2.5 to 4.2 periods has parts in periods 3, 4 and 5.
        flow, period = count_up(first, last - first + 1)
        edge_ns = phase_ns[flow] + period * period_ns
        until_ns = np.minimum(begin_ns[flow] + length_ns[flow], edge_ns)
        inside_ns = until_ns - np.maximum(begin_ns[flow], edge_ns - period_ns)
        sent = sent_bytes[flow] * np.maximum(inside_ns, 0) / length_ns[flow]
        shape = self._sent.shape[1:]
        place = nic[flow] * shape[1] + period - self._taken
        binned = np.bincount(place, sent, minlength=shape[0] * shape[1])
        return np.asarray(binned.reshape(shape), dtype=np.float64)
