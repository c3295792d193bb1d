"""Whether the broker answers: logged once when it stops, once when it is back, and fatal when it stays away."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from irregulars.errors import ServiceUnavailable

LOG: Final = logging.getLogger("irregulars.worker")
QUIET_S: Final = 5.0  # seconds without an answer after which the broker counts as away: a busy one may take some


class BrokerWatch:
    """Follows answers of the broker."""

    def __init__(self, bootstrap: str, most_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._bootstrap: Final = bootstrap
        self._most_s: Final = most_s
        self._now_s: Final = now_s
        self._heard_s = now_s()
        self.is_away = False

    def heard(self) -> None:
        """Note an answer."""
        if self.is_away:
            LOG.warning("event=broker_back away_s=%.1f", self._now_s() - self._heard_s)
        self.is_away, self._heard_s = False, self._now_s()

    def missed(self, refusal: str | None = None) -> None:
        """Note that an answer did not come; raises `ServiceUnavailable`.

        `refusal`: why, where the broker answers and does not let us in.
        """
        silent_s = self._now_s() - self._heard_s
        if silent_s > self._most_s:
            found = refusal or f"got no answer for {silent_s:.0f} s. Check the address, and that the broker runs"
            raise ServiceUnavailable(f"Kafka at {self._bootstrap} must answer within {self._most_s:g} s; {found}")
        if silent_s > QUIET_S and not self.is_away:
            self.is_away = True
            reason = "" if refusal is None else f" reason={refusal!r}"
            LOG.warning("event=broker_away bootstrap=%s waits_s=%g%s", self._bootstrap, self._most_s, reason)
