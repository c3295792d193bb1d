"""Changes of which rows there are and in which order: what exporters do to a log."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.messages.records import SCHEMAS
from tests.benchmarks.metamorphic.changed import Changed, Given
from tests.benchmarks.metamorphic.recording import Recording

COPIED_RATIO: Final = 0.01
LOST_RATIO: Final = 0.005


def mix_rows(recording: Recording, given: Given) -> Changed:
    """Each file has its rows in another order."""
    for schema in SCHEMAS:
        rows = len(recording.tables[schema]["rank"])
        recording = recording.with_rows(schema, given.random.permutation(rows))
    return Changed(recording)


def copy_rows(recording: Recording, given: Given) -> Changed:
    """Some rows are there twice, the copies anywhere."""
    for schema in SCHEMAS:
        rows = len(recording.tables[schema]["rank"])
        copied = np.flatnonzero(given.random.random(rows) < COPIED_RATIO)
        places = np.sort(given.random.integers(0, rows + 1, len(copied)))
        recording = recording.with_rows(schema, np.insert(np.arange(rows), places, copied))
    return Changed(recording)


def lose_rows(recording: Recording, given: Given) -> Changed:
    """Some rows are missing; where ``job.json`` counts a rank's lost rows, it counts these.

    No row of an operator that never ended is lost: it alone says that its rank arrived, and without it the log is
    that of another hang, in which the rank did not.
    """
    lost = np.zeros(recording.job.world_size, dtype=np.int64)
    for schema in SCHEMAS:
        rank = recording.tables[schema]["rank"]
        is_lost = given.random.random(len(rank)) < LOST_RATIO
        if schema == "commops":
            is_lost &= ~np.isnan(recording.tables[schema]["elapsed_ns"])
        lost += np.bincount(rank[is_lost], minlength=len(lost))
        recording = recording.with_rows(schema, ~is_lost)
    places = {
        rank: place if place.lost_rows is None else replace(place, lost_rows=place.lost_rows + int(lost[rank]))
        for rank, place in recording.job.places.items()
    }
    return Changed(replace(recording, job=replace(recording.job, places=places)))
