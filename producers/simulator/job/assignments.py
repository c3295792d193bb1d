"""Settings of a simulated job from texts as ``dp=8``, and the table of all keys."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any, Final, get_type_hints

import msgspec

from irregulars.errors import InputError
from irregulars.producers.simulator.job.reality import RealitySettings
from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.validation import describe, nearest

_OTHERS: Final = {"faults": "--fault"}
"""Settings that have a flag of their own, whose text is no single value."""


def with_values(settings: SimulatorSettings, assignments: Iterable[str]) -> SimulatorSettings:
    """Return the job with other settings; where a key is given twice, the last one counts.

    Lists are separated by commas, and the parts of a pair by a colon: ``workload_changes=80:1.5,120:1``.

    Raises
    ------
    InputError
        If a key is unknown, a value has not its type, or the job is not possible.

    Examples
    --------
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
        values[key] = _read(key, value, kinds[key])
    return replace(settings, **values)


def _read(key: str, value: str, kind: Any) -> Any:
    parts: Any = value
    if key == "workload_changes":
        parts = [part.split(":") for part in value.split(",") if part]
    elif key == "hidden":
        parts = [part for part in value.split(",") if part]
    try:
        return msgspec.convert(parts, kind, strict=False)
    except msgspec.ValidationError:
        rule = "pairs ITERATION:FACTOR, as 80:1.5" if key == "workload_changes" else describe(kind)
        raise InputError(f"{key} must be {rule}; got {value!r} (--set {key}={value})") from None


def described_keys() -> Iterator[tuple[str, str]]:
    """Yield the keys that are explained together, with their defaults, and the first sentence about them.

    Both come from the dataclass: ``("loss_ratio=0.0, loss_burst_rows=20.0", "Part of the operators … .")``.
    """
    defaults = {field.name: field.default for field in fields(SimulatorSettings)}
    for owner in (SimulatorSettings, RealitySettings):
        parameters = re.split(r"\n(?:Parameters|Raises)\n-+\n", inspect.getdoc(owner) or "")[1]
        for names, text in re.findall(r"^(\w.*)\n((?:    .*\n?)+)", parameters, re.MULTILINE):
            keys = [name for name in names.split(", ") if name not in _OTHERS]
            if keys:
                yield ", ".join(f"{key}={_shown(defaults[key])}" for key in keys), _first_sentence(text)


def _first_sentence(text: str) -> str:
    text = " ".join(text.split())
    if not text.startswith("``"):  # else a list of the values that it may have
        text = text.split(". ")[0].rstrip(".") + "."
    return text.replace("``", "`")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
