"""How long the first hop waits for silent ranks, where people changed that while workers run."""

from __future__ import annotations

from typing import Final

from irregulars.messages.threshold_changes import ThresholdChange, values_in_force
from irregulars.streams.progress.word_log import ReadWords, WordLog
from irregulars.streams.stages.rank_work import RankMonitorLike


class ChangedSilences:
    """Follows the changes of ``silence_s``.

    Parameters
    ----------
    changed
        The topic ``thresholds``; None: nobody changes anything.
    """

    def __init__(self, changed: WordLog[ThresholdChange] | None) -> None:
        self._changed: Final = changed
        self._followed: ReadWords[ThresholdChange] | None = None
        self._silences: dict[str, float | None] = {}  # by job, of what was followed
        self._has_followed = False  # whether there ever was a change: the topic may have been made anew since

    def follow(self, monitor: RankMonitorLike) -> None:
        """Let a monitor wait for silent ranks as long as people say now."""
        known = None if self._changed is None else self._changed.known
        if known is None:
            return
        if known is not self._followed:  # looked up once a job, and not each second for each of thousands of monitors
            self._followed, self._silences = known, {}
            self._has_followed = self._has_followed or bool(known.words)
        if not self._has_followed:
            return
        if monitor.job not in self._silences:
            changes = known.of(monitor.job, known.revision)
            self._silences[monitor.job] = values_in_force(changes, None).get("silence_s")
        monitor.follow(self._silences[monitor.job])
