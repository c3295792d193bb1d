"""Values that differ by little, as sizes of messages do that hold a little more or less of the same."""

from __future__ import annotations

import numpy as np

from irregulars.dtypes import Column, Ints


def alike_codes(values: Column, ratio: float) -> Ints:
    """Number values so that those with one number lie within a ratio of one another; the smallest begins with 0.

    Parameters
    ----------
    values
        At least 0; NaN counts as 0, and 0 is like no other. A value below 0 has a number of its own.
    ratio
        By how much the largest with a number may exceed the smallest, as a share of that.

    Examples
    --------
    >>> alike_codes(np.array([100.0, 0.0, 104.0, 300.0, 110.0, 111.0]), 0.1)
    array([1, 0, 1, 3, 1, 2])
    """
    distinct, place = np.unique(np.nan_to_num(values), return_inverse=True)
    code = np.zeros(len(distinct), dtype=np.int64)
    begin, number = 0, 0
    while begin < len(distinct):
        past = int(np.searchsorted(distinct, float(distinct[begin]) * (1 + ratio), side="right"))
        past = max(past, begin + 1)  # of a value below 0, what exceeds it by the ratio lies before it
        code[begin:past] = number
        begin, number = past, number + 1
    return code[place]
