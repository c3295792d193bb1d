"""Behaviour patterns of many iterations at once: where operators and samples of the NIC meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import pack_columns
from irregulars.detectors.nics.behaviour_patterns import (
    MIN_SAMPLES,
    Executions,
    Intervals,
    is_one_counter,
    merge_executions,
    shares,
    statistics,
)
from irregulars.streams.messages.evidence import PATTERN_COLUMNS, no_patterns
from irregulars.streams.messages.records import UNKNOWN
from irregulars.streams.rank_hop.nic_samples import Samples

Array = np.ndarray

MIN_SHARE: Final = 0.01
"""What takes no more of its iteration is never abnormal (EROICA, NSDI 2026): its pattern stays where it is."""

_LONGEST_NS: Final = 86_400_000_000_000  # of an iteration: its times are wrong, and sums of them might not fit
_LEADING_BITS: Final = np.uint32(0xFFFC0000)
_HALF: Final = np.uint32(0x20000)
_ALL: Final = -1


class Sampled(NamedTuple):
    """Samples of all iterations, in order of iteration and time, their times since the beginning of the iteration."""

    block: Array
    begin_ns: Array
    end_ns: Array
    tx: Array
    rx: Array


def place_samples(parts: Sequence[tuple[int, Samples]], sizes: Array, start_ns: Array, elapsed_ns: Array) -> Sampled:
    """Give each sample to the iteration in which the middle of its interval lies, and cut it off at its borders.

    Parameters
    ----------
    parts
        First block of a rank, and its samples.
    sizes
        How many blocks each of the ranks has.
    start_ns, elapsed_ns
        Of all blocks; a rank's are ascending.
    """
    placed = [
        _place(first, samples, start_ns[first : first + size], elapsed_ns[first : first + size])
        for (first, samples), size in zip(parts, sizes.tolist(), strict=True)
    ]
    return Sampled(*(np.concatenate(columns) for columns in zip(*placed, strict=True)))


def reduce_patterns(
    rows: Mapping[str, Array], elapsed_ns: Array, start_ns: Array, sampled: Sampled
) -> tuple[dict[str, Array], Array]:
    """Make the patterns of all blocks: of each class of operators, and of the iteration as a whole.

    Parameters
    ----------
    rows
        Operators with ``block``, ``communicator``, ``operator``, ``start_ns`` and ``elapsed_ns``.
    elapsed_ns, start_ns
        Of each block.

    Returns
    -------
    `streams.messages.evidence.PATTERN_COLUMNS`, in order of the blocks, and how many rows belong to each block.
    """
    blocks = len(elapsed_ns)
    has_samples = np.bincount(sampled.block, minlength=blocks) >= MIN_SAMPLES
    if not has_samples.any():
        return no_patterns(blocks)
    length_ns = np.where(has_samples, elapsed_ns, 0)
    lifted_ns = np.cumsum(length_ns) - length_ns  # one block after the other on one axis of time
    key, begin_ns, end_ns = _executions(rows, has_samples, start_ns, length_ns)
    keys, first, group = np.unique(key[0], return_index=True, return_inverse=True)
    block, communicator, operator = (column[first] for column in key[1:])
    lift_ns = lifted_ns[key[1]]
    sampled = Sampled(*(column[has_samples[sampled.block]] for column in sampled))
    merged = merge_executions(Executions(group, begin_ns + lift_ns, end_ns + lift_ns))
    found = {
        "communicator": communicator,
        "operator": operator,
        "share": _rounded(shares(merged, length_ns[block])),
        **_rates(merged, sampled, lifted_ns, len(keys)),
    }
    is_known = np.isfinite(found["tx_mean"]) | np.isfinite(found["rx_mean"])
    kept = np.flatnonzero(is_known & (found["share"] > MIN_SHARE))
    assert found.keys() == PATTERN_COLUMNS.keys()
    return {name: column[kept] for name, column in found.items()}, np.bincount(block[kept], minlength=blocks)


def _place(first: int, samples: Samples, start_ns: Array, elapsed_ns: Array) -> Sampled:
    end_ns = start_ns + elapsed_ns
    at = np.searchsorted(start_ns, samples.middle_ns, side="right") - 1
    own = np.maximum(at, 0)
    is_sane = (start_ns != UNKNOWN) & (elapsed_ns > 0) & (elapsed_ns < _LONGEST_NS)
    kept = np.flatnonzero((at >= 0) & is_sane[own] & (samples.middle_ns < end_ns[own]))
    kept = kept[np.lexsort((samples.end_ns[kept], own[kept]))]
    if not is_one_counter(samples.begin_ns[kept], samples.end_ns[kept]):
        kept = kept[:0]
    own = own[kept]
    begin_ns = np.maximum(samples.begin_ns[kept], start_ns[own]) - start_ns[own]
    past_ns = np.minimum(samples.end_ns[kept], end_ns[own]) - start_ns[own]
    return Sampled(first + own, begin_ns, past_ns, samples.tx[kept], samples.rx[kept])


def _executions(
    rows: Mapping[str, Array], has_samples: Array, start_ns: Array, length_ns: Array
) -> tuple[tuple[Array, Array, Array, Array], Array, Array]:
    """Operators of sampled blocks, and each of these blocks as a whole: key, block, communicator, operator; times."""
    is_used = has_samples[rows["block"]] & (rows["start_ns"] != UNKNOWN) & np.isfinite(rows["elapsed_ns"])
    at, whole = np.flatnonzero(is_used), np.flatnonzero(has_samples)
    block = np.concatenate([rows["block"][at], whole])
    most_ns = length_ns[rows["block"][at]]
    since_ns = rows["start_ns"][at] - start_ns[rows["block"][at]]
    begin_ns = np.clip(since_ns, 0, most_ns)
    end_ns = np.clip(since_ns + rows["elapsed_ns"][at].astype(np.int64), 0, most_ns)
    communicator, operator = (
        np.concatenate([rows[name][at].astype(np.int64), np.full(len(whole), _ALL)])
        for name in ("communicator", "operator")
    )
    key = pack_columns([block, communicator, operator])
    return (
        (key, block, communicator, operator),
        np.concatenate([begin_ns, np.zeros(len(whole), np.int64)]),
        np.concatenate([end_ns, length_ns[whole]]),
    )


def _rates(merged: Executions, sampled: Sampled, lifted_ns: Array, groups: int) -> dict[str, Array]:
    lift_ns = lifted_ns[sampled.block]
    found: dict[str, Array] = {}
    for way, rate in (("tx", sampled.tx), ("rx", sampled.rx)):
        intervals = Intervals(sampled.begin_ns + lift_ns, sampled.end_ns + lift_ns, rate)
        known = statistics(merged, intervals, groups)
        found |= {f"{way}_mean": _rounded(known.mean), f"{way}_deviation": _rounded(known.deviation)}
    return found


def _rounded(values: Array) -> Array:
    """Keep 6 binary digits: 1.6 % are nothing beside what tells patterns apart, and noise does not compress."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = ((bits + _HALF) & _LEADING_BITS).view(np.float32).astype(np.float64)
    return np.where(np.isfinite(values), rounded, np.nan)
