"""A short, deterministic form of ``tests/fuzz/run.py``, and everything that it ever found."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.mutations import mutate
from tests.fuzz.run import FINDINGS, MOST_BYTES
from tests.fuzz.targets import targets, try_one

TARGETS = targets()
TRIED = {
    "parquet": 60, "jsonl": 60, "csv": 60, "job": 60, "kineto": 60, "nccl-inspector": 60,
    "flight-recorder": 60,
}  # fmt: skip
"""Files take longer than messages, of which 300 are tried."""


@pytest.mark.parametrize("name", TARGETS)
def test_sound_inputs_are_read(name: str) -> None:
    for seed in TARGETS[name].seeds:
        assert try_one(TARGETS[name], seed)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_read_or_refused_within_bounds(name: str) -> None:
    random, target = Random(name), TARGETS[name]
    tracemalloc.start()
    try:
        for _ in range(TRIED.get(name, 300)):
            try_one(target, mutate(random.choice(target.seeds), random))
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", sorted(FINDINGS.iterdir()), ids=lambda path: path.name)
def test_what_was_found_once_is_read_or_refused(path: Path) -> None:
    name = next(name for name in sorted(TARGETS, key=len, reverse=True) if path.name.startswith(f"{name}-"))
    try_one(TARGETS[name], path.read_bytes())
