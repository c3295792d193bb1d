"""A tile as bytes: a header, the codes, and where in its bin each extreme lies.

::

    float64  value of code 1 and below, ns or score     uint32  rows of bins       uint32  bytes of a place, 1 or 2
    float64  value of code 255                          uint32  columns of bins    uint32  0
    uint8    codes, row by row
    uint8/16 which row of its bin the extreme is, row by row
    uint8/16 which column of its bin, row by row

Little-endian. The header has 32 bytes.
"""

from __future__ import annotations

import gzip
import struct
from typing import Final

import pyarrow as pa

from irregulars.infra.console.heat_map.bins import Bins
from irregulars.infra.console.heat_map.levels import Scale

HEADER: Final = struct.Struct("<ddIIII")
_SMALL: Final = 1 << 8
_LEAST_BYTES: Final = 1_024  # below, compression saves nothing worth its time


def tile_bytes(bins: Bins, scale: Scale, per_bin: tuple[int, int]) -> bytes:
    """Return a tile as the browser reads it."""
    width = 1 if max(per_bin) <= _SMALL else 2
    place = "<u1" if width == 1 else "<u2"
    rows, columns = bins.levels.shape
    return b"".join(
        (
            HEADER.pack(scale.low_value, scale.high_value, rows, columns, width, 0),
            scale.codes_of(bins.levels).tobytes(),
            bins.row.astype(place).tobytes(),
            bins.column.astype(place).tobytes(),
        )
    )


def compressed(body: bytes, accepted: str) -> tuple[bytes, str]:
    """Return a body and its ``Content-Encoding``; empty: as it is.

    Parameters
    ----------
    accepted
        The request's ``Accept-Encoding``.
    """
    encodings = {
        part.partition(";")[0].strip() for part in accepted.lower().split(",") if "q=0" not in part.split(";")
    }
    if len(body) < _LEAST_BYTES:
        return body, ""
    if "zstd" in encodings:
        return pa.Codec("zstd", compression_level=3).compress(body, asbytes=True), "zstd"
    if "gzip" in encodings:
        return gzip.compress(body, compresslevel=1, mtime=0), "gzip"
    return body, ""
