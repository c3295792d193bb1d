"""What the papers say, to stand beside our figures: Holmes (NSDI'25), from its abstract and from notes on it."""

from __future__ import annotations

from typing import Final

HOLMES: Final = "Holmes (NSDI'25)"
ACCURACY_BY_RANKS: Final = {2048: 0.972, 8192: 0.882}
OTHERS_BY_RANKS: Final = {8192: {"RW": 0.780, "Seer": 0.807}}
ACCURACY_BY_DIMENSIONS: Final = {3: 0.946, 4: 0.896, 6: 0.860}
MUST_BY_RANKS: Final = {2048: 0.99, 8192: 0.97}
MUST_BY_DIMENSIONS: Final = {6: 0.96}
MUST_CALIBRATION: Final = 0.05
MUST_BYTES: Final = 0.01
BYTES_MOVED: Final = 0.84 / 24.36
LOCALIZATION_S: Final = {2048: 15.5, 8192: 30.3}
