"""The three hooks in real training processes: two ranks, torch, gloo."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from irregulars.messages.records import OPERATOR_CODES, OPERATORS, PHASES, UNKNOWN, Batch
from irregulars.producers.torch_hook.hooks.native_library import DIRECTORY
from irregulars.producers.torch_hook.identity import machine_has_gpus
from irregulars.producers.trace.directory import Trace, read_trace
from tests.benchmarks.numerics.table import are_whole
from tests.producers.torch_hook.processes import NEEDS_TORCH, run_python, run_ranks

pytestmark = NEEDS_TORCH
SCRIPT = Path(__file__).with_name("ranks.py")
RANKS = 2
ROUNDS = 3
FIRST_MARKED = 100
QUEUED = 50
GRADIENT_BYTES = 2 * (32 * 32 + 32) * 4
"""As in ranks.py."""


@pytest.fixture(scope="module")
def native_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The native hook, built once for the installed torch."""
    if shutil.which("c++") is None:
        pytest.skip("a C++ compiler must be installed to build the native hook; it is not")
    directory = tmp_path_factory.mktemp("native")
    module = "irregulars.producers.torch_hook.hooks.native_library"
    done = run_python("-m", module, str(directory), directory=directory)
    if "no collective hooks" in done.stderr:
        pytest.skip(f"this torch has no collective hooks: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module", params=["native", "python", "dispatcher"])
def hook(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each hook in turn; processes find the native library through the environment."""
    if request.param == "native":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(DIRECTORY, str(request.getfixturevalue("native_directory")))
            yield "native"
    else:
        yield str(request.param)


@pytest.fixture(scope="module")
def training(hook: str, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record("training", tmp_path_factory.mktemp("training"), hook)


@pytest.fixture(scope="module")
def survival(hook: str, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record("survival", tmp_path_factory.mktemp("survival"), hook)


def record(scenario: str, directory: Path, hook: str) -> Trace:
    """Run a job that writes a trace directory, and read that: it must follow the contract, all of it."""
    (directory / "work").mkdir()
    outputs = run_ranks([str(SCRIPT), scenario, str(directory / "trace"), hook], directory / "work", RANKS)
    assert all(f"hook {hook}" in output for output, _ in outputs)
    assert "trouble" not in "".join(log for _, log in outputs)
    trace = read_trace(directory / "trace")
    assert (trace.world_size, trace.rejected.count, trace.copies) == (RANKS, 0, 0)
    return trace


def of_iterations(batch: Batch, first: int, past: int) -> dict[str, np.ndarray]:
    """Columns of the rows that belong to these iterations, in the order of issue."""
    columns = batch.columns
    chosen = np.flatnonzero((columns["iteration"] >= first) & (columns["iteration"] < past))
    chosen = chosen[np.argsort(columns["start_ns"][chosen], kind="stable")]
    return {name: column[chosen] for name, column in columns.items()}


def test_communicators_have_ids_that_all_ranks_agree_on(training: Trace) -> None:
    for announcement in training.announcements:
        assert [(one.id, one.kind, one.ranks) for one in announcement.communicators] == [
            ("world", "world", (0, 1)), ("world.2", "world", (0, 1)),
        ]  # fmt: skip
        assert announcement.gpu == (announcement.rank if machine_has_gpus() else None)
        assert announcement.clock == "shared"


def test_every_operator_is_logged_once_with_its_iteration_size_and_peer(training: Trace) -> None:
    for rank, batch in training.commops.items():
        columns = of_iterations(batch, FIRST_MARKED, FIRST_MARKED + ROUNDS)
        sent = "send" if rank == 0 else "recv"
        each = {"all_reduce": 2, "all_gather": 2, "reduce_scatter": 1, "all_to_all": 1, "broadcast": 1, "reduce": 1}
        each |= {"gather": 1, "scatter": 1, "barrier": 1, sent: 2}
        logged = Counter(OPERATORS[code] for code in columns["operator"])
        assert logged == {name: ROUNDS * count for name, count in each.items()}
        is_p2p = columns["operator"] == OPERATOR_CODES[sent]
        assert columns["sequence"][is_p2p].tolist() == list(range(1, 2 * ROUNDS + 1))
        assert set(columns["peer"][is_p2p].tolist()) == {1 - rank}
        is_sized = columns["operator"] != OPERATOR_CODES["barrier"]
        assert set(columns["size_bytes"][is_sized].tolist()) == {400.0, 800.0}
        assert (columns["elapsed_ns"] >= 0).all()


def test_sequences_have_no_gaps(training: Trace) -> None:
    for batch in training.commops.values():
        columns = batch.columns
        is_collective = columns["operator"] < OPERATOR_CODES["send"]
        for code in range(2):
            found = np.sort(columns["sequence"][is_collective & (columns["communicator"] == code)])
            assert found.tolist() == list(range(1, len(found) + 1))


def test_shares_of_a_collective_overlap_in_time(training: Trace) -> None:
    shares: dict[tuple[str, int, int], list[tuple[int, float]]] = {}
    for batch in training.commops.values():
        columns = of_iterations(batch, FIRST_MARKED, FIRST_MARKED + ROUNDS)
        for index in np.flatnonzero(columns["operator"] == OPERATOR_CODES["all_gather"]).tolist():
            key = (batch.header.names[columns["communicator"][index]], int(columns["sequence"][index]), 2)
            shares.setdefault(key, []).append((int(columns["start_ns"][index]), float(columns["elapsed_ns"][index])))
    assert [len(pair) for pair in shares.values()] == [RANKS] * 2 * ROUNDS
    for pair in shares.values():
        assert max(start for start, _ in pair) <= min(start + elapsed for start, elapsed in pair)


def test_ddp_s_own_all_reduces_are_seen_and_steps_make_iterations(training: Trace) -> None:
    for rank, batch in training.commops.items():
        is_gradient = batch.columns["size_bytes"] == GRADIENT_BYTES
        reduced = np.flatnonzero(is_gradient & (batch.columns["operator"] == OPERATOR_CODES["all_reduce"]))
        # Threads of gloo log them as they end, and the one after may overtake.
        reduced = reduced[np.argsort(batch.columns["start_ns"][reduced])]
        assert batch.columns["iteration"][reduced].tolist() == [UNKNOWN, 1, 2]  # where the first began: unknown
        rows = training.iterations[rank].columns
        rows = {name: column[are_whole(rows)] for name, column in rows.items()}
        assert rows["iteration"].tolist() == [1, 2, *range(FIRST_MARKED, FIRST_MARKED + ROUNDS)]
        assert [PHASES[code] for code in rows["phase"]] == ["train", "checkpoint", *["train"] * ROUNDS]


def test_a_start_is_that_of_execution_not_of_the_call(training: Trace) -> None:
    columns = training.commops[0].columns
    waiting = np.flatnonzero(columns["size_bytes"] == QUEUED * 4)
    waiting = waiting[np.argsort(columns["sequence"][waiting])]
    starts = columns["start_ns"][waiting]
    ends = starts + columns["elapsed_ns"][waiting].astype(np.int64)
    assert len(waiting) == 4
    assert starts[1] < ends[0]  # two of gloo's threads
    assert starts[2] >= min(ends[:2])
    assert starts[3] >= sorted(ends[:3])[1]


def test_forks_loaders_and_later_groups_are_survived(survival: Trace) -> None:
    for batch in survival.commops.values():
        used = {batch.header.names[code] for code in batch.columns["communicator"]}
        assert {"world", "world.2"} <= used


def test_what_never_ended_is_logged_so(survival: Trace) -> None:
    unended = {rank: int(np.isnan(batch.columns["elapsed_ns"]).sum()) for rank, batch in survival.commops.items()}
    assert unended == {0: 1, 1: 0}
