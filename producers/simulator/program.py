"""The calls of one iteration, as the ranks of one pipeline stage make them.

All ranks of a stage run the same program, so it is written once per stage: `producers.simulator.plan` spreads it over
the ranks. What a program is made of stands here, and the order of the pipeline in `producers.simulator.pipeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from producers.simulator.groups import has_group
from producers.simulator.settings import NS_PER_MS, SimulatorSettings

OWN_WORK: Final = -1
"""Stands where work belongs to no micro-batch: the optimizer, and data loading of all ranks."""

LEADER_WORK: Final = -2
"""Work that only the first rank of each tensor parallel group does: it loads the data for all of them."""

POINT: Final = "point"
"""Group of a call which is no communication: the moment at which a second stream may go on."""

P2P: Final = "pp"


@dataclass(frozen=True, slots=True)
class Call:
    """One entry into communication: one operator, or sends and recvs that are batched.

    Parameters
    ----------
    group
        One of `producers.simulator.groups.VARYING`, or `POINT`.
    operators
        One name; of p2p one or several of ``send`` and ``recv``.
    size_bytes
        Payload of each operator.
    peers
        Of p2p: for each operator the stage at its other end.
    work
        What the rank does before it enters: pairs of micro-batch (or `OWN_WORK`, `LEADER_WORK`) and nanoseconds.
    stream
        Calls of one stream follow each other. A call on stream 1 also waits for the call on stream 0 that was made
        before it; calls on stream 0 wait for those on stream 1 only if they say so.
    is_joining
        Waits for all calls made on stream 1 so far.
    is_logged
        False: the ranks wait in it as in any other, but write no row.
    is_scaled
        Its payload grows with the length of the sequences.
    """

    group: str
    operators: tuple[str, ...]
    size_bytes: int
    peers: tuple[int, ...] = ()
    work: tuple[tuple[int, float], ...] = ()
    stream: int = 0
    is_joining: bool = False
    is_logged: bool = True
    is_scaled: bool = False


@dataclass(slots=True)
class Program:
    """Builds the calls of one stage; work that is done before a call is kept until the call comes."""

    stage: int
    settings: SimulatorSettings
    calls: list[Call] = field(default_factory=list)
    _work: list[tuple[int, float]] = field(default_factory=list)
    _is_joining: bool = False
    _buckets_sent: int = 0

    def work(self, milliseconds: float, micro_batch: int = OWN_WORK) -> None:
        """Work before the next call."""
        self._work.append((micro_batch, milliseconds * NS_PER_MS))

    def collective(self, group: str, operator: str, size_bytes: int, *, is_scaled: bool = False) -> None:
        """Call a collective, where the job has such groups."""
        if has_group(self.settings, group):
            is_logged = ("barrier" if operator == "barrier" else group) not in self.settings.hidden
            self._call(group, (operator,), size_bytes, is_logged=is_logged, is_scaled=is_scaled)

    def exchange(self, *messages: tuple[str, int]) -> None:
        """Call p2p with all these pairs of operator and stage in one batch; nothing if there are none."""
        if messages:
            operators, peers = zip(*messages, strict=True)
            self._call(P2P, operators, self.settings.activation_bytes, peers=peers, is_scaled=True)

    def load_data(self) -> None:
        """Wait for the data of the iteration."""
        is_broadcast = self.settings.has_data_broadcast and has_group(self.settings, "tp")
        self.work(self.settings.data_loading_ms, LEADER_WORK if is_broadcast else OWN_WORK)
        if is_broadcast:
            self.collective("tp", "broadcast", 8 * self.settings.tokens_per_micro_batch, is_scaled=True)

    def forward(self, micro_batch: int) -> None:
        """Forward of one micro-batch through one model chunk."""
        self._pass_through(self.settings.forward_ms, micro_batch, "all_gather", 0)

    def backward(self, micro_batch: int, *, is_last: bool) -> None:
        """Backward of one micro-batch through one model chunk; the last one makes the gradients."""
        buckets = gradient_buckets(self.settings) if is_last else 0
        self._pass_through(self.settings.backward_ms, micro_batch, "reduce_scatter", buckets)

    def finish(self) -> None:
        """Gradients, optimizer, and what all ranks agree on at the end."""
        settings = self.settings
        self._is_joining = bool(self._buckets_sent)
        for group, operator, size_bytes, count in reductions(settings)[bool(self._buckets_sent) :]:
            self._repeat(group, operator, size_bytes, count)
        if self.stage in (0, settings.pp - 1):
            self.collective("emb", "all_reduce", settings.activation_bytes)
        if "barrier" in settings.hidden:
            self.collective("world", "barrier", 0)
        self.work(settings.optimizer_ms)
        for group, operator, size_bytes, count in gatherings(settings):
            self._repeat(group, operator, size_bytes, count)
        if settings.has_loss_reduction:
            self.collective("shard" if settings.shards > 1 else "dp", "reduce", 8)
        self.collective("world", "all_reduce", 8)

    def _repeat(self, group: str, operator: str, size_bytes: int, count: int) -> None:
        for _ in range(count):
            self.collective(group, operator, size_bytes)

    def _pass_through(self, milliseconds: float, micro_batch: int, cp_operator: str, buckets: int) -> None:
        """Work, cut by the collectives of the groups inside a stage, and by the buckets that it has finished."""
        cuts = _cuts(self.settings, cp_operator)
        parts = max(len(cuts), 1)
        pieces = max(buckets // parts, 1)  # without collectives, the work is cut for the buckets alone
        for part in range(parts):
            for piece in range(pieces):
                self.work(milliseconds / self.settings.model_chunks / (parts * pieces), micro_batch)
                if piece == pieces - 1 and cuts:
                    self.collective(*cuts[part], self.settings.activation_bytes, is_scaled=True)
                self._send_buckets(buckets * (part * pieces + piece + 1) // (parts * pieces))

    def _send_buckets(self, wanted: int) -> None:
        if wanted > self._buckets_sent and self._work:
            self._call(POINT, (), 0, is_logged=False)
        while self._buckets_sent < wanted:
            group, operator, size_bytes, _ = reductions(self.settings)[0]
            self.calls.append(Call(group, (operator,), size_bytes, stream=1))
            self._buckets_sent += 1

    def _call(
        self,
        group: str,
        operators: tuple[str, ...],
        size_bytes: int,
        *,
        peers: tuple[int, ...] = (),
        is_logged: bool = True,
        is_scaled: bool = False,
    ) -> None:
        call = Call(
            group, operators, size_bytes, peers, tuple(self._work),
            is_joining=self._is_joining, is_logged=is_logged, is_scaled=is_scaled,
        )  # fmt: skip
        self.calls.append(call)
        self._work.clear()
        self._is_joining = False


def reductions(settings: SimulatorSettings) -> list[tuple[str, str, int, int]]:
    """Before the optimizer: group, operator, bytes and number of calls; the dense gradients come first."""
    operator = {"sharded": "reduce_scatter", "all_reduce": "all_reduce"}[settings.gradient_sync]
    group = "shard" if settings.shards > 1 else "dp"
    found = [(group, operator, settings.gradient_bytes // settings.gradient_buckets, settings.gradient_buckets)]
    shard_ranks = settings.shards * settings.ep * settings.cp
    found.append(("replica", "all_reduce", settings.gradient_bytes // shard_ranks, 1))
    found.append(("edp", operator, settings.expert_gradient_bytes, 1))
    return [one for one in found if has_group(settings, one[0])]


def gatherings(settings: SimulatorSettings) -> Sequence[tuple[str, str, int, int]]:
    """After the optimizer, where its state is sharded: the new parameters."""
    if settings.gradient_sync != "sharded":
        return ()
    found = (one for one in reductions(settings) if one[0] != "replica")
    return [(group, "all_gather", size_bytes, count) for group, _, size_bytes, count in found]


def gradient_buckets(settings: SimulatorSettings) -> int:
    """How many buckets go out on the second stream."""
    has_dense = any(group in ("dp", "shard") for group, *_ in reductions(settings))
    return settings.gradient_buckets if settings.is_gradient_overlapped and has_dense else 0


def _cuts(settings: SimulatorSettings, cp_operator: str) -> list[tuple[str, str]]:
    """Collectives of one pass through a stage, in order."""
    wanted = (
        ("cp", cp_operator, settings.cp_operators),
        ("tp", "all_reduce", settings.tp_operators),
        ("ep", "all_to_all", settings.ep_operators),
    )
    found = [(group, operator, count) for group, operator, count in wanted if has_group(settings, group)]
    layers = max((count for _, _, count in found), default=0)
    return [(group, operator) for layer in range(layers) for group, operator, count in found if layer < count]
