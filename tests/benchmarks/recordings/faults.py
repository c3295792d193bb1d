"""What is done to a recorded job, and the truth that follows from it.

Each fault says what it does in a rank (`work`), to the network or the CPU from outside (`changes`), and what its
label holds (`truth`). Times are iterations, half-open.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.benchmarks.recordings.layout import SPINE, Layout
from tests.benchmarks.recordings.network import LINE_MBIT, port, rate_commands

DIRECTIONS: Final = ("send", "receive", "both")
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank does in one iteration, beside what all do.

    Parameters
    ----------
    load_s
        How much longer it waits for its data.
    factor
        How many times the usual work a layer takes.
    phase
        ``eval`` and ``checkpoint``, where the script says so; ``""`` else.
    is_forward_alone
        Whether there is no backward pass.
    stops
        Whether the rank stops for ever before its communication.
    """

    load_s: float = 0.0
    factor: float = 1.0
    phase: str = ""
    is_forward_alone: bool = False
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A change from outside: lines for ``tc`` or ``ip`` in the namespace of `rank` (None: of the switches)."""

    rank: int | None
    lines: tuple[str, ...]
    program: str = "tc"


@dataclass(frozen=True, slots=True)
class Quota:
    """A change from outside: so many cores for the processes of some ranks together; None: as many as there are."""

    ranks: tuple[int, ...]
    cores: float | None


Change = Command | Quota


@dataclass(frozen=True, slots=True)
class Truth:
    """What the label says of a fault (the contract's kinds and devices).

    Parameters
    ----------
    device
        Of the suspect that is right; None where nobody is to be accused.
    ranks
        All ranks that the device carries.
    injected
        What was done, in words.
    """

    kind: str = "none"
    device: str | None = None
    rank: int | None = None
    peer: int | None = None
    ranks: tuple[int, ...] = ()
    host: str | None = None
    switch: str | None = None
    direction: str | None = None
    injected: str = "nothing"

    def to_json(self) -> dict[str, Any]:
        """As the label has it."""
        names = ("kind", "device", "rank", "peer", "ranks", "host", "switch", "direction", "injected")
        return {name: getattr(self, name) for name in names} | {"ranks": list(self.ranks)}


@dataclass(frozen=True, slots=True)
class Fault:
    """Nothing at all, and what all faults have.

    Parameters
    ----------
    spans
        When it acts.
    """

    spans: tuple[Span, ...] = ()

    def acts(self, iteration: int) -> bool:
        """Whether it acts in an iteration."""
        return any(first <= iteration < past for first, past in self.spans)

    def work(self, rank: int, iteration: int, work: Work, layout: Layout) -> Work:
        """Change what a rank does in an iteration."""
        return work

    def changes(self, layout: Layout, is_on: bool) -> tuple[Change, ...]:
        """Give what is done from outside when it begins to act, or ends."""
        return ()

    def truth(self, layout: Layout) -> Truth:
        """Give what its label says."""
        return Truth()


@dataclass(frozen=True, slots=True)
class SlowWork(Fault):
    """Some ranks load data longer, or have more to compute.

    Parameters
    ----------
    ranks
        One, or all of a host.
    """

    ranks: tuple[int, ...] = ()
    load_s: float = 0.0
    factor: float = 1.0

    def work(self, rank: int, iteration: int, work: Work, layout: Layout) -> Work:
        """Make it slow."""
        if rank not in self.ranks or not self.acts(iteration):
            return work
        return replace(work, load_s=work.load_s + self.load_s, factor=work.factor * self.factor)

    def truth(self, layout: Layout) -> Truth:
        """Name the rank or the host."""
        what = []
        if self.load_s:
            what.append(f"waits {self.load_s * 1000:g} ms longer for its data")
        if self.factor != 1:
            what.append(f"has {self.factor:g} times the work in each layer")
        return _of_ranks(self.ranks, layout, " and ".join(what))


@dataclass(frozen=True, slots=True)
class CpuQuota(Fault):
    """The processes of one rank, or of all of a host together, get little CPU time."""

    ranks: tuple[int, ...] = ()
    cores: float = 1.0

    def changes(self, layout: Layout, is_on: bool) -> tuple[Change, ...]:
        """Set the quota, or lift it."""
        return (Quota(self.ranks, self.cores if is_on else None),)

    def truth(self, layout: Layout) -> Truth:
        """Name the rank or the host."""
        return _of_ranks(self.ranks, layout, f"gets {self.cores:g} of a core (cgroup cpu quota, period 20 ms)")


@dataclass(frozen=True, slots=True)
class SlowNic(Fault):
    """A NIC sends or receives slowly, towards everybody."""

    rank: int = 0
    direction: str = "both"
    mbit: float = 100.0

    def changes(self, layout: Layout, is_on: bool) -> tuple[Change, ...]:
        """Set the rate of the NIC, of its port on the switch, or of both."""
        mbit = self.mbit if is_on else LINE_MBIT
        found = []
        if self.direction in ("send", "both"):
            found.append(Command(self.rank, tuple(rate_commands(layout.nic(self.rank), mbit))))
        if self.direction in ("receive", "both"):
            found.append(Command(None, tuple(rate_commands(port(self.rank), mbit))))
        return tuple(found)

    def truth(self, layout: Layout) -> Truth:
        """Name the NIC."""
        what = {"send": "all that it sends", "receive": "all that it receives", "both": "both directions, each"}
        return Truth(
            "slow_nic", "nic", self.rank, None, (self.rank,), layout.host(self.rank), layout.leaf(self.rank),
            self.direction, f"tc htb: {what[self.direction]} at {self.mbit:g} Mbit/s (rank {self.rank})",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlowLink(Fault):
    """The path from one rank to another is slow, or both ways between them."""

    rank: int = 0
    peer: int = 1
    is_both: bool = False
    mbit: float = 50.0

    def changes(self, layout: Layout, is_on: bool) -> tuple[Change, ...]:
        """Set the rate of what one sends to the other."""
        mbit = self.mbit if is_on else LINE_MBIT
        ends = [(self.rank, self.peer), *([(self.peer, self.rank)] if self.is_both else [])]
        return tuple(
            Command(source, tuple(rate_commands(layout.nic(source), mbit, [layout.address(destination)])))
            for source, destination in ends
        )

    def truth(self, layout: Layout) -> Truth:
        """Name both ends."""
        way = "between ranks {} and {}, each way" if self.is_both else "from rank {} to rank {}"
        return Truth(
            "slow_link", "link", self.rank, self.peer, (self.rank, self.peer), None, None,
            "both" if self.is_both else "send",
            f"tc htb: {way.format(self.rank, self.peer)}, at {self.mbit:g} Mbit/s",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlowLeaf(Fault):
    """A leaf switch is slow: in each of its ports, or in its one uplink."""

    leaf: int = 0
    mbit: float = 100.0
    is_uplink: bool = False

    def changes(self, layout: Layout, is_on: bool) -> tuple[Change, ...]:
        """Set the rates of its ports, each way."""
        mbit = self.mbit if is_on else LINE_MBIT
        if self.is_uplink:
            devices = (f"up{self.leaf}", f"down{self.leaf}")
            return (Command(None, tuple(line for one in devices for line in rate_commands(one, mbit))),)
        members = layout.ranks_of_leaf(self.leaf)
        inward = [Command(rank, tuple(rate_commands(layout.nic(rank), mbit))) for rank in members]
        outward = tuple(line for rank in members for line in rate_commands(port(rank), mbit))
        return (*inward, Command(None, outward))

    def truth(self, layout: Layout) -> Truth:
        """Name the switch."""
        members = layout.ranks_of_leaf(self.leaf)
        where = "the uplink" if self.is_uplink else "each port"
        return Truth(
            "slow_communicator", "switch", None, None, members, None, f"leaf-{self.leaf}", "both",
            f"tc htb: {where} of leaf-{self.leaf} at {self.mbit:g} Mbit/s, each way",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlowSpine(Fault):
    """The switch between the leaves is slow. ``job.json`` does not know it: nobody is to be accused."""

    mbit: float = 100.0

    def changes(self, layout: Layout, is_on: bool) -> tuple[Change, ...]:
        """Set the rates of all uplinks, each way."""
        mbit = self.mbit if is_on else LINE_MBIT
        devices = [f"{way}{leaf}" for leaf in range(layout.leaves) for way in ("up", "down")]
        return (Command(None, tuple(line for one in devices for line in rate_commands(one, mbit))),)

    def truth(self, layout: Layout) -> Truth:
        """Name the switch, and no device."""
        members = tuple(range(layout.world_size))
        return Truth(
            "slow_communicator", None, None, None, members, None, SPINE, "both",
            f"tc htb: each uplink to {SPINE} at {self.mbit:g} Mbit/s, each way",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlowStage(SlowWork):
    """One stage of the pipeline has more to compute than the others."""

    def truth(self, layout: Layout) -> Truth:
        """Name the stage's ranks."""
        text = f"each layer of the stage's ranks takes {self.factor:g} times as long"
        return Truth("slow_stage", "stage", self.ranks[0], None, self.ranks, injected=text)


@dataclass(frozen=True, slots=True)
class Imbalance(Fault):
    """Another rank has the most to do in each iteration."""

    factor: float = 2.0
    seed: int = 1

    def work(self, rank: int, iteration: int, work: Work, layout: Layout) -> Work:
        """Give one rank more, drawn anew for each iteration."""
        if not self.acts(iteration):
            return work
        chosen = random.Random(1_000 * self.seed + iteration).randrange(layout.world_size)
        return replace(work, factor=work.factor * self.factor) if rank == chosen else work

    def truth(self, layout: Layout) -> Truth:
        """Say that nobody is to be replaced."""
        return Truth("imbalance", injected=f"one rank, drawn anew each iteration, has {self.factor:g} times the work")


@dataclass(frozen=True, slots=True)
class Hang(Fault):
    """One rank stops for ever: before its next operator, or inside one, where its port goes down."""

    rank: int = 0
    is_inside: bool = False

    def work(self, rank: int, iteration: int, work: Work, layout: Layout) -> Work:
        """Stop."""
        is_here = rank == self.rank and not self.is_inside and self.acts(iteration)
        return replace(work, stops=True) if is_here else work

    def changes(self, layout: Layout, is_on: bool) -> tuple[Change, ...]:
        """Lose every packet from the switch to the NIC and back."""
        if not self.is_inside or not is_on:
            return ()
        return (Command(None, (f"link set {port(self.rank)} down",), "ip"),)

    def truth(self, layout: Layout) -> Truth:
        """Name the rank."""
        how = f"the switch port of rank {self.rank} goes down" if self.is_inside else f"rank {self.rank} stops"
        return Truth(
            "hang", "gpu", self.rank, None, (self.rank,), layout.host(self.rank),
            injected=f"{how} in iteration {self.spans[0][0]}, for ever",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Benign(Fault):
    """Something that all ranks do and nobody is to blame for.

    Parameters
    ----------
    load_s, factor
        As in `Work`, for all ranks, while it acts.
    phase
        What the script says; an evaluation has no backward pass.
    """

    load_s: float = 0.0
    factor: float = 1.0
    phase: str = ""
    is_forward_alone: bool = False

    def work(self, rank: int, iteration: int, work: Work, layout: Layout) -> Work:
        """Change the work of all ranks alike."""
        if not self.acts(iteration):
            return work
        return replace(
            work, load_s=work.load_s + self.load_s, factor=work.factor * self.factor,
            phase=self.phase, is_forward_alone=self.is_forward_alone,
        )  # fmt: skip

    def truth(self, layout: Layout) -> Truth:
        """Say what happened."""
        parts = []
        if self.load_s:
            parts.append(f"all ranks pause {self.load_s * 1000:g} ms")
        if self.factor != 1:
            parts.append(f"all ranks have {self.factor:g} times the work")
        if self.is_forward_alone:
            parts.append("there is no backward pass")
        marked = f"marked as {self.phase}" if self.phase else "not marked by the script"
        return Truth(injected=f"no fault; {', '.join(parts)} ({marked})")


@dataclass(frozen=True, slots=True)
class Pauses(Fault):
    """Single pauses on ever different ranks, as of garbage collection: nobody to replace.

    Parameters
    ----------
    every
        One in so many iterations, on the average.
    """

    load_s: float = 0.1
    every: int = 8
    seed: int = 1

    def work(self, rank: int, iteration: int, work: Work, layout: Layout) -> Work:
        """Pause, if it is this rank's turn."""
        generator = random.Random(7_919 * self.seed + iteration)
        is_turn = generator.randrange(self.every) == 0 and generator.randrange(layout.world_size) == rank
        return replace(work, load_s=work.load_s + self.load_s) if is_turn and self.acts(iteration) else work

    def truth(self, layout: Layout) -> Truth:
        """Say what happened."""
        how_often = f"in one of {self.every} iterations on the average"
        return Truth(injected=f"no fault; one rank, ever another, pauses {self.load_s * 1000:g} ms {how_often}")


def _of_ranks(ranks: Sequence[int], layout: Layout, what: str) -> Truth:
    host = layout.host(ranks[0])
    if len(ranks) == 1:
        return Truth("slow_rank", "gpu", ranks[0], None, tuple(ranks), host, injected=f"rank {ranks[0]} {what}")
    text = f"all ranks of {host}: each {what}" if "core" not in what else f"the ranks of {host} together: {what}"
    return Truth("slow_rank", "host", ranks[0], None, tuple(ranks), host, injected=text)
