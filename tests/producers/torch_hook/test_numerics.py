"""The sensors of numbers, in four real ranks: what they measure, and that training does not notice them."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from irregulars.messages.records import PHASES, UNKNOWN
from irregulars.producers.trace.directory import Trace, read_trace
from tests.benchmarks.numerics.table import are_whole
from tests.producers.torch_hook.processes import NEEDS_TORCH, run_python, run_ranks

pytestmark = NEEDS_TORCH
SCRIPT = Path(__file__).with_name("numerics_ranks.py")
RANKS = 4
STEPS, AUDIT_EVERY, CHECKSUM_STEPS = 8, 2, 4
SAME, MEASURED, HASTY, FLIPPED, SHARDED = 100, 200, 300, 400, 500
CULPRIT = 2
WIDTH = 16  # of the row that the culprit's gradient has filled with infinities
"""As in numerics_ranks.py."""


class Job(NamedTuple):
    """What four ranks said and recorded."""

    found: list[dict[str, Any]]
    log: str
    trace: Trace


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    directory = tmp_path_factory.mktemp("numerics")
    outputs = run_ranks([str(SCRIPT), str(directory / "trace")], directory, RANKS)
    log = "\n".join(error for _, error in outputs)
    trace = read_trace(directory / "trace")
    assert trace.rejected.count == 0, trace.rejected
    return Job([json.loads(said) for said, _ in outputs], log, trace)


def figures(job: Job, name: str, first: int, past: int) -> np.ndarray:
    """A column of iterations, by rank and iteration."""
    rows = []
    for rank in range(RANKS):
        columns = job.trace.iterations[rank].columns
        numbers, is_own = columns["iteration"], are_whole(columns)
        rows.append(columns[name][is_own & (numbers >= first) & (numbers < past)])
    return np.array(rows)


def audits(job: Job, first: int, past: int) -> dict[tuple[int, int], dict[int, int]]:
    """Checksums of each audit, by iteration and audited rank, and then by who computed."""
    found: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for rank in range(RANKS):
        columns = job.trace.iterations[rank].columns
        for place in np.flatnonzero(columns["audit_of_rank"] != UNKNOWN).tolist():
            number = int(columns["iteration"][place])
            if first <= number < past:
                key = number, int(columns["audit_of_rank"][place])
                found[key][rank] = int(columns["audit_checksum"][place])
    return dict(found)


@pytest.mark.parametrize("way", [0, 1, 2], ids=["plain, failing audits", "buckets as views", "bfloat16"])
def test_sensors_and_audits_change_no_bit_of_training(job: Job, way: int) -> None:
    assert [found["same"][way] for found in job.found] == [True] * RANKS


@pytest.mark.parametrize("first", [MEASURED, HASTY], ids=["plain", "buckets as views"])
@pytest.mark.parametrize("name", ["local_grad_norm", "grad_norm", "update_rms", "attention_logit"])
def test_figures_are_those_that_plain_arithmetic_gives(job: Job, first: int, name: str) -> None:
    expected = [[step[name] for step in found["expected"][str(first)]] for found in job.found]
    np.testing.assert_allclose(figures(job, name, first, first + STEPS), expected, rtol=1e-4)


@pytest.mark.parametrize("first", [MEASURED, HASTY], ids=["plain", "buckets as views"])
def test_what_is_not_finite_is_counted_where_it_was_computed(job: Job, first: int) -> None:
    assert (figures(job, "not_finite", first, first + STEPS) == 0).all()
    last = first + STEPS, first + STEPS + 1
    assert figures(job, "not_finite", *last)[:, 0].tolist() == [0, 0, WIDTH, 0]
    assert np.isinf(figures(job, "local_grad_norm", *last)[:, 0]).tolist() == [False, False, True, False]
    assert np.isinf(figures(job, "grad_norm", *last)).all()


def test_replicas_have_one_checksum_in_each_iteration_and_another_in_the_next(job: Job) -> None:
    checksums = figures(job, "parameters_checksum", MEASURED, MEASURED + STEPS)
    assert (checksums >= 0).all()
    assert (checksums == checksums[0]).all()
    assert len(set(checksums[0].tolist())) == STEPS


def test_a_flipped_bit_of_a_weight_shows_once_its_part_is_summed(job: Job) -> None:
    checksums = figures(job, "parameters_checksum", FLIPPED, FLIPPED + 3 * CHECKSUM_STEPS)
    differs = checksums != checksums[0]
    assert not differs[:, :CHECKSUM_STEPS].any()
    assert differs[CULPRIT, CHECKSUM_STEPS : 2 * CHECKSUM_STEPS].any()
    assert differs[CULPRIT, 2 * CHECKSUM_STEPS :].any()
    others = [rank for rank in range(RANKS) if rank != CULPRIT]
    assert not differs[others].any()


def test_an_audit_differs_on_the_rank_that_computes_wrongly(job: Job) -> None:
    found = audits(job, FLIPPED, FLIPPED + CHECKSUM_STEPS)
    assert list(found) == [(FLIPPED + 1, 0), (FLIPPED + 3, 1)]
    for checksums in found.values():
        right = {own for rank, own in checksums.items() if rank != CULPRIT}
        assert len(right) == 1
        assert checksums[CULPRIT] not in right


def test_audits_agree_with_dropout_and_take_ranks_in_turn(job: Job) -> None:
    for way in (1, 2):
        first = SAME + way * STEPS
        found = audits(job, first, first + STEPS)
        assert [of_rank for _, of_rank in found] == [0, 1, 2, 3]
        assert [len(set(checksums.values())) for checksums in found.values()] == [1] * RANKS
        assert len({next(iter(checksums.values())) for checksums in found.values()}) == RANKS


def test_an_audit_is_missing_where_it_fails_or_its_batch_can_not_be_sent(job: Job) -> None:
    found = audits(job, SAME, SAME + STEPS)
    assert [sorted(checksums) for checksums in found.values()] == [[1, 2, 3]] * (STEPS // AUDIT_EVERY - 1)
    assert "the audit fails on rank 0" in job.log
    assert [number - SAME for number, _ in audits(job, SAME, SAME + STEPS)] == [1, 3, 7]
    assert "pickle" in job.log


def test_iterations_with_audits_are_not_judged_by_their_time(job: Job) -> None:
    phases = figures(job, "phase", FLIPPED, FLIPPED + CHECKSUM_STEPS)
    assert [PHASES[code] for code in phases[0]] == ["train", "eval"] * 2


def test_replicas_are_those_that_torch_keeps_equal(job: Job) -> None:
    for rank, found in enumerate(job.found):
        own = found["replicas"]
        assert own["ddp"] == [0, 1, 2, 3]
        assert own["hybrid"] == [rank % 2, rank % 2 + 2]
        assert own["given"] == [rank // 2 * 2, rank // 2 * 2 + 1]
        assert (own["sharded"], own["plain"], own["is_sharded"]) == (None, None, [True, False])
    assert [one.replicas for one in job.trace.announcements] == [(0, 1, 2, 3)] * RANKS


def test_of_shards_only_the_update_is_measured(job: Job) -> None:
    own = SHARDED, SHARDED + STEPS
    assert (figures(job, "update_rms", *own) > 0).all()
    assert np.isfinite(figures(job, "loss", *own)).all()
    assert np.isnan([figures(job, name, *own) for name in ("local_grad_norm", "grad_norm", "not_finite")]).all()
    # These two sets of replicas are not those announced for the models before.
    assert (figures(job, "parameters_checksum", *own) == UNKNOWN).all()


def test_a_figure_that_is_no_number_is_logged_and_not_known(job: Job) -> None:
    assert "what=report" in job.log
    assert np.isnan(figures(job, "loss", FLIPPED, FLIPPED + CHECKSUM_STEPS)).all()
    assert np.isfinite(figures(job, "local_grad_norm", FLIPPED, FLIPPED + CHECKSUM_STEPS)).all()


def test_no_sensor_failed_and_why_there_are_no_audits_is_logged(job: Job) -> None:
    assert "what=numerics" not in job.log
    assert "voters must be at least 3; got 2" in job.log
    assert "no process group is known whose ranks hold the same parameters" in job.log


CHECKSUMS = """
import torch
from irregulars.producers.torch_hook.replicas import checksum
random = torch.Generator().manual_seed(1)
kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int8):
    for size in (1, 7, 8, 9, 1000, 3 * 8192 + 5, 100_001):
        one = (10 * torch.randn(size, generator=random)).to(dtype)
        own = checksum([one])
        assert 0 <= own < 1 << 62
        assert own == checksum([one.clone()])
        bits = 8 * one.element_size()
        for bit in range(bits):
            mask = -(1 << bit) if bit == bits - 1 else 1 << bit
            for places in ([0], [size // 2], [size - 1], [0, size - 1], list(range(0, size, 32))):
                other = one.clone()
                other.view(kinds[other.element_size()])[sorted(set(places))] ^= mask
                assert checksum([other]) != own, (dtype, size, places, bit)
        other = one.clone()
        other[0], other[-1] = one[-1], one[0]
        assert torch.equal(one, other) or checksum([other]) != own, (dtype, size)
    two = torch.arange(20).to(dtype)
    assert checksum([two[:10], two[10:]]) != checksum([two[10:], two[:10]])
    assert checksum([two[1:11]]) != checksum([two[2:12]])
"""


def test_a_checksum_shows_any_bit_and_any_swap(tmp_path: Path) -> None:
    done = run_python("-c", CHECKSUMS, directory=tmp_path)
    assert done.returncode == 0, done.stderr


WITHOUT_ONE = """
import os, sys
from datetime import timedelta
import torch
from torch import distributed
from irregulars import torch_comms
from irregulars.producers.torch_hook import audits, session
rank = int(os.environ["RANK"])
if rank == 1 and sys.argv[2] == "start":
    session.Session.start = lambda self: 1 / 0
if rank == 1 and sys.argv[2] == "set aside":
    audits.Audit._as_before = lambda *_: 1 / 0
store = f"file://{sys.argv[1]}/store"
distributed.init_process_group("gloo", store, timeout=timedelta(seconds=20), rank=rank, world_size=3)
torch_comms.start(trace_dir=sys.argv[1] + "/trace", hook="python")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
compute = lambda model, batch: model(batch).sum().backward()
audit = torch_comms.audit(model, compute, every=2)
for _ in range(6):
    batch = torch.full((2, 4), float(rank))
    audit(batch)
    compute(model, batch)
distributed.destroy_process_group()
"""


@pytest.mark.parametrize("failing", ["start", "set aside"])
def test_a_rank_that_can_not_audit_holds_up_no_other(tmp_path: Path, failing: str) -> None:
    (tmp_path / "train.py").write_text(WITHOUT_ONE)
    run_ranks(["train.py", str(tmp_path), failing], tmp_path, 3)
