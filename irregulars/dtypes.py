"""Names for numpy's arrays by their values, so that an annotation says more than that something is an array."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]  # times and durations in ns, numbers of iterations and ranks, codes, positions
Floats: TypeAlias = NDArray[np.float64]  # scores, shares, rates, and times that may be unknown (NaN)
Flags: TypeAlias = NDArray[np.bool_]  # one yes or no for each row
Numbers: TypeAlias = NDArray[np.int64] | NDArray[np.float64]  # where either will do
Column: TypeAlias = NDArray[Any]  # a column of a frame, whose dtype the frame's table of columns gives
