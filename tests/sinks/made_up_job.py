"""A small job that never ran: 2 hosts, 4 ranks, 40 iterations, a slow link from rank 1 to rank 3 in [20, 30)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.device_events import DeviceEvent, batch_of
from irregulars.messages.judgements import AttemptEnd, Columns, JudgedIteration, Judgements, Suspect, Verdict
from irregulars.messages.reasons import Step
from irregulars.messages.records import UNKNOWN, Batch, Header

JOB: Final = "made-up"
START_NS: Final = 1_795_234_590_000_000_000
ITERATIONS: Final = 40
SLOW: Final = range(20, 30)
RANKS: Final = 4
FLIPPED: Final = 25
AUDITED: Final = (10, 35)
VERDICT_ID: Final = f"{JOB}-0-20-0"


def judgements() -> Judgements:
    """All that a monitor would have said of the job."""
    return Judgements(
        job=JOB, announcements=[announcement(rank) for rank in range(RANKS)],
        iterations=[judged(iteration) for iteration in range(ITERATIONS)], rank_iterations=rank_iterations(),
        audits=audits(), detector_scores=detector_scores(), operators=operators(), patterns=patterns(),
        verdicts=[verdict(revision) for revision in (1, 2, 3)],
    )  # fmt: skip


def over() -> Judgements:
    """The same, with a row for each table: the job has said that it is over, and a rank collected garbage."""
    pauses: Columns = {
        "attempt": np.zeros(1, np.int64), "iteration": np.array([20]), "rank": np.array([1]),
        "cause": np.array(["garbage_collection"], dtype=object), "start_ns": np.array([START_NS + 2_000_000_000]),
        "elapsed_ns": np.array([12e6]),
    }  # fmt: skip
    end = AttemptEnd(JOB, 0, "finished", START_NS + ITERATIONS * 100_000_000)
    return replace(judgements(), pauses=pauses, ends=(end,))


def announcement(rank: int) -> Announcement:
    return Announcement(
        job=JOB, attempt=0, rank=rank, world_size=RANKS, logged_ranks=RANKS,
        communicators=(
            Communicator("world", "world", tuple(range(RANKS))),
            Communicator(f"pp{rank % 2}", "pp", (rank % 2, rank % 2 + 2)),
        ),
        sources=("commops", "iterations"), host=f"node-{rank // 2}", gpu=rank % 2, nic="eth0",
        replicas=(0, 1) if rank < 2 else (2, 3),
    )  # fmt: skip


def judged(iteration: int) -> JudgedIteration:
    is_slow = iteration in SLOW
    return JudgedIteration(
        job=JOB, attempt=0, iteration=iteration, start_ns=START_NS + iteration * 100_000_000,
        elapsed_ns=240_000_000 if is_slow else 100_000_000,
        reference_ns=float("nan") if iteration == 0 else 100_000_000.0, phase="train",
        is_irregular=None if iteration < 10 else is_slow, ranks_reported=RANKS,
        verdict_ids=(VERDICT_ID,) if is_slow else (), last_rank=1, last_ns=10e6,
        part=Step("work", 1, "all_reduce", "world", 200e6, 60e6, False, waiting=3) if is_slow else None,
    )  # fmt: skip


def rank_iterations() -> Columns:
    iteration, rank = (grid.ravel() for grid in np.meshgrid(np.arange(ITERATIONS), np.arange(RANKS), indexing="ij"))
    is_slow = np.isin(iteration, SLOW)
    return {
        "attempt": np.zeros_like(iteration), "iteration": iteration, "rank": rank,
        "start_ns": START_NS + iteration * 100_000_000,
        "elapsed_ns": np.where(is_slow, 240e6, 100e6),
        "work_ns": np.where(rank == 1, 60e6, 50e6),
        "operators": np.full(len(rank), 6),
        **dict.fromkeys(("late_rows", "lost_rows"), np.zeros(len(rank), dtype=np.int64)),
        "score": np.where(is_slow, 4.2, np.nan), **numerics(iteration, rank),
    }  # fmt: skip


def numerics(iteration: np.ndarray, rank: np.ndarray) -> Columns:
    """Rank 3's norm is infinite once, and from then on its parameters are not those of rank 2.

    No loss is known of rank 0 in the first iteration. A checksum is taken each fifth iteration.
    """
    is_flipped = (rank == 3) & (iteration >= FLIPPED)
    return {
        "loss": np.where((iteration == 0) & (rank == 0), np.nan, 2.5 - iteration / 100 + rank / 1000),
        "grad_norm": np.where((rank == 3) & (iteration == FLIPPED), np.inf, 1.0),
        "local_grad_norm": 1.0 + rank / 10, "update_rms": np.full(len(rank), 1e-3),
        "attention_logit": 20.0 + rank,
        "not_finite": np.where((rank == 3) & (iteration == FLIPPED), 1.0, 0.0),
        "parameters_checksum": np.where(iteration % 5 == 0, 1_000 * iteration + rank // 2 + 7 * is_flipped, UNKNOWN),
    }  # fmt: skip


def audits() -> Columns:
    """All ranks compute again the micro-batch of rank 0 in two iterations; rank 3 disagrees in the second."""
    iteration, rank = (grid.ravel() for grid in np.meshgrid(np.array(AUDITED), np.arange(RANKS), indexing="ij"))
    return {
        "attempt": np.zeros_like(iteration), "iteration": iteration, "rank": rank,
        "start_ns": START_NS + iteration * 100_000_000, "of_rank": np.zeros_like(rank),
        "checksum": 77 * iteration + ((rank == 3) & (iteration == AUDITED[-1])),
    }  # fmt: skip


def detector_scores() -> Columns:
    """One detector finds rank 3 strange in the slow iterations, and hardly ever rank 1."""
    iteration, rank = (grid.ravel() for grid in np.meshgrid(np.array(SLOW), np.array([1, 3]), indexing="ij"))
    return {
        "attempt": np.zeros_like(iteration), "iteration": iteration, "rank": rank,
        "start_ns": START_NS + iteration * 100_000_000,
        "detector": np.full(len(rank), "nic_drift", dtype=object), "score": np.where(rank == 3, 4.25, 0.5),
    }  # fmt: skip


def operators() -> Columns:
    """For each slow iteration: a recv on ranks 2 and 3, the second slow; then an all_reduce on each rank."""
    rows = [row for iteration in SLOW for row in _operators_of(iteration)]
    names = (
        "attempt", "iteration", "rank", "communicator", "operator", "sequence", "peer", "start_ns", "elapsed_ns",
        "size_bytes", "gap_ns", "wait_ns", "transfer_ns", "abnormal_ratio",
    )  # fmt: skip
    kinds = (int, int, int, object, object, int, int, int, float, float, float, float, float, float)
    columns = zip(*rows, strict=True)
    return {name: np.array(column, dtype=kind) for name, column, kind in zip(names, columns, kinds, strict=True)}


def _operators_of(iteration: int) -> list[tuple[object, ...]]:
    start = START_NS + iteration * 100_000_000
    rows: list[tuple[object, ...]] = []
    for rank, transfer_ns in ((2, 0.4e6), (3, 24.9e6)):
        place = (0, iteration, rank, f"pp{rank % 2}", "recv", iteration, rank - 2, start)
        rows.append((*place, transfer_ns + 1e6, 4e6, 2e6, 1e6, transfer_ns, transfer_ns / 0.4e6))
    for rank in range(RANKS):
        is_late = rank == 3
        times = (
            (UNKNOWN, np.nan, 1e6, 2e6, np.nan, np.nan, np.nan)
            if is_late
            else (start + 30_000_000, 5e6, 1e6, 2e6, 4e6, 1e6, 1.5)
        )
        rows.append((0, iteration, rank, "world", "all_reduce", iteration, UNKNOWN, *times))
    return rows


def patterns() -> Columns:
    """For each slow iteration a pattern of each rank; rank 1 sends steadily, of rank 0 only the whole is known."""
    iteration, rank = (grid.ravel() for grid in np.meshgrid(np.array(SLOW), np.arange(RANKS), indexing="ij"))
    is_first, is_steady = rank == 0, rank == 1
    return {
        "attempt": np.zeros_like(iteration), "iteration": iteration, "rank": rank,
        "start_ns": START_NS + iteration * 100_000_000,
        "communicator": np.where(is_first, "", "world").astype(object),
        "operator": np.where(is_first, "", "all_reduce").astype(object),
        "share": np.where(is_first, 1.0, 0.5), "tx_mean": np.where(is_first, np.nan, 1e7),
        "tx_deviation": np.where(is_first, np.nan, np.where(is_steady, 1e5, 4e6)),
        "rx_mean": np.full(len(rank), 1e7), "rx_deviation": np.full(len(rank), 5e6),
        "differential": np.where(is_first, np.nan, np.where(is_steady, 1.0, 0.5)),
        "unexpected": np.full(len(rank), np.nan), "is_abnormal": is_steady,
    }  # fmt: skip


def verdict(revision: int) -> Verdict:
    """Revision 1 doubts between a NIC and the link, later ones are sure; revision 3 closes."""
    link = Suspect(
        "link", 1, (1, 3), 0.5 + 0.13 * revision, peer=3, peer_host="node-1", host="node-0", gpu=1, nic="eth0"
    )
    nic = Suspect("nic", 1, (0, 1), 0.3, host="node-0", nic="eth0")
    is_closed = revision == 3
    return Verdict(
        verdict_id=VERDICT_ID, revision=revision, state="closed" if is_closed else "open", job=JOB,
        kind="slow_link", iterations=(20, 20 + 3 * revision + is_closed), delta=2.4, lost_s=0.4 * revision,
        communicator="pp1", suspects=(link, nic) if revision == 1 else (link,),
        evidence="recv on rank 3 from rank 1 took 24.9 ms after both had arrived (usual 0.4 ms)", world_size=RANKS,
        time_ns=START_NS + 3_000_000_000, close_reason="recovered" if is_closed else None,
        event=("opened", "raised", "closed")[revision - 1], severity="note" if revision == 1 else "ticket",
        recovers_ratio=None if revision == 1 else 0.9, lasted_s=0.72 * revision,
    )  # fmt: skip


def bandwidth(rank: int = 1, samples: int = 120) -> Batch:
    """Two devices of a rank, a sample per second each; one rate is unknown."""
    header = Header("bandwidth", JOB, 0, rank, names=("eth0", "eth1"))
    second = np.repeat(np.arange(samples // 2), 2)
    rates = np.full(samples, 2.5e9)
    rates[0] = np.nan
    return Batch(
        header,
        {
            "time_ns": START_NS + second * 1_000_000_000, "path": np.zeros(samples, dtype=np.uint8),
            "device": np.tile(np.array([0, 1], dtype=np.uint16), samples // 2), "tx_bytes_per_s": rates,
            "rx_bytes_per_s": rates / 2,
        },
    )  # fmt: skip


def events(rank: int = 1) -> Batch:
    """Two of a GPU and one of its host, at the begin of the slow iterations."""
    at_ns, host = START_NS + 20 * 100_000_000, "node-0"
    reported = [
        DeviceEvent(at_ns, rank, "xid", host, f"gpu{rank}", 79, "GPU has fallen off the bus."),
        DeviceEvent(at_ns + 1_000_000, rank, "xid", host, f"gpu{rank}", 45),
        DeviceEvent(at_ns + 2_000_000, rank, "out_of_memory", host, "", 4711, "process (python)"),
    ]
    return batch_of(reported, Header("events", JOB, 0, rank))


def gpu_health(rank: int = 1, samples: int = 40) -> Batch:
    """One GPU, a state per iteration; throttled by heat from the first slow iteration on, an XID in the last."""
    header = Header("gpu_health", JOB, 0, rank, names=(f"gpu{rank}",))
    at = np.arange(samples)
    is_slow, is_error = at >= 20, at == samples - 1
    columns: dict[str, np.ndarray] = {
        "time_ns": START_NS + at * 100_000_000, "device": np.zeros(samples, dtype=np.uint16),
        "sm_clock_mhz": np.where(is_slow, 1_200.0, 1_980.0), "memory_clock_mhz": np.full(samples, np.nan),
        "power_w": np.full(samples, 650.0), "temperature_c": np.where(is_slow, 88.0, 60.0),
        "sm_active_ratio": np.full(samples, 0.9), "throttle_reasons": np.where(is_slow, 0x24, 0),
        "ecc_corrected": np.full(samples, UNKNOWN), "ecc_uncorrected": np.zeros(samples, dtype=np.int64),
        "xid": np.full(samples, UNKNOWN),
    }  # fmt: skip
    for name, column in columns.items():
        if name not in ("time_ns", "device"):
            columns[name] = np.where(is_error, np.nan if column.dtype.kind == "f" else UNKNOWN, column)
    columns["xid"][-1] = 79
    return Batch(header, columns)
