"""Fuzz the readers of bytes from outside: ``python -m tests.fuzz.run --seconds 600 [--target commops ...]``.

The changes are drawn from a seed. A finding is written to ``tests/fuzz/findings/TARGET-N``, and read again by
each run of the tests.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import tracemalloc
from pathlib import Path
from random import Random

from tests.fuzz.mutations import mutate
from tests.fuzz.targets import Target, targets, try_one

FINDINGS = Path(__file__).parent / "findings"
MOST_S = 5.0  # of one small input, on a machine that does other things as well
MOST_BYTES = 256 << 20


def fuzz(name: str, target: Target, seconds: float, seed: int = 0) -> tuple[int, list[str]]:
    """Fuzz a target with changes from a seed; return how many inputs it read, and what was found."""
    random, deadline, tried, found = Random(f"{name} {seed}"), time.monotonic() + seconds, 0, list[str]()
    pool = list(target.seeds)
    while time.monotonic() < deadline:
        value = mutate(random.choice(pool), random)
        tried += 1
        if not check(name, target, value, found) and len(pool) < 200 and random.random() < 0.01:
            pool.append(value)  # changes of changes reach further
    return tried, found


def check(name: str, target: Target, value: bytes, found: list[str]) -> bool:
    """Read one input; whether it was found out to be more than a value or an `InputError`."""
    began_s = time.monotonic()
    try:
        try_one(target, value)
    except Exception as error:
        return _keep(name, value, f"{type(error).__name__}: {error}", found)
    if time.monotonic() - began_s > MOST_S:
        return _keep(name, value, f"took {time.monotonic() - began_s:.1f} s", found)
    return False


def _keep(name: str, value: bytes, what: str, found: list[str]) -> bool:
    path = FINDINGS / f"{name}-{hashlib.sha256(value).hexdigest()[:8]}"
    if what.split(":")[0] not in {one.split(":")[1].strip() for one in found}:  # one of each kind is enough
        path.write_bytes(value)
        found.append(f"{path.name}: {what}")
    return True


def main() -> int:
    """Fuzz each target for its share of the time; status 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="in all")
    parser.add_argument("--target", action="append", choices=sorted(targets()), help="only these; default: all")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    names = chosen.target or sorted(targets())
    is_clean = True
    for name in names:
        share_s = chosen.seconds / len(names)
        tracemalloc.start()
        tried, found = fuzz(name, targets()[name], share_s, chosen.seed)
        peak = tracemalloc.get_traced_memory()[1] >> 20
        tracemalloc.stop()
        print(f"{name:<16} {tried:>8} inputs, {peak} MiB, {len(found)} findings", *found, sep="\n  ", flush=True)
        is_clean &= not found and peak < MOST_BYTES >> 20
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
