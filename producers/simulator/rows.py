"""Runs as the batches that the ranks of a real job would send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from producers.simulator.bandwidth import Samples
from producers.simulator.engine import Engine, Run
from producers.simulator.noise import clock_offsets_ns
from streams.records import PATHS, Batch, Header

Floats = NDArray[np.float64]


class JobRows:
    """Makes batches of the runs of one job.

    Parameters
    ----------
    engine
        The job.
    start_ns
        When it starts, ns since the epoch.
    """

    def __init__(self, engine: Engine, start_ns: int) -> None:
        self._engine = engine
        topology = engine.topology
        host_offsets_ns = clock_offsets_ns(engine.settings, int(topology.host[-1]) + 1)
        self._zero_ns = start_ns + host_offsets_ns[topology.host]
        self._names = [
            tuple(topology.groups.communicators[c].id for c in topology.groups.of_rank(rank))
            for rank in range(topology.world_size)
        ]

    def commops(self, runs: Sequence[Run]) -> Iterator[Batch]:
        """Yield one batch per rank with the operators of consecutive runs."""
        rows = self._engine.plan.rows
        iterations = np.array([run.iteration for run in runs])
        starts_ns = _whole_ns([run.arrival_ns[rows.step] for run in runs])
        ends_ns = _whole_ns([run.departure_ns[rows.step] for run in runs])
        lasts_ns = _whole_ns([run.end_ns for run in runs])[-1]
        for rank, zero_ns in enumerate(self._zero_ns.tolist()):
            own = slice(*rows.first[rank : rank + 2].tolist())
            started_ns = starts_ns[:, own]
            count = started_ns.shape[1]
            sequence = iterations[:, None] * rows.per_iteration[own] + rows.ordinal[own]
            columns = {
                "communicator": np.tile(rows.local_communicator[own], len(runs)),
                "operator": np.tile(rows.operator[own], len(runs)),
                "sequence": sequence.ravel(),
                "peer": np.tile(rows.peer[own], len(runs)),
                "start_ns": (started_ns + zero_ns).ravel(),
                "elapsed_ns": (ends_ns[:, own] - started_ns).ravel().astype(np.float64),
                "size_bytes": np.tile(rows.size_bytes[own], len(runs)),
                "iteration": np.repeat(iterations, count),
            }
            before, watermark_ns = runs[0].iteration * count, int(lasts_ns[rank]) + zero_ns
            yield Batch(self._header("commops", rank, before, watermark_ns, self._names[rank]), columns)

    def iterations(self, runs: Sequence[Run]) -> Iterator[Batch]:
        """Yield one batch per rank with the rows of consecutive iterations."""
        settings = self._engine.settings
        unknown = np.full(len(runs), np.nan)
        iterations = np.array([run.iteration for run in runs])
        phases = np.array([run.phase for run in runs], dtype=np.uint8)
        tokens = np.full(len(runs), float(settings.micro_batches * settings.tokens_per_micro_batch))
        starts_ns = _whole_ns([run.start_ns for run in runs])
        ends_ns = _whole_ns([run.end_ns for run in runs])
        for rank, zero_ns in enumerate(self._zero_ns.tolist()):
            columns = {
                "iteration": iterations,
                "start_ns": starts_ns[:, rank] + zero_ns,
                "elapsed_ns": (ends_ns[:, rank] - starts_ns[:, rank]).astype(np.float64),
                "phase": phases,
                "loss": unknown,
                "grad_norm": unknown,
                "tokens": tokens,
            }
            watermark_ns = int(ends_ns[-1, rank]) + zero_ns
            yield Batch(self._header("iterations", rank, runs[0].iteration, watermark_ns), columns)

    def bandwidth(self, samples: Samples) -> Iterator[Batch]:
        """Yield one batch per NIC, as its first rank; nothing if there is no sample."""
        topology = self._engine.topology
        count = samples.time_ns.shape[1]
        times_ns = _whole_ns(samples.time_ns)
        for nic, rank in enumerate(topology.nic_rank.tolist() if count else ()):
            time_ns = times_ns[nic] + int(self._zero_ns[rank])
            columns = {
                "time_ns": time_ns,
                "path": np.full(count, PATHS.index("nic"), dtype=np.uint8),
                "device": np.zeros(count, dtype=np.uint16),
                "tx_bytes_per_s": samples.tx_bytes_per_s[nic],
                "rx_bytes_per_s": samples.rx_bytes_per_s[nic],
            }
            names = (topology.nic_name(nic),)
            yield Batch(self._header("bandwidth", rank, samples.number, int(time_ns[-1]), names), columns)

    def _header(
        self, schema: str, rank: int, rows_before: int, watermark_ns: int, names: tuple[str, ...] = ()
    ) -> Header:
        settings = self._engine.settings
        return Header(schema, settings.job, settings.attempt, rank, rows_before, watermark_ns, names)


def _whole_ns(times_ns: Sequence[Floats] | Floats) -> NDArray[np.int64]:
    return np.rint(np.asarray(times_ns)).astype(np.int64)
