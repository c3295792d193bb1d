"""Flags of ``irregulars simulate`` that stand for one setting of the simulator each, of which they have the name.

None: as the shape, the preset or the simulator says. Imports nothing heavy.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

_SHAPE: Final = "Shape of the job"
_STREAMS: Final = "Streams and network"
_RUN: Final = "What happens in it"
_NOISE: Final = "Untidiness"
_LOG: Final = "What is written"


def _option(panel: str, text: str, *flags: str, least: float | None = None, most: float | None = None) -> Any:
    return typer.Option(*flags, help=text, min=least, max=most, rich_help_panel=panel)


def _count(panel: str, text: str, *flags: str) -> Any:
    return _option(panel, text, *flags, least=1)


def _ratio(text: str, most: float | None = None) -> Any:
    return _option(_NOISE, text, least=0, most=most)


Dp = Annotated[int | None, _count(_SHAPE, "Replicas of the data (4).")]
Pp = Annotated[int | None, _count(_SHAPE, "Pipeline stages (4).")]
Tp = Annotated[int | None, _count(_SHAPE, "Tensor parallel ranks (4).")]
Cp = Annotated[int | None, _count(_SHAPE, "Context parallel ranks (1).")]
Ep = Annotated[int | None, _count(_SHAPE, "Expert parallel ranks (1).")]
Shards = Annotated[int | None, _count(_SHAPE, "Shards of the optimizer's state, or of a hybrid's parameters (1).")]
Chunks = Annotated[
    int | None, _count(_SHAPE, "Model chunks of a stage; above 1: interleaved 1F1B, batched sends (1).", "--chunks")
]
MicroBatches = Annotated[int | None, _count(_SHAPE, "Micro-batches of an iteration (8).")]
GradientSync = Annotated[
    str | None, _option(_SHAPE, "Gradients: sharded (reduce_scatter, all_gather), all_reduce, or fsdp (by units).")
]
Buckets = Annotated[int | None, _count(_SHAPE, "Operators that the gradients are cut into (1).", "--buckets")]
Units = Annotated[int | None, _count(_SHAPE, "Of fsdp: units, each gathered one ahead (4).", "--units")]
CpExchange = Annotated[
    str | None, _option(_SHAPE, "Keys and values: collective, or ring (batched isend and irecv beside the work).")
]
ExpertSpread = Annotated[float | None, _ratio("Standard deviation of the tokens of a rank's experts, of their mean.")]
ExpertWork = Annotated[float | None, _ratio("Part of the work that experts do (0.5).", 1.0)]

Overlapped = Annotated[
    bool | None,
    _option(_STREAMS, "Buckets go out beside the last backward, or after it.", "--overlapped/--not-overlapped"),
]
Queued = Annotated[
    bool | None,
    _option(_STREAMS, "Operators beside the work begin at once when the one before ends.", "--queued/--not-queued"),
]
GpusPerHost = Annotated[int | None, _count(_STREAMS, "GPUs of a host (8).")]
GpusPerNic = Annotated[int | None, _count(_STREAMS, "Ranks that share a NIC (1).")]
Contended = Annotated[
    bool | None,
    _option(_STREAMS, "Transfers share a NIC while they overlap, or by fixed parts.", "--contended/--fixed-parts"),
]

Phases = Annotated[float | None, _ratio("Slow phases of hosts: by about so much, as 0.045.")]
PhaseLength = Annotated[float | None, _option(_NOISE, "Iterations that a slow phase lasts (25).", least=1)]
IterationSpread = Annotated[float | None, _ratio("Standard deviation of all work from iteration to iteration.")]
ReplicaSpread = Annotated[float | None, _ratio("The same, of one replica.")]
MicroBatchSpread = Annotated[float | None, _ratio("The same, of one micro-batch of a replica, as 0.12.")]
MicroBatchTail = Annotated[
    float | None, _ratio("Heavy tails of micro-batches: degrees of freedom of Student's t, as 5; 0: none.")
]
PauseProbability = Annotated[float | None, _ratio("How often a rank pauses in an iteration, as 0.001.", 1.0)]
PauseMs = Annotated[float | None, _ratio("Shortest pause, ms (3).")]
PauseTail = Annotated[float | None, _option(_NOISE, "Index of their Pareto tail; less: heavier (2).", least=0.1)]
Stalls = Annotated[float | None, _ratio("Transfers that hang for a while, of the whole job, per iteration.")]
WarmupIterations = Annotated[int | None, _option(_NOISE, "Iterations in which the job warms up.", least=0)]
WarmupRatio = Annotated[float | None, _ratio("By how much the first of them is longer (0.3).")]
CompileMs = Annotated[float | None, _ratio("Time that each rank compiles in the first iteration, ms.")]
ConnectMs = Annotated[float | None, _ratio("Time to connect each communicator in the first iteration, ms.")]

Resolution = Annotated[int | None, _count(_LOG, "Start and duration are each rounded to so many ns, as 1000.")]
ElapsedPpm = Annotated[float | None, _option(_LOG, "Durations are taken on clocks so many ppm off.", least=0)]
ClockError = Annotated[
    float | None, _option(_LOG, "By how many µs clocks differ that are said to be shared.", least=0)
]
Logged = Annotated[str | None, _option(_LOG, "Who logs: all, tp_leaders, some_ranks, some_hosts.")]
Unlogged = Annotated[
    float | None, _option(_LOG, "Of some_ranks, some_hosts: the part without rows.", least=0, most=0.9)
]

CheckpointEvery = Annotated[int | None, _option(_RUN, "Iterations from checkpoint to checkpoint.", least=0)]
EvaluateEvery = Annotated[int | None, _option(_RUN, "Iterations from evaluation to evaluation.", least=0)]
