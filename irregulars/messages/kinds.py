"""Kinds of verdicts and of suspects: one table each, from which names, advice, checks and pages are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class VerdictKind:
    """One kind of verdict."""

    noun: str  # its name for people
    # meaning, suspects: Its statement, and which devices it accuses first: for pages
    meaning: str
    suspects: str
    drains: bool = False  # whether its first suspect's host is drained where the verdict is sure enough
    actions: tuple[str, ...] = ()  # actions that an orchestrator may take (`sinks.advice.ACTION_NAMES`)
    layer: str = "unknown"  # of `LAYERS`, where its cause lies whatever else is known


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """One kind of suspect."""

    meaning: str  # for pages
    is_worker: bool  # whether it is slow by its own work, and not by its transfers
    # Fields of a suspect that name the device in every job. Empty: its ranks name it, in one job alone.
    named_by: tuple[str, ...] = ()


LAYERS: Final = ("hardware", "host", "network", "software", "data", "unknown")
"""Where a cause may lie; the advice, and its addressee, follow from it."""

CAUSES: Final[Mapping[str, str]] = {
    "garbage_collection": "software",
    "data_loader": "data",
    "checkpoint_write": "software",
    "host_to_device": "software",
    "synchronization": "software",
    "compilation": "software",
    "cpu_throttled": "host",
    "cpu_wait": "host",
    "memory_pressure": "host",
    "io_wait": "host",
    "python": "software",
    "other": "unknown",
    "gpu_kernels": "unknown",  # a slower GPU, or more work: rates of multiplications tell
    "gpu_idle": "software",
}
"""Causes that a verdict may name, and the layer of each: those of `messages.records.PAUSES`."""


def layer_of(kind: str, cause: str | None = None) -> str:
    """Return where the cause of a verdict lies, one of `LAYERS`.

    >>> layer_of("slow_nic"), layer_of("slow_rank"), layer_of("slow_rank", "cpu_throttled"), layer_of("a newer kind")
    ('network', 'unknown', 'host', 'unknown')
    """
    if cause is not None:
        return CAUSES.get(cause, "unknown")
    return VERDICT_KINDS[kind].layer if kind in VERDICT_KINDS else "unknown"


VERDICT_KINDS: Final[Mapping[str, VerdictKind]] = {
    "slow_rank": VerdictKind(
        "slow rank", "a rank, or the ranks of one host, work longer than usual or than their peers",
        "`gpu` or `host`", drains=True, actions=("cordon", "drain", "checkpoint_now"),
    ),
    "slow_nic": VerdictKind(
        "slow NIC", "transfers over one NIC are slow", "`nic`", drains=True,
        actions=("cordon", "drain", "checkpoint_now"), layer="network",
    ),
    "slow_link": VerdictKind(
        "slow link", "the way between two ranks is slow", "`link`", actions=("test_device",), layer="network",
    ),
    "slow_communicator": VerdictKind(
        "slow communicator", "communication is slow, and no NIC or link stands out", "none, or `switch`",
        actions=("test_device",), layer="network",
    ),
    "slow_stage": VerdictKind(
        "slow stage", "the ranks of one pipeline stage work longer: rebalance the stages", "`stage`",
        actions=("replan_stages",), layer="software",
    ),
    "imbalance": VerdictKind(
        "imbalance", "who is late changes from iteration to iteration: uneven data", "none", layer="data",
    ),
    "hang": VerdictKind(
        "hang", "some ranks entered an operator that did not end",
        "`gpu`, with the ranks to look at. None where more than eight ranks that log nothing come into question",
        drains=True, actions=("cordon",),  # it reaches no checkpoint any more: it is restarted from the last one
    ),
    "mismatch": VerdictKind(
        "mismatch", "ranks call different collectives under one number, or wait in a circle of calls: the program",
        "`program`, with the ranks that differ from the most; none where no side is larger",
        layer="software",
    ),
    "corruption": VerdictKind(
        "corruption", "a rank's numbers differ from those of its replicas, or of a replay",
        "`gpu`; none where no majority says who is right", drains=True,
        actions=("roll_back", "cordon", "test_device"), layer="hardware",
    ),
    "loss_spike": VerdictKind(
        "loss spike", "the loss or a gradient norm jumped, or is not finite",
        "`gpu` where one rank's own values stand out; else none", actions=("test_device",),
    ),
    "slow_checkpoint": VerdictKind(
        "slow checkpoint", "ranks write a checkpoint longer than usual, and the others wait", "`gpu` or `host`",
        layer="software",
    ),
    "custom": VerdictKind(
        "custom",
        "a [detector with a say](detectors.md#a-detector-with-a-say) finds ranks strange; `detector` is its name",
        "`gpu` or `host`",
    ),
}  # fmt: skip

DEVICE_KINDS: Final[Mapping[str, DeviceKind]] = {
    "gpu": DeviceKind("a rank's own work: its GPU, its process, its CPU", is_worker=True, named_by=("host", "gpu")),
    "host": DeviceKind("the work of all ranks of a host", is_worker=True, named_by=("host",)),
    "nic": DeviceKind("a NIC, with all ranks that use it", is_worker=False, named_by=("host", "nic")),
    # The receiver's host is in no suspect.
    "link": DeviceKind("the way between two ranks", is_worker=False),
    "switch": DeviceKind("a switch, with all ranks below it", is_worker=False, named_by=("switch",)),
    "stage": DeviceKind("a stage of the pipeline: a share of the model, nothing to replace", is_worker=True),
    "program": DeviceKind("the program that its ranks run", is_worker=False),
}

WORKERS: Final = frozenset(name for name, one in DEVICE_KINDS.items() if one.is_worker)
"""Devices that are slow by their own work."""

STANDSTILLS: Final = frozenset({"hang", "mismatch"})
"""Kinds of verdicts on jobs that stand still: nothing moves until somebody acts."""
