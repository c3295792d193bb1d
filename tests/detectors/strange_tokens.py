"""A stranger's detector: it finds ranks strange whose batches have fewer tokens than those of the others."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores


class FewTokens:
    """Scores 2 for a rank with under half of the median's tokens, else 0; NaN where they are not known."""

    level: ClassVar[Level] = "rank"
    against: ClassVar[Against] = "peers"
    reads: ClassVar[tuple[str, ...]] = ("rank", "tokens")
    opens_verdicts: ClassVar[bool] = True

    def __init__(self) -> None:
        self.learned = 0

    def score(self, frame: Frame) -> Scores:
        tokens = frame["tokens"]
        usual = np.median(tokens) if len(tokens) else np.nan
        return np.where(np.isnan(tokens), np.nan, np.where(tokens < usual / 2, 2.0, 0.0))

    def learn(self, frame: Frame) -> None:
        self.learned += 1

    def explain(self, frame: Frame, row: int) -> str:
        return f"{frame['tokens'][row]:.0f} tokens, the others {np.median(frame['tokens']):.0f}"

    def state(self) -> dict[str, Any]:
        return {"learned": self.learned}

    def restore(self, state: dict[str, Any]) -> None:
        self.learned = int(state["learned"])
