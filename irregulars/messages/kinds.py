"""Kinds of verdicts and of suspects: one table each, from which names, advice, checks and pages are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


PLACE: Final = ("host", "gpu", "nic", "switch")
"""Facts of where a rank lives, as announcements, suspects and tables of the database call them."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """One kind of suspect."""

    noun: str  # its name for people
    meaning: str  # for pages
    # Of `PLACE`: facts that name it in every job, its own name last. Empty: its ranks name it, in one job alone.
    named_by: tuple[str, ...] = ()
    is_worker: bool = False  # whether it is slow by its own work, and not by its transfers
    # Whether it is the way from its first rank to its second: `named_by` is its beginning, and its job names it too
    is_way: bool = False
    place: tuple[str, ...] = PLACE  # facts of its first rank that a suspect has
    unnamed: str = "the {noun} of {ranks}"  # its name for people where that of the device itself is not known
    checks: Mapping[str, str] = field(default_factory=dict)  # by kind of verdict: checks on its host
    # NVSentinel's words for such a component, None: it knows no smaller one than the node, and for the next step
    health_class: str | None = None
    health_test: str = "CONTACT_SUPPORT"

    @property
    def identity(self) -> tuple[str, ...]:
        """Fields of a suspect that name it in every job; empty: there are none."""
        return () if self.is_way else self.named_by

    @property
    def is_whole_host(self) -> bool:
        """Whether it is all that is on a host."""
        return self.named_by == ("host",)

    def senders(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return those of its ranks whose NICs it holds down."""
        return tuple(ranks[:1] if self.is_way else ranks)


LAYERS: Final = ("hardware", "host", "network", "software", "data", "unknown")
"""Where a cause may lie; the advice, and its addressee, follow from it."""

CAUSES: Final[Mapping[str, str]] = {
    "garbage_collection": "software", "data_loader": "data", "checkpoint_write": "software",
    "host_to_device": "software", "synchronization": "software", "compilation": "software", "cpu_throttled": "host",
    "cpu_wait": "host", "memory_pressure": "host", "io_wait": "host", "python": "software", "other": "unknown",
    "gpu_kernels": "unknown",  # a slower GPU, or more work: rates of multiplications tell
    "gpu_idle": "software",
}  # fmt: skip
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
    "slow_nic": VerdictKind("slow NIC", "transfers over one NIC are slow", "`nic`", drains=True,
        actions=("cordon", "drain", "checkpoint_now"), layer="network"),
    "slow_link": VerdictKind("slow link", "the way between two ranks is slow", "`link`", actions=("test_device",),
        layer="network"),
    "slow_communicator": VerdictKind(
        "slow communicator", "communication is slow, and no NIC or link stands out", "none, or `switch`",
        actions=("test_device",), layer="network",
    ),
    "slow_stage": VerdictKind(
        "slow stage", "the ranks of one pipeline stage work longer: rebalance the stages", "`stage`",
        actions=("replan_stages",), layer="software",
    ),
    "imbalance": VerdictKind("imbalance", "who is late changes from iteration to iteration: uneven data", "none",
        layer="data"),
    "hang": VerdictKind(
        "hang", "some ranks entered an operator that did not end",
        "`gpu`, with the ranks to look at. None where more than eight ranks that log nothing come into question",
        drains=True, actions=("cordon",),  # it reaches no checkpoint any more: it is restarted from the last one
    ),
    "mismatch": VerdictKind(
        "mismatch", "ranks call different collectives under one number, or wait in a circle of calls: the program",
        "`program`, with the ranks that differ from the most; none where no side is larger", layer="software",
    ),
    "corruption": VerdictKind(
        "corruption", "a rank's numbers differ from those of its replicas, or of a replay",
        "`gpu`; none where no majority says who is right", drains=True,
        actions=("roll_back", "cordon", "test_device"), layer="hardware",
    ),
    "loss_spike": VerdictKind("loss spike", "the loss or a gradient norm jumped, or is not finite",
        "`gpu` where one rank's own values stand out; else none", actions=("test_device",)),
    "slow_checkpoint": VerdictKind("slow checkpoint",
        "ranks write a checkpoint longer than usual, and the others wait", "`gpu` or `host`", layer="software"),
    "custom": VerdictKind("custom",
        "a [detector with a say](detectors.md#a-detector-with-a-say) finds ranks strange, or a device reported an "
        "error that the setting `event_verdicts` names; `detector` is its name, `gpu_metrics` or `device_events`",
        "`gpu` or `host`; or `nic`"),
}  # fmt: skip

GPU: Final = "gpu"
STAGE: Final = "stage"
PROGRAM: Final = "program"
SWITCH: Final = "switch"

DEVICE_KINDS: Final[Mapping[str, DeviceKind]] = {
    GPU: DeviceKind(
        "GPU", "a rank's own work: its GPU, its process, its CPU", ("host", "gpu"), is_worker=True,
        checks={
            "slow_rank": "clocks and throttle reasons (nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE), ECC and Xid "
            "errors (dmesg), CPU load, data loader",
            "corruption": "ECC and Xid errors (nvidia-smi -q -d ECC, dmesg), then dcgmi diag -r 4 while it is free",
            "hang": "Xid errors (dmesg); while it hangs, whether the process lives and what its stack waits for",
        }, health_class="GPU", health_test="RUN_DCGMEUD",
    ),
    "host": DeviceKind(
        "host", "the work of all ranks of a host", ("host",), is_worker=True, place=("host", "switch"),
        unnamed="the host of {ranks} (not announced)",
        checks={"slow_rank": "CPU load and frequency, memory pressure, storage of the data loader, other tenants"},
    ),
    "nic": DeviceKind(
        "NIC", "a NIC, with all ranks that use it", ("host", "nic"), unnamed="the NIC of {ranks} on {host}",
        checks={"slow_nic": "port state and counters (ibstat, ethtool -S), pause frames, PCIe width (lspci -vv)"},
        health_class="NIC",
    ),
    "link": DeviceKind("link", "the way between two ranks", ("host", "nic"), is_way=True),
    SWITCH: DeviceKind(
        "switch", "a switch, with all ranks below it", ("switch",), unnamed="a switch that is not announced ({ranks})"
    ),
    STAGE: DeviceKind(
        "pipeline stage", "a stage of the pipeline: a share of the model, nothing to replace", is_worker=True
    ),
    # It lives nowhere.
    PROGRAM: DeviceKind("program", "the program that its ranks run", place=(), unnamed="the program on {ranks}"),
}  # fmt: skip

_OTHER: Final = DeviceKind("device", "a kind that only a newer worker knows", unnamed="{device} of {ranks} on {host}")


def device_kind(device: object) -> DeviceKind:
    """Return the kind of a device; a name that we don't know is a newer worker's, and has no facts of its own."""
    return DEVICE_KINDS.get(str(device), _OTHER)


REPORT_KINDS: Final = (
    "xid", "ecc", "throttle", "link_down", "link_up", "link_errors", "pcie", "out_of_memory", "process_exit",
    "node_state",
)  # fmt: skip
"""Kinds of events that devices and nodes report of themselves."""

STANDSTILLS: Final = frozenset({"hang", "mismatch"})
"""Kinds of verdicts on jobs that stand still: nothing moves until somebody acts."""
