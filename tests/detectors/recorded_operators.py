"""Operators of the project's own recordings as columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from irregulars.messages.records import OPERATOR_CODES, UNKNOWN

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"


def read_operators(recording: str) -> dict[str, np.ndarray]:
    """Operators of all ranks that ended in an iteration, in the order of their starts.

    Integers are int64, with `UNKNOWN` for a peer where there is none; ``elapsed_ns, size_bytes`` are float64.
    """
    table = pq.read_table(RECORDINGS / recording / "commops.parquet").to_pandas()
    table = table[table["iteration"].notna() & table["elapsed_ns"].notna()].sort_values("start_ns", kind="stable")
    return {
        **{name: table[name].to_numpy(dtype=np.int64) for name in ("rank", "iteration", "sequence", "start_ns")},
        **{name: table[name].to_numpy(dtype=np.float64) for name in ("elapsed_ns", "size_bytes")},
        "communicator": np.unique(table["communicator"], return_inverse=True)[1].astype(np.int64),
        "operator": table["operator"].map(OPERATOR_CODES).to_numpy(dtype=np.int64),
        "peer": np.where(table["peer"].isna(), UNKNOWN, table["peer"].fillna(0).astype(np.int64)),
    }
