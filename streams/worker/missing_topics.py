"""Topics that are deleted while a worker runs: they are told, and end it when nobody makes them anew."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Final

from irregulars.errors import ServiceError, TopicMismatch
from irregulars.streams.worker.needed_services import require_topics
from irregulars.streams.worker_settings import WorkerSettings

LOG: Final = logging.getLogger("irregulars.worker")
_LOOK_S: Final = 10.0
_LOOKS: Final = 2
"""Topics are called missing after so many looks at which they were: a busy broker forgets one for a moment."""


class MissingTopics:
    """Looks whether a worker's topics are there: without ``evidence`` it is given no partitions, and stands still.

    Parameters
    ----------
    settings
        ``broker_away_s`` is how long a topic may be missing, as long as the broker may be away.

    Attributes
    ----------
    every_s
        Seconds between two looks.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._ask: Final = partial(require_topics, settings)
        self._most_s: Final = settings.broker_away_s
        self.every_s: Final = min(_LOOK_S, settings.broker_away_s / 4)
        self._since_s = 0.0
        self._looks = 0

    async def look(self) -> None:
        """Look once.

        Raises
        ------
        TopicMismatch
            If they have been missing, or have not fitted together, for too long.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._ask)
        except TopicMismatch as error:
            self._note(error)
        except ServiceError:  # the broker's watch tells of that; what is connected stays connected
            return
        else:
            self._looks = 0

    def _note(self, error: TopicMismatch) -> None:
        now_s = time.monotonic()
        if not self._looks:
            self._since_s = now_s
        self._looks += 1
        if self._looks == _LOOKS:
            LOG.error("event=topics_missing waits_s=%g reason=%r", self._most_s, str(error))
        if self._looks > _LOOKS and now_s - self._since_s > self._most_s:
            raise error
