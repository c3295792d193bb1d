"""How fast a Kineto trace is imported, against parsing it whole.

    python -m tests.benchmarks.bench_import TRACE [--events 1000000] [--gzip]

The events of TRACE (such as a file of the recording ``kineto-dlrm8``) are written as often as it takes for a file of
so many events. It is then imported, from the open file to the written trace directory, and parsed whole by
`orjson.loads`, each in a process of its own, several times. Prints one JSON object: seconds of CPU and of the clock
(the middle of all runs), most memory, and the rate of the import over that of `orjson.loads`; what that does is also
given without Python's garbage collector, which slows it down. With ``--gzip`` both unpack first. Not a test: nothing
here fails.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_RUNS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--gzip", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("rank-0.json.gz" if options.gzip else "rank-0.json")
        events = repeat_events(options.trace, path, options.events)
        found: dict[str, Any] = {"events": events, "bytes": path.stat().st_size}
        for name, work in (
            ("import", run_import),
            ("orjson", run_orjson),
            ("orjson_without_gc", run_orjson_without_gc),
        ):
            found[name] = measure(work, path)
            found[name]["events_per_s"] = round(events / found[name]["clock_s"])
    for name in ("orjson", "orjson_without_gc"):
        found[f"rate_over_{name}"] = round(found[name]["cpu_s"] / found["import"]["cpu_s"], 3)
    print(json.dumps(found, indent=2))
    return 0


def repeat_events(source: Path, path: Path, least: int) -> int:
    """Write a trace with the events of another, as it spells them, so often that there are at least so many."""
    packed = source.read_bytes()
    text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    begin = text.index(b"[", text.index(b'"traceEvents"')) + 1
    count = len(json.loads(text)["traceEvents"])
    past = next(at for at in _ends(text, begin) if _is_rest(text, at))
    times = -(-least // count)
    with gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else path.open("wb") as stream:
        stream.write(text[:begin])
        for at in range(times):
            stream.write((b"," if at else b"") + text[begin:past])
        stream.write(text[past:])
    return times * count


def _ends(text: bytes, begin: int) -> Sequence[int]:
    """Places of brackets that may end the list of events."""
    found, at = [], text.find(b"]", begin)
    while at >= 0:
        found.append(at)
        at = text.find(b"]", at + 1)
    return found[-1000:]


def _is_rest(text: bytes, at: int) -> bool:
    try:
        json.loads(b'{"a": [' + text[at:])
    except ValueError:
        return False
    return True


def measure(work: Callable[[Path], int], path: Path) -> dict[str, float]:
    runs = [_in_a_process(work, path) for _ in range(_RUNS)]
    cpu_s, clock_s, memory_mib, _ = (statistics.median(values) for values in zip(*runs, strict=True))
    return {"cpu_s": round(cpu_s, 3), "clock_s": round(clock_s, 3), "most_mib": round(memory_mib, 1)}


def _in_a_process(work: Callable[[Path], int], path: Path) -> tuple[float, float, float, int]:
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(work, path, there))
    process.start()
    there.close()
    found: tuple[float, float, float, int] = here.recv()
    process.join()
    return found


def _run(work: Callable[[Path], int], path: Path, there: Connection) -> None:
    clock_s, cpu_s = time.perf_counter(), time.process_time()
    count = work(path)
    clock_s, cpu_s = time.perf_counter() - clock_s, time.process_time() - cpu_s
    there.send((cpu_s, clock_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, count))


def run_import(path: Path) -> int:
    from irregulars.producers.importers.importing import import_trace

    with tempfile.TemporaryDirectory() as folder:
        job = import_trace("kineto", path, Path(folder) / "out")
    return sum(map(len, job.ranks.values()))


def run_orjson(path: Path) -> int:
    import orjson

    value = path.read_bytes()
    return len(orjson.loads(gzip.decompress(value) if path.suffix == ".gz" else value)["traceEvents"])


def run_orjson_without_gc(path: Path) -> int:
    import gc

    gc.disable()
    return run_orjson(path)


_WORK = {"import": run_import, "orjson": run_orjson, "orjson_without_gc": run_orjson_without_gc}

if __name__ == "__main__":
    sys.exit(main())
