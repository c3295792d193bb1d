"""Shapes of jobs as they are run: what is parallel, over which streams, and who logs.

===============  =====================================================================================================
``pipeline``     the default job: dp × pp × tp, 1F1B, gradients after the last backward
``ddp``          replicas alone: gradients in buckets beside the backward
``fsdp``         all parameters sharded over all ranks, gathered one unit ahead, in each pass
``hybrid``       the same inside groups of 16, and all-reduced between these
``interleaved``  1F1B with two model chunks a stage, sends and recvs of both directions in one batch
``cp_ring``      context parallel ranks on two hosts, keys and values go round
``moe``          expert parallel ranks on two hosts, tokens as the router deals them
``shared_nics``  four ranks to a NIC, which groups contend for
``unlogged``     two ranks in five, whoever they are, write no row
===============  =====================================================================================================

Sizes may be changed (``dp``, say): a shape is a start, and 64 to 128 ranks large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from irregulars.errors import InputError
from irregulars.producers.simulator.job.settings import MIB, SimulatorSettings

# Of models of one to some ten billion parameters, with bfloat16 gradients.
_ALONE: Final[Mapping[str, Any]] = {"pp": 1, "tp": 1, "is_launched_ahead": True}

SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "pipeline": {},
    "ddp": {
        **_ALONE, "dp": 64, "micro_batches": 1, "forward_ms": 70.0, "backward_ms": 140.0,
        "gradient_sync": "all_reduce", "is_gradient_overlapped": True, "gradient_buckets": 10,
        "gradient_bytes": 2560 * MIB,
    },
    "fsdp": {
        **_ALONE, "dp": 64, "micro_batches": 2, "forward_ms": 40.0, "backward_ms": 80.0, "gradient_sync": "fsdp",
        "fsdp_units": 8, "gradient_bytes": 6144 * MIB,
    },
    "hybrid": {
        **_ALONE, "dp": 8, "shards": 16, "micro_batches": 2, "forward_ms": 40.0, "backward_ms": 80.0,
        "gradient_sync": "fsdp", "fsdp_units": 8, "gradient_bytes": 6144 * MIB,
    },
    "interleaved": {"dp": 8, "pp": 4, "tp": 4, "model_chunks": 2},
    "cp_ring": {
        "dp": 4, "pp": 2, "tp": 4, "cp": 4, "cp_exchange": "ring", "cp_operators": 2, "is_launched_ahead": True,
    },
    "moe": {"dp": 4, "pp": 2, "tp": 2, "ep": 8, "tp_operators": 1, "expert_spread_ratio": 0.15},
    "shared_nics": {"dp": 8, "pp": 4, "tp": 4, "gpus_per_nic": 4, "is_nic_contended": True},
    "unlogged": {"dp": 8, "pp": 4, "tp": 4, "logged": "some_ranks", "unlogged_ratio": 0.4},
}  # fmt: skip


def with_shape(settings: SimulatorSettings, name: str) -> SimulatorSettings:
    """Return a job of this shape, and otherwise as it is.

    Raises
    ------
    InputError
        If there is no such shape.

    Examples
    --------
    >>> with_shape(SimulatorSettings(), "hybrid").world_size
    128
    """
    if name not in SHAPES:
        raise InputError(f"shape must be one of {', '.join(SHAPES)}; got {name!r} (simulator settings)")
    return replace(settings, **SHAPES[name])
