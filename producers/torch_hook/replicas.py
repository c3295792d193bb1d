"""Which ranks hold the same parameters as this one, by the parts of torch that make replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def shared_parameters(model: Any) -> list[Any]:
    """Return a model's parameters, without those that DDP ignores."""
    ignored = set(getattr(model, "parameters_to_ignore", ()))
    return [one for name, one in inner_of(model).named_parameters() if name not in ignored]


def inner_of(model: Any) -> Any:
    """Return the model inside DDP: its own calls reduce nothing."""
    from torch.nn.parallel import DistributedDataParallel

    return model.module if isinstance(model, DistributedDataParallel) else model


def local_of(tensor: Any) -> Any:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_sharded(model: Any) -> bool:
    """Whether ranks hold parts of one parameter: then none computes a whole gradient of its own."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    has_parts = any(hasattr(one, "to_local") for one in model.parameters())
    return has_parts or any(isinstance(one, FullyShardedDataParallel) for one in model.modules())


def replicas_of(model: Any, process_group: Any = None) -> tuple[int, ...] | None:
    """Return the ranks that hold the same parameters after each step, bit by bit, this one among them; None: unknown.

    `process_group`: given by the script, for a model that it keeps equal itself. DDP keeps its group equal; FSDP a
    group across which it replicates (HSDP); ranks of one tensor-parallel group hold different parts.
    """
    from torch import distributed

    if process_group is None:
        process_group = group_of(model)
    ranks = _ranks_of_mesh(model) if process_group is None else distributed.get_process_group_ranks(process_group)
    return tuple(sorted(ranks)) if ranks is not None and len(ranks) > 1 else None


def group_of(model: Any) -> Any:
    """Return the process group whose ranks torch keeps equal; None where it is a part of a mesh, or there is none."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        return model.process_group
    if isinstance(model, FullyShardedDataParallel):
        # The group across replicas of HSDP has no public name in torch.
        whole = model.sharding_strategy == ShardingStrategy.NO_SHARD
        return model.process_group if whole else getattr(model, "_inter_node_pg", None)
    return None


def _ranks_of_mesh(model: Any) -> Sequence[int] | None:
    """Return the ranks along the dimensions of a mesh over which every parameter is replicated.

    On a mesh of 2 replicas by 4 shards, rank 5 at (1, 1) has the parameters of rank 1 at (0, 1).
    """
    parts = [one for one in model.parameters() if hasattr(one, "placements")]
    meshes = {one.device_mesh for one in parts}
    # With a parameter on no mesh, or on another, no one set of ranks holds the same of all.
    if not parts or len(parts) != len(list(model.parameters())) or len(meshes) != 1:
        return None
    mesh = meshes.pop()
    coordinate = mesh.get_coordinate()
    if coordinate is None:  # this rank is not on the mesh
        return None
    is_same = [all(one.placements[place].is_replicate() for one in parts) for place in range(mesh.ndim)]
    at = tuple(slice(None) if same else own for same, own in zip(is_same, coordinate, strict=True))
    ranks: list[int] = mesh.mesh[at].reshape(-1).tolist()
    return ranks
