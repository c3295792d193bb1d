"""Works out the truth about a run: what was broken, how much it cost, and whether a log can show it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.independent.event_level.cluster import Pair
from tests.benchmarks.independent.event_level.engine import Engine
from tests.benchmarks.independent.event_level.faults import Fault, Hang, Imbalance, Place, SlowCompute, SlowResource
from tests.benchmarks.independent.event_level.noise import Noise
from tests.benchmarks.independent.event_level.programs import Put
from tests.benchmarks.independent.event_level.scenario import Draw

Label = dict[str, object]

Use = tuple[int, Pair | bool]
"""A communicator, and the ordered pair of a send and recv, or whether the collective is an all_to_all."""


def healthy_label(draw: Draw, noise: Noise, twin: Engine) -> Label:
    """Return the label of a healthy job, which is also where any other begins."""
    return {
        "kind": None, "device": None, "ranks": [], "iterations": [0, 0], "effect": 1.0,
        "noise": round(_variation(draw, noise, twin), 5), "hard": False, "shape": draw.shape,
        "what": f"healthy: {draw.healthy}",
    }  # fmt: skip


def _variation(draw: Draw, noise: Noise, twin: Engine) -> float:
    """Return the coefficient of variation of the twin's training iterations, without warm-up."""
    is_plain = ~np.array(noise.special) & (np.arange(draw.iterations) >= max(3, draw.want.warmup))
    usual = twin.iteration_times()[is_plain]
    return float(usual.std() / usual.mean())


class Labeller:
    """Describes one run with a fault, next to its healthy twin."""

    def __init__(self, draw: Draw, place: Place, fault: Fault, noise: Noise, engine: Engine, twin: Engine) -> None:
        self._draw, self._place, self._fault, self._noise = draw, place, fault, noise
        self._engine, self._twin = engine, twin
        self._cluster, self._job, self._style = draw.cluster, draw.job, draw.style

    def label(self, strength: float) -> Label:
        fault, place, why = self._fault, self._place, []
        label = healthy_label(self._draw, self._noise, self._twin)
        label.update(kind=fault.kind, device=fault.device, ranks=list(fault.ranks), course=place.course)
        if isinstance(fault, Hang):
            label.update(self._hang(fault))
            why += self._hang_doubts(fault)
        else:
            label.update(self._slowdown(strength))
            why += self._slowdown_doubts()
        if self._style.logged and not set(fault.ranks) <= set(self._style.logged):
            why.append("the device's ranks are not all logged")
        if isinstance(fault, SlowResource):
            why += self._resource_doubts(fault)
        why += self._stage_doubts()
        if why:
            label.update(hard=True, why_hard="; ".join(why))
        return label

    def _hang(self, fault: Hang) -> Label:
        first = fault.iteration + self._style.first_iteration
        how = "stays inside a kernel" if fault.is_inside else "stops"
        what = f"rank {fault.ranks[0]} {how} in iteration {first}"
        return {"iterations": [first, first + 1], "effect": None, "course": "hang", "what": what}

    def _hang_doubts(self, fault: Hang) -> list[str]:
        why = []
        if not any(row.end is None for row in self._engine.rows):
            why.append("nobody was waiting in an operator when recording stopped")
        if not fault.is_inside and (self._style.drop or not self._style.are_losses_known):
            why.append("rows may have been lost: not there is not the same as did not arrive")
        return why

    def _slowdown(self, strength: float) -> Label:
        place, shift = self._place, self._style.first_iteration
        is_on = np.array(place.level[place.first : place.past]) > 0
        everywhere = np.ones(len(is_on), dtype=bool)
        return {
            "iterations": [place.first + shift, place.past + shift],
            "effect": round(self._effect(everywhere), 4),
            "effect_active": round(self._effect(is_on), 4),
            "inflation": np.round(self._engine.iteration_times() / self._twin.iteration_times(), 4).tolist(),
            "strength": round(strength, 3),
            "active": [place.first + k + shift for k in np.flatnonzero(is_on).tolist()],
            "what": self._words(),
        }

    def _effect(self, is_counted: NDArray[np.bool_]) -> float:
        """Return how much longer those iterations of the fault's span took, checkpoints and evaluation left out."""
        span = slice(self._place.first, self._place.past)
        counted = is_counted & ~np.array(self._noise.special)[span]
        slow, usual = self._engine.iteration_times()[span], self._twin.iteration_times()[span]
        return float(slow[counted].mean() / usual[counted].mean())

    def _slowdown_doubts(self) -> list[str]:
        excess = self._effect(np.ones(self._place.past - self._place.first, dtype=bool)) - 1
        why = []
        if excess < 0.08:
            why.append("effect below 8 %")
        if excess < 2 * _variation(self._draw, self._noise, self._twin):
            why.append("effect below twice the noise")
        return why

    def _words(self) -> str:
        fault, course = self._fault, self._place.course
        if isinstance(fault, SlowCompute):
            return f"compute of {fault.device} {fault.ranks} x {fault.factor:.2f}, {course}"
        if isinstance(fault, SlowResource):
            names = [self._cluster.name[resource] for resource in fault.resources]
            return f"capacity of {', '.join(names)} divided by {fault.divisor:.1f}, {course}"
        assert isinstance(fault, Imbalance)
        return f"data of replicas uneven, sigma {fault.sigma:.2f}, {course}"

    def _resource_doubts(self, fault: SlowResource) -> list[str]:
        """Say why the log could not tell this device from another."""
        uses = self._uses()
        mine = self._crossing(uses, set(fault.resources))
        for name, resources in self._other_devices(fault).items():
            for part in [resources, *({resource} for resource in resources)]:
                if self._crossing(uses, part) == mine and not self._is_capped(fault):
                    return [f"the same communicators and pairs cross {name}"]
        why = []
        pairs = [frozenset(pair) for _, pair in mine if isinstance(pair, tuple)]
        if fault.kind == "slow_nic" and len(pairs) == len(mine) and len(set(pairs)) == 1:
            why.append("one pair alone crosses the NIC: it could be their link")
        if not mine:
            why.append("no operator crosses it")
        return why

    def _other_devices(self, fault: SlowResource) -> dict[str, set[int]]:
        cluster, place, others = self._cluster, self._place, {}
        for nic in cluster.nic_tx:
            if fault.kind != "slow_nic" or nic != place.nic:
                others[f"NIC mlx5_{nic[1]} of node-{nic[0]}"] = {cluster.nic_tx[nic], cluster.nic_rx[nic]}
        for leaf in cluster.up:
            if fault.kind != "slow_communicator" or leaf != place.leaf:
                others[f"switch leaf-{leaf}"] = {cluster.up[leaf], cluster.down[leaf]}
        return others

    def _uses(self) -> set[Use]:
        """Return what moves bytes that count in training."""
        uses: set[Use] = set()
        for rank, program in enumerate(self._job.programs["train"]):
            shares = (share for i in program if isinstance(i, Put) for share in i.shares if share.size > 1000)
            for share in shares:
                if share.peer < 0:
                    uses.add((share.communicator, share.operator == "all_to_all"))
                else:
                    pair = (rank, share.peer) if share.operator == "send" else (share.peer, rank)
                    uses.add((share.communicator, pair))
        return uses

    def _crossing(self, uses: set[Use], resources: set[int]) -> set[Use]:
        """Return which of the uses cross one of the resources: where a log can see it."""
        return {use for use in uses if any(not resources.isdisjoint(way) for way in self._ways(use))}

    def _ways(self, use: Use) -> list[list[int]]:
        cluster, (communicator, pair) = self._cluster, use
        members = self._job.members[communicator]
        if isinstance(pair, tuple):
            return [cluster.path(*pair)]
        if pair:
            return [cluster.path(a, b) for a in members for b in members if a != b]
        return [cluster.path(a, b) for a, b, _ in cluster.ring_edges(members)]

    def _is_capped(self, fault: SlowResource) -> bool:
        """Tell whether bandwidth samples show the fault: the NIC's highest rate is well below all others'."""
        if fault.kind != "slow_nic" or not self._style.bandwidth:
            return False
        place, period = self._place, self._style.bandwidth
        own = [row for row in self._engine.iteration_rows if row.rank == fault.reference]
        inside = [row for row in own if place.first < row.iteration < place.past]
        grid = np.arange(inside[0].start, inside[-1].end, period)
        if len(grid) < 5:
            return False
        table = self._cluster.nic_tx
        if table[place.nic] not in fault.resources:
            table = self._cluster.nic_rx
        highest = {}
        for nic, resource in table.items():
            moved = np.interp(grid, *self._engine.nic_bytes(resource))
            highest[nic] = float(np.quantile(np.diff(moved) / period, 0.98))
        mine = highest.pop(place.nic)
        return mine < 0.75 * min(highest.values())

    def _stage_doubts(self) -> list[str]:
        """Say why a stage and a host could not be told apart."""
        fault, job, cluster = self._fault, self._job, self._cluster
        if fault.device not in ("host", "stage") or not job.stages or self._place.course != "start":
            return []
        first = fault.ranks[0]
        stage = {rank for rank, stage in enumerate(job.stages) if stage == job.stages[first]}
        host = {rank for rank in range(cluster.world) if cluster.host(rank) == cluster.host(first)}
        if stage == host:
            return ["the host is the stage, and slow from the start"]
        if fault.device == "host" and stage < host:
            return ["whole stages on one host, and slow from the start"]
        return []
