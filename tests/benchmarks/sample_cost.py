"""What a sample of a NIC costs: a worker's CPU to store it, and bytes on Kafka.

    python -m tests.benchmarks.sample_cost

Messages of a hundred samples, a second of one NIC each, are decoded, put together as a worker does, and stored in a
real database. Bytes are those of the samples of a recorded job, compressed as they travel. `table/sizing.py` beside
this file holds both figures. Prints one JSON object. Not a test: nothing here fails.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.messages.records import Batch, Header, decode_batch, encode_batch
from irregulars.producers.publishing.batches import cut_in_order
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.clickhouse import ClickHouseSink
from irregulars.sinks.connection import DatabaseSettings
from irregulars.sinks.tables import table_of_samples

RANKS: Final = 512
SECONDS: Final = 5
RATE: Final = 100
START_NS: Final = 1_800_000_000_000_000_000
RECORDING: Final = Path(__file__).resolve().parents[1] / "recordings" / "gloo-slow-nic"


def messages() -> list[list[bytes]]:
    rng = np.random.default_rng(0)
    return [[encode_batch(_batch(rank, second, rng)) for rank in range(RANKS)] for second in range(SECONDS)]


def _batch(rank: int, second: int, rng: np.random.Generator) -> Batch:
    rates = rng.integers(0, 50_000_000_000, (2, RATE)).astype(np.float64)
    columns = {
        "time_ns": START_NS + second * 10**9 + np.arange(RATE, dtype=np.int64) * (10**9 // RATE),
        "path": np.zeros(RATE, np.uint8), "device": np.zeros(RATE, np.uint16),
        "tx_bytes_per_s": rates[0], "rx_bytes_per_s": rates[1],
    }  # fmt: skip
    return Batch(Header("bandwidth", "sampled", 0, rank, names=("mlx5_0",)), columns)


def stored_us() -> float:
    """Return CPU of this process for a sample, µs."""
    with DemoDatabase() as database:
        sink = ClickHouseSink(DatabaseSettings(database.url, database.user, database.password))
        sink.open()
        all_messages, rows = messages(), RANKS * SECONDS * RATE
        begun_s = time.process_time()
        for second in all_messages:
            sink.write({"bandwidth": table_of_samples([decode_batch(one, "bandwidth") for one in second])})
        sink.flush()
        spent_s = time.process_time() - begun_s
        sink.close()
    return spent_s / rows * 1e6


def kafka_bytes() -> float:
    """Return bytes of a recorded sample, a second of each rank's together, compressed with zstd."""
    found = read_trace(RECORDING).bandwidth.values()
    encoded = [encode_batch(one) for batch in found for one in cut_in_order(batch, RATE * 10, 1.0)]
    packed = pa.compress(b"".join(encoded), codec="zstd", asbytes=True)
    return len(packed) / sum(map(len, found))


def main() -> None:
    print(json.dumps({"stored_us": round(stored_us(), 3), "kafka_bytes": round(kafka_bytes(), 2)}))


if __name__ == "__main__":
    main()
