"""What the machine is, and how quick today: figures of another day or machine can be held against these."""

from __future__ import annotations

import os
import platform
import re
import timeit
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import process_time
from typing import Any, Final

import numpy as np

from tests.apache_kafka.jars import POM

_PACKAGES: Final = ("faust-streaming", "aiokafka", "confluent-kafka", "pyarrow", "numpy", "clickhouse-connect")


def describe() -> dict[str, Any]:
    cpu = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    kafka = re.search(r"<kafka.version>([\d.]+)</kafka.version>", POM.read_text())
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu": " ".join(cpu[1].split()) if cpu else platform.machine(),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "versions": {
            "Python": platform.python_version(),
            "Apache Kafka": kafka[1] if kafka else "unknown",
            **{name: version(name) for name in _PACKAGES},
        },
        "load": round(os.getloadavg()[0], 1),
        "python_loop_s": _quickest_s(_python_loop),
        "numpy_loop_s": _quickest_s(_numpy_loop),
    }


def _quickest_s(loop: Callable[[], object]) -> float:
    """Return the least CPU seconds of some tries: other work can only add to it."""
    return round(min(timeit.repeat(loop, timer=process_time, number=1, repeat=5)), 4)


def _python_loop() -> int:
    """Add and look up, as the interpreter does all day."""
    counts: dict[int, int] = {}
    for number in range(1_000_000):
        counts[number & 1023] = counts.get(number & 1023, 0) + number
    return sum(counts.values())


def _numpy_loop() -> float:
    """Sort, sum by group and gather, as the first hop does."""
    rng = np.random.default_rng(1)
    values, groups = rng.random(1_000_000), rng.integers(0, 1000, 1_000_000)
    order = np.argsort(groups, kind="stable")
    return float(np.bincount(groups, values).sum() + values[order].cumsum()[-1])
