from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.producers.importers import identity as own
from irregulars.producers.importers.identity import Claim, identify, read_each


def ranks_of(*claims: Claim) -> dict[int, str]:
    return {rank: str(claims[at].path) for rank, at in identify(claims).ranks.items()}


def test_a_file_s_own_words_go_before_its_name() -> None:
    claims = Claim(Path("rank_0"), 1), Claim(Path("rank_1"), 0)
    assert ranks_of(*claims) == {1: "rank_0", 0: "rank_1"}


def test_names_count_where_files_of_one_time_call_themselves_one_rank() -> None:
    """A process that recorded before it knew its rank says 0."""
    claims = [Claim(Path(f"rank{n}.json"), n % 2, bytes([n]), world_size=3, span_ns=(0, 9)) for n in range(3)]
    assert ranks_of(*claims) == {n: f"rank{n}.json" for n in range(3)}
    assert identify(claims).notes
    # Recordings of one process at different times, and names that no rank of the job has
    later = [replace(claim, rank=0, span_ns=(9 * n, 9 * n + 9)) for n, claim in enumerate(claims)]
    assert identify(later).later == {0: [1, 2]}
    assert 2 not in identify([replace(claim, world_size=2) for claim in claims]).ranks


@pytest.mark.parametrize("names", [
    [f"node-{node}/rank_{rank}" for node in (2, 10) for rank in (0, 1)],
    [f"nccl_trace_rank_llama-worker-{pod}_{rank}" for pod in (0, 1) for rank in (0, 1)],
])  # fmt: skip
def test_local_ranks_of_hosts_are_numbered_through_if_the_job_is_that_large(names: list[str]) -> None:
    of_four = [Claim(Path(name), digest=name.encode(), world_size=4) for name in names]
    assert ranks_of(*of_four) == dict(enumerate(names))
    assert identify(of_four).notes
    # Two hosts of a job of two ranks: these are other files of the same ranks
    of_two = [Claim(Path(name), digest=name.encode(), world_size=2) for name in names]
    assert ranks_of(*of_two) == {0: names[0], 1: names[1]}
    assert [one.rank for one in identify(of_two).left_out] == [0, 1]


def test_recordings_of_one_rank_at_different_times_are_not_of_several_hosts() -> None:
    """The job is large enough for two hosts."""
    names = [f"iteration_{at}/rank{rank}.json" for at in (10, 20) for rank in (0, 1)]
    claims = [Claim(Path(name), n % 2, bytes([n]), 8, (n // 2, n // 2 + 1)) for n, name in enumerate(names)]
    assert identify(claims).later == {0: [2], 1: [3]}


def test_names_may_count_all_ranks_of_the_job_from_1_and_places_in_dimensions_are_none() -> None:
    claims = [Claim(Path(f"gpu{n}.json"), digest=bytes([n]), world_size=3) for n in (1, 2, 3)]
    assert ranks_of(*claims) == {0: "gpu1.json", 1: "gpu2.json", 2: "gpu3.json"}
    assert identify(claims).notes
    assert ranks_of(*claims[:2]) == {1: "gpu1.json", 2: "gpu2.json"}  # some ranks of the job
    names = [f"tp{tp}_dp{dp}" for tp in (0, 1) for dp in (0, 1)]
    assert len(ranks_of(*(Claim(Path(name), digest=name.encode(), world_size=4) for name in names))) == 2


@pytest.mark.parametrize("name", ["17.5-TP-{n}-DECODE.trace.json.gz", "17.5-TP-{n}-DP-{half}.trace.json.gz"])
def test_an_engine_s_names_tell_a_rank_by_its_part_of_the_tensors(name: str) -> None:
    names = [name.format(n=n, half=n // 2) for n in range(4)]
    assert ranks_of(*(Claim(Path(one)) for one in names)) == dict(enumerate(names))


def test_a_copy_is_left_out_and_so_is_another_file_of_the_same_rank() -> None:
    claims = Claim(Path("a/rank_0"), digest=b"x"), Claim(Path("b/rank_0"), digest=b"x")
    assert [one.reason for one in identify(claims).left_out] == ["a copy of a/rank_0"]
    claims = Claim(Path("a/rank_3"), digest=b"x"), Claim(Path("b/rank_3"), digest=b"y")
    assert [one.reason for one in identify(claims).left_out] == ["rank 3 too, by another file: a/rank_3"]
    (nobody,) = identify([Claim(Path("notes"))]).left_out
    assert "neither the file nor its name" in nobody.reason


def test_unusable_files_are_left_out_unless_all_are() -> None:
    def read(path: Path) -> str:
        if path.name != "good_1":
            raise InputError(f"{path}: must be good; got bad")
        return path.name

    found, left_out = read_each([Path("good_1"), Path("bad_2")], read)
    assert (found, left_out) == ([(Path("good_1"), "good_1")], [(("bad_2"), "must be good; got bad", 2)])
    with pytest.raises(InputError, match="bad_2: must be good; got bad"):
        read_each([Path("bad_2"), Path("bad_3")], read)


def lone_number(path: Path) -> int:
    if path.read_text() == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if not path.read_text().isdecimal():
        raise InputError(f"{path}: must be a number")
    return int(path.read_text())


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files of which each is worth a process, on a machine with cores."""
    monkeypatch.setattr(own, "_FILES_PER_PROCESS", 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    files = [tmp_path / f"rank_{number}" for number in range(6)]
    for number, path in enumerate(files):
        path.write_text(str(number))
    return files


def test_many_files_are_read_in_parallel_as_they_are_one_by_one(many: list[Path]) -> None:
    many[2].write_text("no number")
    found, left_out = read_each(many, lone_number, in_parallel=True)
    assert (found, left_out) == read_each(many, lone_number)
    assert ([number for _, number in found], [one.rank for one in left_out]) == ([0, 1, 3, 4, 5], [2])


def test_a_reader_that_is_killed_is_an_error_with_its_reason(many: list[Path]) -> None:
    many[2].write_text("kill")
    with pytest.raises(InputError, match="must fit into memory"):
        read_each(many, lone_number, in_parallel=True)
