"""Changes of what things are called: ranks, hosts and devices, communicators, iterations, sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.messages.announcements import Communicator
from irregulars.messages.records import SCHEMAS, UNKNOWN
from irregulars.producers.iteration_inference.operators import OPERATOR_BITS
from irregulars.producers.trace.job_file import RankLocation
from tests.benchmarks.metamorphic.recording import Changed, Naming, Recording

Array = np.ndarray

ITERATIONS_LATER: Final = 1_000
_MOST_SEQUENCES_LATER: Final = 1 << 16
_HANDS: Final = 3


def permute_ranks(recording: Recording, random: np.random.Generator) -> Changed:
    """Ranks have other numbers, drawn at random.

    Rank 0 keeps its own: frameworks let it save, evaluate and log for all, so its number says something.
    """
    world_size = recording.job.world_size
    return _with_ranks(recording, np.concatenate([[0], 1 + random.permutation(world_size - 1)]))


def deal_ranks(recording: Recording, random: np.random.Generator) -> Changed:
    """Ranks are numbered as cards are dealt to three hands: neighbours no longer have neighbouring numbers.

    Rank 0 keeps its number, as in `permute_ranks`.
    """
    rank = np.arange(recording.job.world_size)
    return _with_ranks(recording, np.argsort(np.lexsort((rank, rank % _HANDS))))


def _with_ranks(recording: Recording, new: Array) -> Changed:
    for schema in SCHEMAS:
        recording = recording.with_columns(schema, rank=new[recording.tables[schema]["rank"]])
    peer = recording.tables["commops"]["peer"]
    is_known = peer != UNKNOWN
    recording = recording.with_columns("commops", peer=np.where(is_known, new[np.where(is_known, peer, 0)], UNKNOWN))
    job, names = recording.job, new.tolist()
    logged = None if job.logged_ranks is None else tuple(sorted(names[rank] for rank in job.logged_ranks))
    job = replace(
        job,
        communicators=tuple(Communicator(c.id, c.kind, tuple(names[r] for r in c.ranks)) for c in job.communicators),
        places={names[rank]: place for rank, place in job.places.items()},
        logged_ranks=logged,
    )
    naming = Naming(ranks={after: before for before, after in enumerate(names)})
    return Changed(replace(recording, job=job), naming)


def rename_devices(recording: Recording, random: np.random.Generator) -> Changed:
    """Hosts, NICs and switches have other names, which sort in another order."""
    places = recording.job.places
    hosts = _new_names("h", (place.host for place in places.values()), random)
    uppers = (upper for above in recording.job.fabric.values() for upper in above)
    known = (*(place.switch for place in places.values()), *recording.job.fabric, *uppers)
    switches = _new_names("s", known, random)
    nics = _new_names("n", (*(place.nic for place in places.values()), *recording.devices), random)
    renamed = {rank: _renamed_place(place, hosts, nics, switches) for rank, place in places.items()}
    devices = tuple(nics[name] for name in recording.devices)
    fabric = {switches[one]: tuple(switches[upper] for upper in above) for one, above in recording.job.fabric.items()}
    job = replace(recording.job, places=renamed, fabric=fabric)
    return Changed(replace(recording, job=job, devices=devices))


def _renamed_place(
    place: RankLocation, hosts: Mapping[str, str], nics: Mapping[str, str], switches: Mapping[str, str]
) -> RankLocation:
    return replace(
        place,
        host=None if place.host is None else hosts[place.host],
        nic=None if place.nic is None else nics[place.nic],
        switch=None if place.switch is None else switches[place.switch],
    )


def rename_communicators(recording: Recording, random: np.random.Generator) -> Changed:
    """Communicators have other ids, which sort in another order."""
    old = recording.job.communicators
    new = _new_names("c", (communicator.id for communicator in old), random)
    changed = recording.with_communicators([replace(communicator, id=new[communicator.id]) for communicator in old])
    return Changed(changed, Naming(communicators={after: before for before, after in new.items()}))


def _new_names(prefix: str, names: Iterable[str | None], random: np.random.Generator) -> dict[str, str]:
    known = sorted({name for name in names if name is not None})
    return dict(zip(known, (f"{prefix}{number:05d}" for number in random.permutation(len(known))), strict=True))


def number_iterations_later(recording: Recording, random: np.random.Generator) -> Changed | None:
    if not recording.has_marks:
        return None
    for schema in ("commops", "iterations"):
        number = recording.tables[schema]["iteration"]
        later = np.where(number == UNKNOWN, UNKNOWN, number + ITERATIONS_LATER)
        recording = recording.with_columns(schema, iteration=later)
    return Changed(recording, Naming(iterations_later=ITERATIONS_LATER))


def number_sequences_later(recording: Recording, random: np.random.Generator) -> Changed:
    """Sequences of each communicator begin at another number.

    They grow by multiples of 16: some tools keep the kind of the collective in the last four bits.
    """
    later = random.integers(1, _MOST_SEQUENCES_LATER, len(recording.job.communicators)) << OPERATOR_BITS
    table = recording.tables["commops"]
    return Changed(recording.with_columns("commops", sequence=table["sequence"] + later[table["communicator"]]))


COPIED_RATIO: Final = 0.01
LOST_RATIO: Final = 0.005


def mix_rows(recording: Recording, random: np.random.Generator) -> Changed:
    for schema in SCHEMAS:
        rows = len(recording.tables[schema]["rank"])
        recording = recording.with_rows(schema, random.permutation(rows))
    return Changed(recording)


def copy_rows(recording: Recording, random: np.random.Generator) -> Changed:
    """Some rows are there twice, the copies anywhere."""
    for schema in SCHEMAS:
        rows = len(recording.tables[schema]["rank"])
        copied = np.flatnonzero(random.random(rows) < COPIED_RATIO)
        places = np.sort(random.integers(0, rows + 1, len(copied)))
        recording = recording.with_rows(schema, np.insert(np.arange(rows), places, copied))
    return Changed(recording)


def lose_rows(recording: Recording, random: np.random.Generator) -> Changed:
    """Some rows are missing; where ``job.json`` counts a rank's lost rows, it counts these.

    No row of an operator that never ended is lost: it alone says that its rank arrived, and without it the log is
    that of another hang, in which the rank did not.
    """
    lost = np.zeros(recording.job.world_size, dtype=np.int64)
    for schema in SCHEMAS:
        rank = recording.tables[schema]["rank"]
        is_lost = random.random(len(rank)) < LOST_RATIO
        if schema == "commops":
            is_lost &= ~np.isnan(recording.tables[schema]["elapsed_ns"])
        lost += np.bincount(rank[is_lost], minlength=len(lost))
        recording = recording.with_rows(schema, ~is_lost)
    places = {
        rank: place if place.lost_rows is None else replace(place, lost_rows=place.lost_rows + int(lost[rank]))
        for rank, place in recording.job.places.items()
    }
    return Changed(replace(recording, job=replace(recording.job, places=places)))
