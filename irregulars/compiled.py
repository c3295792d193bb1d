"""The compiled loops over operators, where they were built: `irregulars/_kernel.c`. All works without, only slower.

A C compiler builds them when the package is installed; an installation without one goes on without them. Each has a
twin in numpy, for rows that the compiled loop leaves to it, and for all where there is no compiled loop.
``IRREGULARS_COMPILED=0`` leaves them out.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Final, Protocol, cast

from irregulars.dtypes import Flags, Ints


class Kernel(Protocol):
    """The compiled loops; their docstrings in C describe the arguments."""

    def plain_layout(
        self, value: bytes, plan: bytes, fields: int, most_rows: int
    ) -> tuple[int, int, bytes, bytes, bytes] | None:
        """Find the columns of an Arrow stream that is laid out as ours are."""

    def look(self, value: bytes, layout: bytes, counts: Ints, names: int, looks: Ints, runs: Ints) -> int:
        """Find extremes and runs in the rows of some ranks."""

    def reduce(
        self, values: list[bytes], layouts: list[bytes], code_begins: Ints, cuts: Ints, closings: Ints, numbers: Ints,
        is_next: Flags, free_ns: Ints, codes: Ints, is_wide: Flags,
    ) -> tuple[bytes, bytes, bytes] | bytes:  # fmt: skip
        """Sum up the operators of some closings, or return those that numpy has to do."""


def load_kernel() -> Kernel | None:
    """Return the compiled loops; None: they were not built, or shall not be used."""
    if os.environ.get("IRREGULARS_COMPILED") == "0":
        return None
    try:
        return cast(Kernel, import_module("irregulars._kernel"))
    except ImportError:
        return None


KERNEL: Final = load_kernel()
