"""Checksums of tensors that any changed, swapped or moved bit alters, by integer arithmetic on the tensors' device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

_ROW: Final = 1 << 14  # elements that share a table of weights; 64 KiB of it stay in a core's cache
_PRIME: Final = 1099511628211  # FNV's, by which the sums of rows and tensors are chained
_MASK: Final = (1 << 62) - 1
_BITS: Final = 1 << 64
_weights: dict[Any, Any] = {}


def checksum(tensors: Sequence[Any]) -> int:
    """Return the checksum of tensors, 0 to 2^62 - 1, where the host may wait for their device."""
    return int(sum_of(tensors)) & _MASK


def sum_of(tensors: Sequence[Any]) -> Any:
    """Return a tensor of one int64 on the first tensor's device; its low 62 bits are the checksum.

    Each element's bits, as an integer, times an odd weight of its place: an odd factor maps different integers to
    different ones modulo 2^32, so that one changed element always shows. A plain sum would miss swapped elements and
    opposite flips. The sums of rows and tensors are weighted in the same way, modulo 2^64.
    """
    import torch

    total: Any = None
    for number, tensor in enumerate(tensors):
        own = _sum_of_one(tensor) * _signed(pow(_PRIME, number + 1, _BITS))
        total = own if total is None else total + own.to(total.device)
    return torch.zeros((), dtype=torch.int64) if total is None else total


def _sum_of_one(tensor: Any) -> Any:
    import torch

    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    bits = flat.view(kinds[flat.element_size()])
    rows = bits.numel() // _ROW
    weights, chain = _tables(bits.device, bits.dtype == torch.int64)
    rest = bits[rows * _ROW :]
    own = (rest * weights[: rest.numel()]).sum(dtype=torch.int64)
    while rows:  # the chain is as long as a row: so a tensor of up to 2^28 elements takes one pass
        part = bits[: min(rows, _ROW) * _ROW]
        sums = (part.view(-1, _ROW) * weights).sum(dim=1, dtype=torch.int64)
        own = own * _PRIME + (sums * chain[: sums.numel()]).sum()
        bits, rows = bits[part.numel() :], rows - sums.numel()
    return own


def _tables(device: Any, is_wide: bool) -> tuple[Any, Any]:
    """Return the weights of a row's elements and of rows, odd, in an order without a visible rule."""
    import torch

    key = device, is_wide
    if key not in _weights:
        places = torch.arange(1, _ROW + 1, dtype=torch.int64, device=device)
        chain = places * _signed(0x9E3779B97F4A7C15) | 1
        _weights[key] = (chain if is_wide else (chain >> 32).to(torch.int32) | 1), chain
    return _weights[key]


def _signed(number: int) -> int:
    """Return the int64 with the low 64 bits of a number."""
    return (number + (1 << 63)) % _BITS - (1 << 63)


def parts_of(tensors: Sequence[Any], parts: int) -> list[list[Any]]:
    """Cut tensors, put end to end, into parts of equal length; return each part's views of them.

    `parts`: at least 1. Tensors must be contiguous, since a view keeps showing what they hold later.
    """
    flat = [tensor.detach().view(-1) for tensor in tensors]
    total = sum(one.numel() for one in flat)
    return [list(_between(flat, total * part // parts, total * (part + 1) // parts)) for part in range(parts)]


def _between(flat: Sequence[Any], first: int, past: int) -> Iterator[Any]:
    start = 0
    for one in flat:
        low, high = max(first - start, 0), min(past - start, one.numel())
        if low < high:
            yield one[low:high]
        start += one.numel()
