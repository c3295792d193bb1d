from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from irregulars.infra.checking.changed import Given
from irregulars.infra.checking.changes import CHANGES
from irregulars.infra.checking.recording import Recording
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import SCHEMAS, SEND
from tests.infra.checking.recordings import apply, recorded, simulated, texts, touched


def is_refused(change: str, recording: Recording, accused: frozenset[int] = frozenset()) -> bool:
    return CHANGES[change].apply(recording, Given(np.random.default_rng(0), accused)) is None


def first_rows(recording: Recording, like: Recording, schema: str) -> Recording:
    """Only as many rows as the other has."""
    return recording.with_rows(schema, np.arange(len(like.tables[schema]["rank"])))


def test_an_idle_communicator_has_no_rows() -> None:
    before = simulated("three")
    after = apply("idle-communicator", before).recording
    assert touched(before, after) <= {"communicators", "commops.communicator"}
    (idle,) = set(after.job.communicators) - set(before.job.communicators)
    assert len(idle.ranks) == 6
    assert texts(before, "commops") == texts(after, "commops")


def test_an_unlogged_rank_shares_no_communicator_that_is_used() -> None:
    before = recorded("torch-slow-rank")
    changed = apply("unlogged-rank", before)
    after = changed.recording
    assert touched(before, after) <= {"communicators", "commops.communicator", "world_size", "places"}
    (idle,) = set(after.job.communicators) - set(before.job.communicators)
    assert idle.ranks[1] == 4
    assert changed.naming.added == {4}
    trace = after.to_trace()
    assert [announcement.is_logged for announcement in trace.announcements] == [True] * 4 + [False]
    assert texts(before, "commops") == texts(after, "commops")


@pytest.mark.parametrize("name", ["gloo-slow-nic", "torch-slow-rank"])
def test_a_member_is_there_by_the_first_and_leaves_with_it(name: str) -> None:
    before = recorded(name)
    changed = apply("member", before, accused=frozenset({0}))
    after = changed.recording
    assert changed.naming.added == {4}
    for schema in SCHEMAS:
        assert texts(first_rows(after, before, schema), schema) == texts(before, schema)
    table = after.tables["commops"]
    (world,) = (code for code, one in enumerate(after.job.communicators) if one.id == "world")
    assert after.job.communicators[world].ranks == (0, 1, 2, 3, 4)
    is_own = table["rank"] == 4
    assert set(table["communicator"][is_own]) == {world}
    assert (table["operator"][is_own] < SEND).all()
    end_ns = table["start_ns"] + table["elapsed_ns"].astype(np.int64)
    for row in np.flatnonzero(is_own).tolist():
        same = (table["communicator"] == world) & (table["sequence"] == table["sequence"][row])
        first = int(np.flatnonzero(same & ~is_own)[np.argmin(table["start_ns"][same & ~is_own])])
        assert table["start_ns"][row] <= table["start_ns"][first]
        assert end_ns[row] == end_ns[first]
    assert after.job.places[4] == replace(before.job.places[1], gpu=None, lost_rows=None)
    own, twin = (after.tables["iterations"]["start_ns"][after.tables["iterations"]["rank"] == one] for one in (4, 1))
    np.testing.assert_array_equal(own, twin)


def test_a_member_works_no_longer_where_others_wait_for_the_culprit() -> None:
    before = simulated("three")  # iterations 30 to 44 are slow: tensor groups wait for rank 5, and then all ranks
    table = apply("member", before, accused=frozenset({5})).recording.tables["commops"]
    own = np.flatnonzero(table["rank"] == 12)
    own = own[np.argsort(table["start_ns"][own])]
    left_ns = table["start_ns"][own] + table["elapsed_ns"][own]
    work_ns, iteration = table["start_ns"][own][1:] - left_ns[:-1], table["iteration"][own][1:]
    is_slow = (iteration >= 30) & (iteration < 45)
    assert np.median(work_ns[is_slow]) < 1.2 * np.median(work_ns[~is_slow])


def test_a_member_needs_clocks_that_are_shared_and_a_used_world() -> None:
    shared = recorded("gloo-slow-nic")
    assert is_refused("member", replace(shared, job=replace(shared.job, clock="per_host")))
    table = shared.tables["commops"]
    (world,) = (code for code, one in enumerate(shared.job.communicators) if one.id == "world")
    assert is_refused("member", shared.with_rows("commops", table["communicator"] != world))


def test_a_replica_is_a_copy_of_one_without_an_accused_rank() -> None:
    before = simulated("three")  # rank = (stage * 3 + replica) * 2 + tensor
    changed = apply("replica", before, accused=frozenset({5}))
    after, original = changed.recording, [2, 3, 8, 9]  # those of rank 0 are taken only if there is no other
    assert changed.naming.added == {12, 13, 14, 15}
    assert after.job.world_size == 16
    for schema in SCHEMAS:
        assert texts(first_rows(after, before, schema), schema) == texts(before, schema)
    for old, new in zip(original, (12, 13, 14, 15), strict=True):
        for schema, other in (("commops", {"rank", "peer", "communicator"}), ("iterations", {"rank"})):
            table = after.tables[schema]
            for name in set(table) - other:
                np.testing.assert_array_equal(table[name][table["rank"] == old], table[name][table["rank"] == new])
        assert after.job.places[new].host == before.job.places[old].host
        assert after.job.places[new].nic == f"{before.job.places[old].nic}-copy"
    gpus = [(place.host, place.gpu) for place in after.job.places.values()]
    assert len(set(gpus)) == len(gpus)


def test_a_replica_lets_no_collective_leave_its_host_and_has_samples_of_its_own_nics() -> None:
    before = simulated("three")
    after = apply("replica", before, accused=frozenset({5})).recording
    for old in before.job.communicators:
        (new,) = (one for one in after.job.communicators if one.id == old.id)
        hosts = [{job.places[rank].host for rank in one.ranks} for job, one in ((before.job, old), (after.job, new))]
        assert hosts[0] == hosts[1]
    table = after.tables["bandwidth"]
    devices = np.array(after.devices)[table["device"]]
    assert {name.endswith("-copy") for name in devices[table["rank"] >= 12]} == {True}
    assert {name.endswith("-copy") for name in devices[table["rank"] < 12]} == {False}


def test_a_replica_joins_the_communicators_of_the_data_and_has_its_own_others() -> None:
    before = simulated("three")
    changed = apply("replica", before, accused=frozenset({5}))
    after = {one.id: one for one in changed.recording.job.communicators}
    for one in before.job.communicators:
        grown = one.kind in ("dp", "world") and set(one.ranks) & {2, 3, 8, 9}
        assert (len(after[one.id].ranks) > len(one.ranks)) == bool(grown)
    copies = changed.naming.communicators
    assert sorted(after[one].ranks for one in copies) == [(12, 13), (12, 14), (13, 15), (14, 15)]
    assert all(after[one].kind == after[old].kind for one, old in copies.items())
    table = changed.recording.tables["commops"]
    ids = np.array([one.id for one in changed.recording.job.communicators])
    used = set(ids[np.unique(table["communicator"][np.isin(table["rank"], [12, 13, 14, 15])])])
    assert all(set(after[one].ranks) & {12, 13, 14, 15} for one in used)
    assert changed.recording.to_trace().rejected.count == 0


def test_peers_of_copies_are_copies() -> None:
    table = apply("replica", simulated("three"), accused=frozenset({5})).recording.tables["commops"]
    peers = table["peer"][(table["rank"] >= 12) & (table["operator"] >= SEND)]
    assert set(peers.tolist()) == {12, 13, 14, 15}
    assert table["peer"][(table["rank"] < 12) & (table["operator"] >= SEND)].max() < 12


def test_a_replica_needs_one_that_nobody_accuses() -> None:
    assert is_refused("replica", simulated("three"), frozenset({0, 2, 5}))
    assert is_refused("replica", recorded("gloo-slow-nic"), frozenset({1}))
    assert not is_refused("replica", recorded("gloo-clean"))


def test_ranks_that_are_said_to_log_are_copied_as_such() -> None:
    after = apply("replica", recorded("torch-slow-rank"), accused=frozenset({2})).recording
    assert after.job.logged_ranks == (0, 1, 2, 3, 4, 5)


def test_a_replica_lets_communicators_of_the_data_grow_alike() -> None:
    before = simulated("data")
    shards = [Communicator(f"shard{first}", "dp", (first, first + 1)) for first in range(0, 8, 2)]
    communicators = [*before.job.communicators, *shards]
    assert not is_refused("replica", before, frozenset({5}))
    assert is_refused("replica", before.with_communicators(communicators), frozenset({5}))
