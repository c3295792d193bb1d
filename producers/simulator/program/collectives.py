"""Which collectives a job calls: in a pass through a stage, beside it, and before and after the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from irregulars.producers.simulator.job.groups import has_group
from irregulars.producers.simulator.job.settings import SimulatorSettings

RING: Final = "ring"
"""Stands in the place of an operator where keys and values go round."""

Cuts = Sequence[tuple[str, str]]
"""Group and operator of each collective that cuts a pass through a stage."""


def reductions(settings: SimulatorSettings) -> list[tuple[str, str, int, int]]:
    """Before the optimizer: group, operator, bytes and number of calls; the dense gradients come first."""
    if is_unit_wise(settings):
        found = [("edp", "reduce_scatter", settings.expert_gradient_bytes, 1)]
        return [one for one in found if has_group(settings, one[0])]
    operator = "all_reduce" if settings.gradient_sync == "all_reduce" else "reduce_scatter"
    group = "shard" if settings.shards > 1 else "dp"
    found = [(group, operator, settings.gradient_bytes // settings.gradient_buckets, settings.gradient_buckets)]
    shard_ranks = settings.shards * settings.ep * settings.cp
    found.append(("replica", "all_reduce", settings.gradient_bytes // shard_ranks, 1))
    found.append(("edp", operator, settings.expert_gradient_bytes, 1))
    return [one for one in found if has_group(settings, one[0])]


def gatherings(settings: SimulatorSettings) -> Sequence[tuple[str, str, int, int]]:
    """After the optimizer, where its state is sharded: the new parameters."""
    if settings.gradient_sync == "all_reduce":
        return ()
    found = (one for one in reductions(settings) if one[0] != "replica")
    return [(group, "all_gather", size_bytes, count) for group, _, size_bytes, count in found]


def gradient_buckets(settings: SimulatorSettings) -> int:
    """How many buckets go out on the second stream."""
    has_dense = any(group in ("dp", "shard") for group, *_ in reductions(settings))
    return settings.gradient_buckets if settings.is_gradient_overlapped and has_dense else 0


def is_unit_wise(settings: SimulatorSettings) -> bool:
    """Whether parameters are gathered and gradients scattered unit by unit, in each pass."""
    return settings.gradient_sync == "fsdp" and (has_group(settings, "dp") or has_group(settings, "shard"))


def unit_of(settings: SimulatorSettings) -> tuple[str, int]:
    """Among whom a unit is sharded, and how many bytes it has."""
    parts = settings.fsdp_units * settings.model_chunks
    return "shard" if settings.shards > 1 else "dp", settings.gradient_bytes // parts


def has_expert_work(settings: SimulatorSettings) -> bool:
    """Whether some work follows the tokens that experts get."""
    return settings.expert_spread_ratio > 0 and settings.ep_operators > 0 and has_group(settings, "ep")


def expert_work(settings: SimulatorSettings, micro_batch: int) -> int:
    """Stands where the work on a micro-batch is its experts': behind all micro-batches."""
    return settings.micro_batches + micro_batch


def part_shares(settings: SimulatorSettings, cuts: Cuts) -> list[tuple[float, bool]]:
    """For each part of a pass: by how much it is longer than others, and whether experts do it.

    Every second all_to_all brings tokens back: what was computed before it are the experts.
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
