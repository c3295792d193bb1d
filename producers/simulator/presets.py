"""Shapes and presets of simulated jobs, and settings from texts as ``dp=8``.

How untidy jobs are: in one place for the demo, the tests, the benchmarks and the command line.

==============  ======================================================================================================
``default``     `SimulatorSettings` as they are: noise of single operators
``tidy``        no noise of work and transfers, no drift: any crude rule detects effects
``suite``       the noise of the simulated suite: gaps 3 %, transfers 10 %, one in 200 transfers takes several times
                its length, 10 % drift; and otherwise as untidy as recordings are: ranks and hosts of different speed,
                micro-batches of different weight, transfers that hang and are nobody's fault
``field``       reality as a whole: times to the microsecond, durations on another clock, slow phases of hosts, heavy
                tails of sequences and pauses, iterations that compile and warm up; healthy times vary by 1 to 8 %
``untidy``      the suite, and more that makes recordings hard to read: buckets on a second stream, rooted
                operators, a barrier that no rank logged, rows lost in bursts, and rows that come twice
``off_clocks``  clocks of hosts are milliseconds apart and drift; a job may have it besides another preset
==============  ======================================================================================================

Shapes of jobs as they are run: parallel dimensions, streams, and the ranks that log.

===============  =====================================================================================================
``pipeline``     the default job: dp × pp × tp, 1F1B, gradients after the last backward
``ddp``          replicas alone: gradients in buckets beside the backward
``fsdp``         all parameters sharded over all ranks, gathered one unit ahead, in each pass
``hybrid``       the same inside groups of 16, and all-reduced between these
``interleaved``  1F1B with two model chunks a stage, sends and recvs of both directions in one batch
``cp_ring``      context parallel ranks on two hosts, keys and values go round
``moe``          expert parallel ranks on two hosts, tokens as the router deals them
``shared_nics``  four ranks to a NIC, which groups contend for
``unlogged``     two ranks in five, drawn from the seed, write no row
===============  =====================================================================================================

Sizes may be changed (``dp``, say): a shape is a start, and 64 to 128 ranks large.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, Final, get_type_hints

import msgspec

from irregulars.errors import InputError
from irregulars.producers.simulator.settings import MIB, SimulatorSettings
from irregulars.validation import describe, nearest

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

    Raises InputError if there is no such shape.

    >>> with_shape(SimulatorSettings(), "hybrid").world_size
    128
    """
    if name not in SHAPES:
        raise InputError(f"shape must be one of {', '.join(SHAPES)}; got {name!r} (simulator settings)")
    return replace(settings, **SHAPES[name])


TIDY: Final[Mapping[str, Any]] = {
    "gap_noise_ratio": 0.0, "transfer_noise_ratio": 0.0, "spike_probability": 0.0, "drift_ratio": 0.0,
}  # fmt: skip
SUITE: Final[Mapping[str, Any]] = {
    "gap_noise_ratio": 0.03, "transfer_noise_ratio": 0.10, "spike_probability": 1 / 200, "drift_ratio": 0.10,
    "rank_spread_ratio": 0.01, "micro_batch_spread_ratio": 0.03, "host_slow_probability": 0.002,
    "host_slow_iterations": 5.0, "host_slow_ratio": 0.05, "stalls_per_iteration": 0.02,
}  # fmt: skip
UNTIDY: Final[Mapping[str, Any]] = {
    **SUITE, "is_gradient_overlapped": True, "gradient_buckets": 4, "has_data_broadcast": True,
    "has_loss_reduction": True, "hidden": ("barrier",), "loss_ratio": 0.002, "repeat_ratio": 0.001,
}  # fmt: skip
FIELD: Final[Mapping[str, Any]] = {
    "gap_noise_ratio": 0.03, "transfer_noise_ratio": 0.10, "spike_probability": 1 / 200, "drift_ratio": 0.03,
    "rank_spread_ratio": 0.01, "host_phase_ratio": 0.045, "host_phase_iterations": 25.0,
    "iteration_spread_ratio": 0.015, "replica_spread_ratio": 0.01, "micro_batch_spread_ratio": 0.06,
    "micro_batch_tail": 5.0, "pause_probability": 0.001, "pause_ms": 3.0, "pause_tail_index": 2.0,
    "warmup_iterations": 5, "warmup_ratio": 0.3, "compile_ms": 3000.0,
    "connect_ms": 20.0, "time_resolution_ns": 1000, "elapsed_clock_ppm": 5.0, "shared_clock_error_us": 20.0,
    "is_launched_ahead": True,
}  # fmt: skip
# Clocks of every other case of the suite.
OFF_CLOCKS: Final[Mapping[str, Any]] = {"clock": "per_host", "clock_offset_ms": 5.0, "clock_drift_ppm": 5.0}
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "default": {}, "tidy": TIDY, "suite": SUITE, "untidy": UNTIDY, "field": FIELD, "off_clocks": OFF_CLOCKS,
}  # fmt: skip


def with_preset(settings: SimulatorSettings, name: str) -> SimulatorSettings:
    """Return the same job, as untidy as the preset says; InputError if there is no such preset."""
    if name not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}; got {name!r} (simulator settings)")
    return replace(settings, **PRESETS[name])


_OTHERS: Final = {"faults": "--fault"}  # settings that have a flag of their own, whose text is no single value


def with_values(settings: SimulatorSettings, assignments: Iterable[str]) -> SimulatorSettings:
    """Return the job with other settings; where a key is given twice, the last one counts.

    Lists are separated by commas, and the parts of a pair by a colon: ``workload_changes=80:1.5,120:1``.

    Raises InputError if a key is unknown, a value has not its type, or the job is not possible.

    >>> with_values(SimulatorSettings(), ["dp=2", "hidden=tp,barrier", "workload_changes=80:1.5"]).hidden
    ('tp', 'barrier')
    """
    kinds = get_type_hints(SimulatorSettings)
    values: dict[str, Any] = {}
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign:
            raise InputError(f"a setting of the job must be KEY=VALUE; got {text!r} (--set)")
        if key in _OTHERS or key not in kinds:
            hint = f"; it is given by {_OTHERS[key]}" if key in _OTHERS else nearest(key, kinds)
            raise InputError(f"a setting of the job must be a known key; got {key!r} (--set {text}){hint}")
        parts: Any = value
        if key == "workload_changes":
            parts = [part.split(":") for part in value.split(",") if part]
        elif key == "hidden":
            parts = [part for part in value.split(",") if part]
        try:
            values[key] = msgspec.convert(parts, kinds[key], strict=False)
        except msgspec.ValidationError:
            rule = "pairs ITERATION:FACTOR, as 80:1.5" if key == "workload_changes" else describe(kinds[key])
            raise InputError(f"{key} must be {rule}; got {value!r} (--set {key}={value})") from None
    return replace(settings, **values)


def described_keys() -> Iterator[tuple[str, str]]:
    """Yield the keys that are explained together, with their defaults, and the first sentence about them.

    Both come from the dataclass: ``("loss_ratio=0.0, loss_burst_rows=20.0", "Part of the operators … .")``.
    """
    defaults = {field.name: field.default for field in fields(SimulatorSettings)}
    explained = inspect.getdoc(SimulatorSettings) or ""
    for names, text in re.findall(r"^(\w[\w, ]*): (.*\n?(?:    .*\n?)*)", explained, re.MULTILINE):
        keys = [name for name in names.split(", ") if name not in _OTHERS]
        if keys:
            text = " ".join(text.split())
            if not text.startswith("``"):  # else a list of the values that it may have
                text = text.split(". ")[0].rstrip(".") + "."
            yield ", ".join(f"{key}={_shown(defaults[key])}" for key in keys), text.replace("``", "`")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
