"""Measured values without the digits that are noise: those compress to nothing where many values are stored."""

from __future__ import annotations

import numpy as np

from irregulars.dtypes import Floats, Numbers


def round_to_bits(values: Numbers, bits: int) -> Floats:
    """Return values rounded to so many significant bits: with an error of at most ``2 ** -bits`` of each.

    >>> round_to_bits(np.array([1000.0, 1001.3, -12345678.9, np.nan]), 10).tolist()
    [1000.0, 1001.0, -12353536.0, nan]
    """
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits))
