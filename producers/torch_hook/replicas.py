"""Which ranks hold the same parameters as this one, and the checksums that show whether they do.

Checksums are of integer arithmetic on the tensors' device; any changed, swapped or moved bit alters them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_ROW: Final = 1 << 13  # words of 4 bytes that share a table of weights; 64 KiB of it stay in a core's cache
_PRIME: Final = 1099511628211  # FNV's, by which the sums of rows and tensors are chained
CHECKSUM_MASK: Final = (1 << 62) - 1
_CARRY: Final = 1 << 64
_weights: dict[Any, tuple[Any, Any]] = {}  # by device


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


def checksum(tensors: Sequence[Any]) -> int:
    """Return the checksum of tensors, 0 to 2^62 - 1; waits for their device."""
    return int(sum_of(tensors)) & CHECKSUM_MASK


def sum_of(tensors: Sequence[Any]) -> Any:
    """Return a tensor of one int64 on the first tensor's device; its low 62 bits are the checksum.

    Each word of 4 bytes, as an integer, times a weight of its place, modulo 2^64: weights are odd, so that one
    changed word always shows, and of 8 bytes, so that two flips of the highest bit do not cancel. A plain sum would
    miss swapped elements. The sums of rows and tensors are weighted in the same way.
    """
    import torch

    total: Any = None
    for number, tensor in enumerate(tensors):
        own = _sum_of_one(tensor) * _signed(pow(_PRIME, number + 1, _CARRY))
        total = own if total is None else total + own.to(total.device)
    return torch.zeros((), dtype=torch.int64) if total is None else total


def _sum_of_one(tensor: Any) -> Any:
    import torch

    words, rest = _words(tensor)
    weights, chain = _tables(words.device)
    own = _weighted(rest.view(1, -1).to(torch.int64), weights)[0]
    while words.numel():  # the chain is as long as a row: a tensor of up to 256 MiB takes one turn
        # Whole rows first; fewer words than a row has are a short row of their own.
        rows = min(words.numel() // _ROW, _ROW)
        part = words[: rows * _ROW] if rows else words
        sums = _weighted(part.to(torch.int64).view(max(rows, 1), -1), weights)
        own = own * _PRIME + _weighted(sums.view(1, -1), chain)[0]
        words = words[part.numel() :]
    return own


def _weighted(rows: Any, weights: Any) -> Any:
    """Return the sum over each row's words, times their weights."""
    own = weights[: rows.shape[1]]
    # On a host products that are stored first cost twice the time; on a device torch has no `mv` of integers.
    return rows.mv(own) if rows.device.type == "cpu" else (rows * own).sum(dim=1)


def _words(tensor: Any) -> tuple[Any, Any]:
    """Return a tensor's bits as words of 4 bytes, and the elements that are left.

    Where it begins between two words, each element is a word.
    """
    import torch

    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = tensor.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    bits, size = flat.view(kinds[flat.element_size()]), flat.element_size()
    # torch views bytes as words only where they begin at a multiple of four.
    if bits.storage_offset() * size % 4:
        return bits, bits[:0]
    # Of 7 elements of 2 bytes 6 make three words, and one is left.
    whole = bits.numel() if size >= 4 else bits.numel() * size // 4 * 4 // size
    return bits[:whole].view(torch.int32), bits[whole:]


def _tables(device: Any) -> tuple[Any, Any]:
    import torch

    if device not in _weights:
        places = torch.arange(1, _ROW + 1, dtype=torch.int64, device=device)
        # Multiples of two odd numbers without a visible rule (the golden ratio's bits, and those of MurmurHash3)
        found = (places * _signed(one) | 1 for one in (0x9E3779B97F4A7C15, 0xFF51AFD7ED558CCD))
        _weights[device] = next(found), next(found)
    return _weights[device]


def _signed(number: int) -> int:
    """Return the int64 with the low 64 bits of a number."""
    return (number + (1 << 63)) % _CARRY - (1 << 63)
