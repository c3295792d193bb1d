"""Whether ranks are waited for as long as people say, without asking each second for each of thousands of ranks."""

from __future__ import annotations

from typing import Any

from irregulars.messages.threshold_changes import ThresholdChange
from irregulars.streams.progress.word_log import ReadWords
from irregulars.streams.stages.changed_silences import ChangedSilences
from irregulars.streams.worker.monitors import make_monitors
from irregulars.streams.worker_settings import WorkerSettings


class CountedChanges(ReadWords[ThresholdChange]):
    """Counts how often somebody looks for what concerns a job."""

    looks = 0

    def of(self, job: str, revision: int) -> tuple[ThresholdChange, ...]:
        CountedChanges.looks += 1
        return ReadWords.of(self, job, revision)


def test_a_changed_silence_is_looked_up_once_a_job_and_taken_back_with_its_topic() -> None:
    class Log:
        known: ReadWords[ThresholdChange] = CountedChanges(
            1, ((0, ThresholdChange("t", {"silence_s": 7.0}, "a", "b", 0)),)
        )

    log, monitors = Log(), make_monitors(WorkerSettings("127.0.0.1:1"))
    silences = ChangedSilences(log)  # type: ignore[arg-type]
    ranks: Any = [monitors.make_rank("j", partition=0) for _ in range(50)]
    followed = []
    for known in (log.known, log.known, ReadWords()):
        log.known = known
        for one in ranks:
            silences.follow(one)
        followed.append({one.settings.silence_s for one in ranks})
    assert followed == [{7.0}, {7.0}, {600.0}]
    assert CountedChanges.looks == 1
