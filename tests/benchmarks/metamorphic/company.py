"""Changes of who else is there: an idle communicator, a rank that logs nothing, healthy ranks that take part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.messages.announcements import Communicator
from irregulars.messages.records import SCHEMAS, SEND, UNKNOWN
from irregulars.producers.trace.job_file import RankLocation
from tests.benchmarks.metamorphic.recording import Changed, Columns, Given, Naming, Recording

Array = np.ndarray

_JOINED_KINDS: Final = ("world", "dp")  # replicas of the data meet in communicators of these kinds alone


def add_idle_communicator(recording: Recording, given: Given) -> Changed | None:
    """A communicator of half of the logged ranks is there and never used."""
    logged = recording.logged
    if len(logged) < 2:
        return None
    members = np.sort(given.random.choice(logged, max(len(logged) // 2, 2), replace=False)).tolist()
    return Changed(_with_communicator(recording, "idle", members))


def add_unlogged_rank(recording: Recording, given: Given) -> Changed:
    """A rank that logs nothing is in the job, and in a communicator with a logged one that is never used.

    It is in no communicator that is used: whoever waits there might wait for it, and nobody could know.
    """
    added = recording.job.world_size
    logged = recording.logged
    partner = int(given.random.choice(logged)) if len(logged) else 0
    places = {**recording.job.places, added: RankLocation(host=f"host-of-{added}")}
    job = replace(recording.job, world_size=added + 1, places=places)
    changed = _with_communicator(replace(recording, job=job), "idle", [partner, added])
    return Changed(changed, Naming(added=frozenset({added})))


def _with_communicator(recording: Recording, name: str, members: Sequence[int]) -> Recording:
    known = recording.job.communicators
    return recording.with_communicators([*known, Communicator(_unused_id(known, name), "unknown", tuple(members))])


def _unused_id(known: Sequence[Communicator], name: str) -> str:
    ids = {communicator.id for communicator in known}
    return next(one for one in (f"{name}-{number}" for number in range(len(ids) + 1)) if one not in ids)


def add_member(recording: Recording, given: Given) -> Changed | None:
    """One more rank takes part in the collectives of all ranks, and does nothing else.

    It is there no later than the first and leaves with it, so nobody ever waits for it. Needs a communicator of all
    ranks that is used, and clocks that are shared.

    It joins as soon as it is ready (`_ready_ns`) and not just before the first one does: the first may have waited
    for the culprit elsewhere, in a group of its own. A rank without such a group that comes with it has worked as
    long as the culprit, by all that is logged, and without the culprit the iteration would take as long: another job.

    It shares host and NIC with the rank whose iterations it copies: a collective inside a host must stay there, and a
    NIC of its own, of which there are no samples, would be one more that may be slow.
    """
    code = _whole_world(recording)
    if code is None or recording.job.clock != "shared":
        return None
    added, twin = (
        recording.job.world_size,
        min(recording.logged.tolist(), key=lambda rank: (rank in given.accused, rank)),
    )
    turns = recording.tables["iterations"]["rank"] == twin
    more = {"commops": _early_shares(recording, code, twin), "iterations": _rows(recording, "iterations", turns)}
    for schema, own in more.items():
        recording = recording.with_more_rows(schema, {**own, "rank": np.full(len(own["rank"]), added)})
    joined = recording.job.communicators[code]
    communicators = list(recording.job.communicators)
    communicators[code] = replace(joined, ranks=(*joined.ranks, added))
    place = replace(recording.job.places.get(twin, RankLocation()), gpu=None, lost_rows=None)
    recording = _with_ranks(recording, {added: place}, [added], 1)
    return Changed(recording.with_communicators(communicators), Naming(added=frozenset({added})))


def _rows(recording: Recording, schema: str, rows: Array) -> Columns:
    return {name: column[rows] for name, column in recording.tables[schema].items()}


def _early_shares(recording: Recording, code: int, twin: int) -> Columns:
    """Shares in the collectives of a communicator that begin when a rank is ready, and end as the first one's do."""
    # Rows of the first to arrive in each collective of a communicator.
    table = recording.tables["commops"]
    is_own = (table["communicator"] == code) & (table["operator"] < SEND) & (table["start_ns"] != UNKNOWN)
    rows = np.flatnonzero(is_own)
    rows = rows[np.lexsort((table["start_ns"][rows], table["sequence"][rows]))]
    sequence = table["sequence"][rows]
    first = rows[np.flatnonzero(np.append(True, sequence[1:] != sequence[:-1]))]
    shares = _rows(recording, "commops", first)
    start_ns = _ready_ns(recording, code, first, twin)
    return {**shares, "start_ns": start_ns, "elapsed_ns": shares["elapsed_ns"] + (shares["start_ns"] - start_ns)}


def _ready_ns(recording: Recording, code: int, first: Array, twin: int) -> Array:
    """When a rank without other work can join each collective: it has left the one before, and its twin is at work.

    That is when the twin next begins any operator. Never after the first share.
    """
    table = recording.tables["commops"]
    start_ns, sequence = table["start_ns"], table["sequence"]
    is_twins = (table["rank"] == twin) & (start_ns != UNKNOWN)
    begun_ns = np.sort(start_ns[is_twins])
    joined = np.flatnonzero(is_twins & (table["communicator"] == code) & (table["operator"] < SEND))
    joined = joined[np.argsort(sequence[joined], kind="stable")]
    at = joined[np.minimum(np.searchsorted(sequence[joined], sequence[first]), len(joined) - 1)]
    joined_ns = np.where(sequence[at] == sequence[first], start_ns[at], start_ns[first])
    next_at = np.searchsorted(begun_ns, joined_ns[:-1], side="right")
    left_ns = start_ns[first] + np.nan_to_num(table["elapsed_ns"][first]).astype(np.int64)
    ready_ns = np.maximum(begun_ns[np.minimum(next_at, len(begun_ns) - 1)], left_ns[:-1])
    return np.minimum(np.append(begun_ns[:1], ready_ns), start_ns[first])


def _with_ranks(
    recording: Recording, places: Mapping[int, RankLocation], logged: Iterable[int], count: int
) -> Recording:
    """Make the world larger by `count` ranks, some of which log."""
    job = recording.job
    return replace(
        recording,
        job=replace(
            job,
            world_size=job.world_size + count,
            places={**job.places, **places},
            logged_ranks=None if job.logged_ranks is None else (*job.logged_ranks, *sorted(logged)),
        ),
    )


def _whole_world(recording: Recording) -> int | None:
    """Return the place of a communicator in which every logged rank has collectives with a start, if any."""
    table = recording.tables["commops"]
    is_usable = (table["operator"] < SEND) & (table["start_ns"] != UNKNOWN)
    logged = len(recording.logged)
    for code, communicator in enumerate(recording.job.communicators):
        if len(communicator.ranks) == recording.job.world_size:
            own = table["rank"][is_usable & (table["communicator"] == code)]
            if len(np.unique(own)) == logged > 0:
                return code
    return None


def add_replica(recording: Recording, given: Given) -> Changed | None:
    """One more replica of the data takes part: a copy of one without an accused rank.

    What communicators other than those of the data (``dp``, ``world``) connect is a replica. The copies have their
    own communicators, GPUs and NICs on the hosts of their originals; in the communicators of the data they arrive and
    leave with them. On hosts of their own, collectives that never left a host would cross NICs, and that they were as
    quick as always would acquit these: evidence that the first recording does not have.

    Needs a replica without an accused rank that sends nothing to other replicas, and of which the communicators of
    the data grow alike; one without rank 0 is taken where there is one.
    """
    replicas = [ranks for ranks in _replicas(recording) if given.accused.isdisjoint(ranks)]
    replicas = [ranks for ranks in replicas if not _sends_beyond(recording, ranks)]
    replicas = [ranks for ranks in replicas if _grows_evenly(recording, ranks)]
    replicas = [ranks for ranks in replicas if 0 not in ranks] or replicas
    if not replicas:
        return None
    chosen = replicas[int(given.random.integers(len(replicas)))]
    copies = {rank: recording.job.world_size + number for number, rank in enumerate(sorted(chosen))}
    communicators, codes = _with_copies(recording, copies)
    ids = {communicators[new].id: communicators[old].id for old, new in codes.items()}
    logged = [copies[rank] for rank in recording.logged.tolist() if rank in copies]
    gpus = 1 + max((place.gpu for place in recording.job.places.values() if place.gpu is not None), default=0)
    places = {
        copies[rank]: _copied_place(place, gpus) for rank, place in recording.job.places.items() if rank in copies
    }
    for schema in SCHEMAS:
        recording = recording.with_more_rows(schema, _copied_rows(recording, schema, copies, codes))
    recording = replace(recording, devices=(*recording.devices, *map(_copied_name, recording.devices)))
    recording = _with_ranks(recording, places, logged, len(copies))
    naming = Naming(communicators=ids, added=frozenset(copies.values()))
    return Changed(recording.with_communicators(communicators), naming)


def _replicas(recording: Recording) -> list[frozenset[int]]:
    """Ranks that are connected by communicators that are used and not of the data, by their smallest rank."""
    group = {rank: frozenset({rank}) for rank in recording.logged.tolist()}
    for code in _used_inside(recording):
        members = recording.job.communicators[code].ranks
        joined = frozenset(members).union(*(group[rank] for rank in members if rank in group))
        group |= dict.fromkeys(joined, joined)
    return sorted(set(group.values()), key=min)


def _used_inside(recording: Recording) -> list[int]:
    """Places of the communicators that have rows, and are not of the data."""
    used = np.unique(recording.tables["commops"]["communicator"]).tolist()
    return [code for code in used if recording.job.communicators[code].kind not in _JOINED_KINDS]


def _sends_beyond(recording: Recording, ranks: frozenset[int]) -> bool:
    """Whether some ranks send to or receive from others, or in communicators of the data."""
    table = recording.tables["commops"]
    is_p2p = (table["operator"] >= SEND) & np.isin(table["rank"], list(ranks))
    is_inside = np.isin(table["peer"], list(ranks)) & np.isin(table["communicator"], _used_inside(recording))
    return bool((is_p2p & ~is_inside).any())


def _grows_evenly(recording: Recording, ranks: frozenset[int]) -> bool:
    """Whether communicators of the data that are of one kind and size still are, once a replica was copied.

    Data are sharded in groups and the shards replicated in others: there one more rank would make one group of each
    kind larger, which no job has, and leave its ranks without peers to be held against.
    """
    growth: dict[tuple[str, int], set[int]] = {}
    for one in recording.job.communicators:
        if one.kind in _JOINED_KINDS:
            growth.setdefault((one.kind, len(one.ranks)), set()).add(len(ranks.intersection(one.ranks)))
    return all(len(grown) == 1 for grown in growth.values())


def _with_copies(recording: Recording, copies: Mapping[int, int]) -> tuple[list[Communicator], dict[int, int]]:
    """Return all communicators with those of the copies behind, and at which place the copy of one stands."""
    known, inside, codes = recording.job.communicators, set(_used_inside(recording)), dict[int, int]()
    all_of_them: list[Communicator] = []
    for one in known:
        more = tuple(copies[rank] for rank in one.ranks if rank in copies)
        all_of_them.append(replace(one, ranks=(*one.ranks, *more)) if one.kind in _JOINED_KINDS else one)
    for code, one in enumerate(known):
        if code in inside and one.ranks[0] in copies:
            codes[code] = len(all_of_them)
            own = tuple(copies[rank] for rank in one.ranks)
            all_of_them.append(Communicator(_unused_id(all_of_them, f"{one.id}-copy"), one.kind, own))
    return all_of_them, codes


def _copied_rows(recording: Recording, schema: str, copies: Mapping[int, int], codes: Mapping[int, int]) -> Columns:
    table = recording.tables[schema]
    rows = np.flatnonzero(np.isin(table["rank"], list(copies)))
    more = {name: column[rows] for name, column in table.items()}
    new_rank = _lookup(copies, recording.job.world_size)
    more["rank"] = new_rank[more["rank"]]
    if schema == "bandwidth":
        more["device"] = more["device"] + len(recording.devices)
    if schema == "commops":
        is_known = more["peer"] != UNKNOWN
        more["peer"] = np.where(is_known, new_rank[np.where(is_known, more["peer"], 0)], UNKNOWN)
        more["communicator"] = _lookup(codes, len(recording.job.communicators))[more["communicator"]]
    return more


def _lookup(new: Mapping[int, int], length: int) -> Array:
    """Make an array of it: at each key its value, elsewhere the place itself."""
    table = np.arange(length)
    table[list(new)] = list(new.values())
    return table


def _copied_place(place: RankLocation, gpus: int) -> RankLocation:
    """Another GPU, `gpus` further, with another NIC on the same host."""
    gpu = None if place.gpu is None else place.gpu + gpus
    return replace(place, gpu=gpu, nic=None if place.nic is None else _copied_name(place.nic))


def _copied_name(name: str) -> str:
    return f"{name}-copy"
