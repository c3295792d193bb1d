"""The calls of one iteration, as the ranks of one pipeline stage make them.

All ranks of a stage run the same program, so it is written once per stage: `producers.simulator.plan` spreads
it over the ranks. The parts of a program are here, and the order of the pipeline in
`producers.simulator.schedule`.

Which collectives a job calls: in a pass through a stage, beside it, and before and after the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from irregulars.producers.simulator.settings import NS_PER_MS, SimulatorSettings
from irregulars.producers.simulator.topology import has_group

RING: Final = "ring"  # stands in the place of an operator where keys and values go round
Cuts = Sequence[tuple[str, str]]  # group and operator of each collective that cuts a pass through a stage


def reductions(settings: SimulatorSettings) -> list[tuple[str, str, int, int]]:
    """Before the optimizer: group, operator, bytes and number of calls; the dense gradients come first."""
    operator = "all_reduce" if settings.gradient_sync == "all_reduce" else "reduce_scatter"
    found = [("edp", operator, settings.expert_gradient_bytes, 1)]
    if not is_unit_wise(settings):
        group = "shard" if settings.shards > 1 else "dp"
        dense = group, operator, settings.gradient_bytes // settings.gradient_buckets, settings.gradient_buckets
        # Between replicas a rank reduces its own shard of the gradients.
        own_bytes = settings.gradient_bytes // (settings.shards * settings.ep * settings.cp)
        found = [dense, ("replica", "all_reduce", own_bytes, 1), *found]
    return [one for one in found if has_group(settings, one[0])]


def is_unit_wise(settings: SimulatorSettings) -> bool:
    """Whether parameters are gathered and gradients scattered unit by unit, in each pass."""
    return settings.gradient_sync == "fsdp" and (has_group(settings, "dp") or has_group(settings, "shard"))


def unit_of(settings: SimulatorSettings) -> tuple[str, int]:
    """Return the group that shards a unit, and its bytes."""
    parts = settings.fsdp_units * settings.model_chunks
    return "shard" if settings.shards > 1 else "dp", settings.gradient_bytes // parts


def has_expert_work(settings: SimulatorSettings) -> bool:
    """Whether some work follows the tokens that experts get."""
    return settings.expert_spread_ratio > 0 and settings.ep_operators > 0 and has_group(settings, "ep")


def part_shares(settings: SimulatorSettings, cuts: Cuts) -> list[tuple[float, bool]]:
    """Return for each part of a pass its length relative to others, and whether experts do it.

    Every second all_to_all brings tokens back: the work before it is that of the experts.
    """
    usual = [(1.0, False)] * max(len(cuts), 1)
    exchanges = [part for part, (group, _) in enumerate(cuts) if group == "ep"]
    experts = exchanges[1::2]
    if not (has_expert_work(settings) and experts) or len(experts) == len(usual):
        return usual
    ratio, count = settings.expert_work_ratio, len(usual)
    dense = (1 - ratio) * count / (count - len(experts)), False
    return [(ratio * count / len(experts), True) if part in experts else dense for part in range(count)]


def pass_cuts(settings: SimulatorSettings, cp_operator: str) -> Cuts:
    """Collectives of one pass through a stage, in order."""
    wanted = (
        ("cp", RING if settings.cp_exchange == "ring" else cp_operator, settings.cp_operators),
        ("tp", "all_reduce", settings.tp_operators),
        ("ep", "all_to_all", settings.ep_operators),
    )
    found = [(group, operator, count) for group, operator, count in wanted if has_group(settings, group)]
    layers = max((count for _, _, count in found), default=0)
    return [(group, operator) for layer in range(layers) for group, operator, count in found if layer < count]


OWN_WORK: Final = -1  # stands where work belongs to no micro-batch: the optimizer, and data loading of all ranks
# Work that only the first rank of each tensor parallel group does: it loads the data for all of them.
LEADER_WORK: Final = -2
POINT: Final = "point"  # group of a call which is no communication: the moment at which a second stream may go on
P2P: Final = "pp"
# Streams beside the work. NCCL gives each communicator a stream of its own, so gathers and scatters share one.
GRADIENT_STREAM, REPLICA_STREAM, RING_STREAM = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Call:
    """One entry into communication: one operator, or sends and recvs that are batched."""

    group: str  # one of `producers.simulator.topology.VARYING`, or `POINT`
    operators: tuple[str, ...]  # one name; of p2p one or several of ``send`` and ``recv``
    size_bytes: int  # payload of each operator
    peers: tuple[int, ...] = ()  # of p2p: for each operator the stage at its other end
    # Work of the rank before it enters: pairs of micro-batch (or `OWN_WORK`, `LEADER_WORK`) and nanoseconds
    work: tuple[tuple[int, float], ...] = ()
    # Calls of one stream follow each other. A call beside stream 0 also waits for the call on stream 0 that came
    # before it; calls on stream 0 wait for those on others only by `is_joining` or `after`.
    stream: int = 0
    is_joining: bool = False  # waits for all calls made on other streams so far
    is_logged: bool = True  # false: the ranks wait in it as in any other, but write no row
    is_scaled: bool = False  # its payload grows with the length of the sequences
    after: tuple[int, ...] = ()  # places in the program of calls that must have ended besides
    # Above 0: each member sends to the next of its group and receives from the one before, all in one batch, in
    # groups of this size
    ring: int = 0


@dataclass(slots=True)
class Program:
    """Builds the calls of one stage; work that is done before a call is kept until the call comes."""

    stage: int
    settings: SimulatorSettings
    calls: list[Call] = field(default_factory=list)
    _work: list[tuple[int, float]] = field(default_factory=list)
    _after: tuple[int, ...] = ()
    _is_joining: bool = False
    _buckets_sent: int = 0

    def work(self, milliseconds: float, micro_batch: int = OWN_WORK) -> None:
        """Work before the next call."""
        self._work.append((micro_batch, milliseconds * NS_PER_MS))

    def collective(self, group: str, operator: str, size_bytes: int, *, is_scaled: bool = False) -> None:
        """Call a collective, where the job has such groups."""
        if has_group(self.settings, group):
            is_logged = ("barrier" if operator == "barrier" else group) not in self.settings.hidden
            self._add(Call(group, (operator,), size_bytes, is_logged=is_logged, is_scaled=is_scaled))

    def exchange(self, *messages: tuple[str, int]) -> None:
        """Call p2p with all these pairs of operator and stage in one batch; nothing if there are none."""
        if messages:
            operators, peers = zip(*messages, strict=True)
            self._add(Call(P2P, operators, self.settings.activation_bytes, peers, is_scaled=True))

    def beside(self, call: Call) -> int:
        """Call on another stream, as soon as the work so far is done; return the place of the call."""
        self.mark()
        self.calls.append(replace(call, is_logged=call.group not in self.settings.hidden))
        return len(self.calls) - 1

    def mark(self) -> None:
        """Mark the moment at which the work so far is done."""
        if self._work:
            self._add(Call(POINT, (), 0, is_logged=False))

    def wait_for(self, place: int) -> None:
        """Do no more work before this call, of another stream, is over."""
        self._after += (place,)

    def load_data(self) -> None:
        """Wait for the data of the iteration."""
        is_broadcast = self.settings.has_data_broadcast and has_group(self.settings, "tp")
        self.work(self.settings.data_loading_ms, LEADER_WORK if is_broadcast else OWN_WORK)
        if is_broadcast:
            self.collective("tp", "broadcast", 8 * self.settings.tokens_per_micro_batch, is_scaled=True)

    def forward(self, micro_batch: int) -> None:
        """Forward of one micro-batch through one model chunk."""
        if is_unit_wise(self.settings):
            self._pass_units(self.settings.forward_ms, micro_batch, "all_gather", is_backward=False)
        else:
            cuts = pass_cuts(self.settings, "all_gather")
            self._pass_through(self.settings.forward_ms, micro_batch, cuts, 0)

    def backward(self, micro_batch: int, *, is_last: bool) -> None:
        """Backward of one micro-batch through one model chunk; the last one makes the gradients."""
        has_dense = any(group in ("dp", "shard") for group, *_ in reductions(self.settings))
        is_overlapped = is_last and self.settings.is_gradient_overlapped and has_dense
        buckets = self.settings.gradient_buckets if is_overlapped else 0  # those that go out on the second stream
        if is_unit_wise(self.settings):
            self._pass_units(self.settings.backward_ms, micro_batch, "reduce_scatter", is_backward=True)
        else:
            cuts = pass_cuts(self.settings, "reduce_scatter")
            self._pass_through(self.settings.backward_ms, micro_batch, cuts, buckets)

    def finish(self) -> None:
        """Add gradients, optimizer, and the reduction over all ranks at the end."""
        settings = self.settings
        self._is_joining = bool(self._buckets_sent) or is_unit_wise(settings)
        self._repeat(reductions(settings)[bool(self._buckets_sent) :])
        if self.stage in (0, settings.pp - 1):
            self.collective("emb", "all_reduce", settings.activation_bytes)
        if "barrier" in settings.hidden:
            self.collective("world", "barrier", 0)
        self.work(settings.optimizer_ms)
        if settings.gradient_sync != "all_reduce":  # the optimizer's state is sharded: the new parameters come back
            found = (one for one in reductions(settings) if one[0] != "replica")
            self._repeat([(group, "all_gather", size_bytes, count) for group, _, size_bytes, count in found])
        if settings.has_loss_reduction:
            self.collective("shard" if settings.shards > 1 else "dp", "reduce", 8)
        self.collective("world", "all_reduce", 8)

    def _repeat(self, wanted: Sequence[tuple[str, str, int, int]]) -> None:
        for group, operator, size_bytes, count in wanted:
            for _ in range(count):
                self.collective(group, operator, size_bytes)

    def _pass_through(self, milliseconds: float, micro_batch: int, cuts: Cuts, buckets: int) -> None:
        """Work, cut by the collectives of the groups inside a stage, and by the buckets that it has finished."""
        parts = max(len(cuts), 1)
        pieces = max(buckets // parts, 1)  # without collectives, the work is cut for the buckets alone
        shares = part_shares(self.settings, cuts)
        for part in range(parts):
            ratio, is_expert = shares[part]
            # The experts' work on a micro-batch has a column of its own, behind all micro-batches.
            column = self.settings.micro_batches + micro_batch if is_expert else micro_batch
            length_ms = milliseconds / self.settings.model_chunks / (parts * pieces) * ratio
            for piece in range(pieces):
                is_cut = piece == pieces - 1 and bool(cuts)
                if is_cut and cuts[part][1] == RING:
                    self._go_round(length_ms, column)
                else:
                    self.work(length_ms, column)
                if is_cut and cuts[part][1] != RING:
                    self.collective(*cuts[part], self.settings.activation_bytes, is_scaled=True)
                # Buckets go out evenly: 4 over 2 parts make 2 pieces a part, and one more is out after each.
                wanted = buckets * (part * pieces + piece + 1) // (parts * pieces)
                # Marked once: buckets that go out together wait for the same work.
                if wanted > self._buckets_sent:
                    self.mark()
                while self._buckets_sent < wanted:
                    group, operator, size_bytes, _ = reductions(self.settings)[0]
                    self.calls.append(Call(group, (operator,), size_bytes, stream=GRADIENT_STREAM))
                    self._buckets_sent += 1

    def _go_round(self, milliseconds: float, micro_batch: int) -> None:
        """Work on one block of the sequence after the other, while the next one is on its way."""
        if self._after:
            self._add(Call(POINT, (), 0, is_logged=False))  # nothing goes round before its parameters have come
        blocks, coming = self.settings.cp, None
        for block in range(blocks):
            before = coming
            if block < blocks - 1:
                size_bytes = self.settings.activation_bytes
                batch = Call("cp", ("send", "recv"), size_bytes, (1, -1), stream=RING_STREAM, is_scaled=True)
                coming = self.beside(replace(batch, ring=blocks))
            if before is not None:
                self.wait_for(before)
            self.work(milliseconds / blocks, micro_batch)
            self.mark()

    def _pass_units(self, milliseconds: float, micro_batch: int, cp_operator: str, *, is_backward: bool) -> None:
        """Work unit by unit: parameters come one unit ahead, and after a backward the gradients go."""
        units, cuts = self.settings.fsdp_units, pass_cuts(self.settings, cp_operator)
        coming = self._gather()
        for unit in range(units):
            self.wait_for(coming)
            if unit < units - 1:
                coming = self._gather()
            own = cuts[len(cuts) * unit // units : len(cuts) * (unit + 1) // units]
            self._pass_through(milliseconds / units, micro_batch, own, 0)
            self.mark()
            if is_backward:
                group, size_bytes = unit_of(self.settings)
                scattered = self.beside(Call(group, ("reduce_scatter",), size_bytes, stream=GRADIENT_STREAM))
                if has_group(self.settings, "replica"):
                    own_bytes = size_bytes // (self.settings.shards * self.settings.ep * self.settings.cp)
                    reduced = Call("replica", ("all_reduce",), own_bytes, stream=REPLICA_STREAM, after=(scattered,))
                    self.beside(reduced)

    def _gather(self) -> int:
        group, size_bytes = unit_of(self.settings)
        return self.beside(Call(group, ("all_gather",), size_bytes, stream=GRADIENT_STREAM))

    def _add(self, call: Call) -> None:
        work, joins = tuple(self._work), self._is_joining
        self.calls.append(replace(call, work=work, is_joining=joins, after=self._after))
        self._work.clear()
        self._is_joining, self._after = False, ()
