"""The thresholds of verdicts: how often, how clearly and how alone a cause must be seen, and when it is over.

The costs from which on a verdict is urgent are settings: `severity.SeverityLimits`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from irregulars.thresholds import threshold


@dataclass(frozen=True, slots=True)
class VerdictThresholds:
    """Limits that decide whether a verdict is opened, goes on and is closed."""

    # --- seen often enough (`opening.py`) ---------------------------------------------------------------------------

    # --- hangs (`revision.py`) --------------------------------------------------------------------------------------

    hang_probability: float = threshold(0.96, "probability",
        "The suspect of a hang for which the one below does not hold.",
        "computed: (14 + 1/2) / 15, since 14 of 14 in recordings and drawn jobs were right")  # fmt: skip
    silent_hang_probability: float = threshold(0.7, "probability",
        "The suspect of a hang whose members that log nothing are accused.",
        "chosen: one of the others may have stopped inside, and those may wait themselves")  # fmt: skip

    # --- detectors with a say (`custom_verdicts.py`, `strange_ranks.py`) --------------------------------------------


VERDICTS: Final = VerdictThresholds()
