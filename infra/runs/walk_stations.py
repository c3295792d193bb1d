"""The stations of one batch's way, each with its files and values: what `irregulars walk` prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from irregulars.detectors.blame.causes import find_causes
from irregulars.detectors.irregular.window import IterationWindow
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.iteration_judge import IterationJudge
from irregulars.detectors.path.critical_path import attribute
from irregulars.detectors.path.operator_graph import build_graph
from irregulars.detectors.verdicts.tracker import VerdictTracker
from irregulars.errors import InputError
from irregulars.infra.runs.analysis import order
from irregulars.infra.runs.walk import Message, WalkedJob
from irregulars.messages.evidence import CLASS_COLUMNS, Evidence, encode_evidence
from irregulars.messages.judgements import Verdict, encode_verdict
from irregulars.messages.records import OPERATORS, UNKNOWN, Batch, encode_batch
from irregulars.producers.publishing.batches import cut_in_order
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.alerts import alert_of, summarise
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.rank_hop.evidence_reduction import reduce_closings
from irregulars.streams.rank_hop.rank_monitor import RankMonitor

_EVIDENCE_SHOWN: Final = ("elapsed_ns", "work_ns", "communication_ns", "operators", "unended", "late_rows")


@dataclass(frozen=True, slots=True)
class Station:
    """One station of the way.

    Parameters
    ----------
    name, title
        For programs, and for people.
    done_by
        The functions and classes that do the work here, as ``file: name``.
    values
        What stands there, as JSON values.
    """

    name: str
    title: str
    done_by: tuple[str, ...]
    values: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {"station": self.name, "title": self.title, "done_by": list(self.done_by), **self.values}


@dataclass(frozen=True, slots=True)
class Place:
    """What to follow: one rank's batch with one iteration."""

    rank: int
    iteration: int


def choose(job: WalkedJob, rank: int | None = None, iteration: int | None = None) -> Place:
    """Choose what to follow: as wanted, else the iteration in which the costliest verdict opened, and its suspect.

    Raises
    ------
    InputError
        If the rank sent nothing, or the iteration was not judged.
    """
    verdict = min((one for one in job.revisions if one.event == "opened"), key=order, default=None)
    if iteration is None:
        iteration = _iteration_of(job, verdict)
    if iteration not in job.looks:
        judged = f"{min(job.looks)} to {max(job.looks)}" if job.looks else "none"
        raise InputError(f"iteration must be one that was judged ({judged}); got {iteration}")
    if rank is None:
        rank = _rank_of(job, iteration, verdict)
    if not any(batch.header.rank == rank for batch, _ in _batches(job, iteration)):
        raise InputError(f"rank must be one with operators in iteration {iteration}; got {rank}")
    return Place(rank, iteration)


def _iteration_of(job: WalkedJob, verdict: Verdict | None) -> int | None:
    """Return the iteration with which a verdict opened; without one the longest, whether or not it is irregular."""
    if verdict is not None:
        seen = [one.iteration for one in job.iterations.values() if verdict.verdict_id in one.verdict_ids]
        return min(seen, default=verdict.iterations[0])
    return max(job.looks, key=lambda number: job.looks[number].observation.elapsed_ns, default=None)


def _rank_of(job: WalkedJob, iteration: int, verdict: Verdict | None) -> int:
    ranks = [batch.header.rank for batch, _ in _batches(job, iteration)]
    if verdict is not None and verdict.suspects and verdict.suspects[0].rank in ranks:
        return verdict.suspects[0].rank
    return min(ranks, default=0)


def stations(job: WalkedJob, place: Place) -> list[Station]:
    """Return the stations of one batch's way, from the rank's rows to the alert."""
    verdict = _verdict(job, place)
    return [
        _rows(job, place), _batch(job, place), _closed(job, place), _evidence(job, place), _judged(job, place),
        _path(job, place), _cause(job, place), _decided(job, verdict), _alert(job, verdict),
    ]  # fmt: skip


def _by(*things: Callable[..., Any]) -> tuple[str, ...]:
    """Name functions and classes with the files that they stand in."""
    return tuple(
        f"{one.__module__.removeprefix('irregulars.').replace('.', '/')}.py: {one.__qualname__}" for one in things
    )


# --- the first hop --------------------------------------------------------------------------------------------------


def _batches(job: WalkedJob, iteration: int) -> Iterator[tuple[Batch, Message]]:
    """Yield the batches that hold operators of an iteration."""
    for batch, message in job.batches:
        if (batch.columns["iteration"] == iteration).any():
            yield batch, message


def _own_batch(job: WalkedJob, place: Place) -> tuple[Batch, Message]:
    """Return the rank's last batch with operators of the iteration."""
    return [pair for pair in _batches(job, place.iteration) if pair[0].header.rank == place.rank][-1]


def _rows(job: WalkedJob, place: Place) -> Station:
    batch, _ = _own_batch(job, place)
    columns = batch.columns
    rows = [
        {
            "communicator": batch.header.names[int(columns["communicator"][at])],
            "operator": OPERATORS[int(columns["operator"][at])],
            **{name: _known(columns[name][at]) for name in ("sequence", "peer", "start_ns", "elapsed_ns")},
            "size_bytes": _known(columns["size_bytes"][at]),
        }
        for at in np.flatnonzero(columns["iteration"] == place.iteration).tolist()
    ]
    return Station("rows", f"Operators that rank {place.rank} logged in iteration {place.iteration}",
                   _by(read_trace), {"rows": rows})  # fmt: skip


def _batch(job: WalkedJob, place: Place) -> Station:
    batch, message = _own_batch(job, place)
    header = batch.header
    values = {
        **_sent(message),
        "rows": [header.rows_before, header.rows_before + len(batch)],
        "iterations": _range(batch.columns["iteration"]),
        "watermark_ns": header.watermark_ns,
    }
    return Station("batch", "The batch as a message on topic commops", _by(cut_in_order, encode_batch), values)


def _closed(job: WalkedJob, place: Place) -> Station:
    for closing, cause in job.closings:
        if closing.rank == place.rank and place.iteration in closing.numbers:
            values = {
                "closed_by": {"topic": cause.topic, "offset": cause.offset},
                "closed_with": _range(np.array(closing.numbers)),
                "operators": sum(
                    int(np.count_nonzero(cut.column("iteration") == place.iteration)) for cut in closing.cuts
                ),
            }
            return Station("closed", "The iteration is complete on this rank: it closes", _by(RankMonitor), values)
    return Station("closed", "The iteration did not close on this rank", _by(RankMonitor))


def _evidence(job: WalkedJob, place: Place) -> Station:
    for evidence, message in job.evidence:
        columns = evidence.columns
        at = np.flatnonzero((columns["rank"] == place.rank) & (columns["iteration"] == place.iteration))
        if len(at):
            row = int(at[0])
            values = {
                **_sent(message),
                **{name: _known(columns[name][row]) for name in _EVIDENCE_SHOWN},
                "commops_offsets": evidence.offsets.take(np.array([row]))["offset"].tolist(),
                "classes": _classes(evidence, row),
            }
            title = "One evidence row, on topic evidence"
            return Station("evidence", title, _by(reduce_closings, encode_evidence), values)
    return Station("evidence", "There is no evidence of this iteration", _by(reduce_closings))


def _classes(evidence: Evidence, row: int) -> list[dict[str, Any]]:
    own = evidence.classes.take(np.array([row]))
    parts = {name: own[name].tolist() for name in CLASS_COLUMNS}
    return [
        {
            **dict(zip(parts, one, strict=True)),
            "communicator": evidence.names[one[0]],
            "operator": OPERATORS[one[1]],
            "shortest_ns": round(one[-1]),
        }
        for one in zip(*parts.values(), strict=True)
    ]


# --- the second hop -------------------------------------------------------------------------------------------------


def _judged(job: WalkedJob, place: Place) -> Station:
    look, judged = job.looks[place.iteration], job.iterations[place.iteration]
    values = {
        "elapsed_ns": judged.elapsed_ns,
        "mean_ns": _known(look.mean_ns),
        "limit_ns": _known(look.limit_ns),
        "times_mean": _known(judged.elapsed_ns / look.mean_ns),
        "is_irregular": judged.is_irregular,
        "ranks_reported": judged.ranks_reported,
    }
    title = "The iteration of the whole job is judged: all ranks have delivered it"
    return Station("judged", title, _by(JobMonitor, IterationJudge, IterationWindow), values)


def _path(job: WalkedJob, place: Place) -> Station:
    look = job.looks[place.iteration]
    attribution = look.observation.attribution
    by = _by(build_graph, attribute)
    if attribution is None:
        return Station("path", "A regular iteration: its operators are not read back", by)
    lanes = [
        {"lane": _name(lane, look.topology), "excess_ns": ns, **_piece(attribution.pieces.get(lane))}
        for lane, ns in sorted(attribution.path_excess_ns.items(), key=lambda item: -item[1])
    ]
    values = {
        "excess_ns": look.observation.excess_ns,
        "read_back": {"batches": sum(len(span.offsets) for span in look.read),
                      "ranks": sorted({span.rank for span in look.read})},
        "lanes": lanes,
    }  # fmt: skip
    return Station("path", "Where the time went: the critical path, against what is usual", by, values)


def _piece(piece: Any) -> dict[str, Any]:
    if piece is None:
        return {}
    return {"operator": OPERATORS[piece.operator], "took_ns": piece.elapsed_ns, "usual_ns": _known(piece.usual_ns)}


def _name(lane: Lane, topology: Topology) -> str:
    """Name a lane in words."""
    if lane == EVERYBODY:
        return "work of all ranks"
    if lane.kind == "work":
        return f"work of rank {lane.first}"
    if lane.kind == "pair":
        return f"rank {lane.first} to rank {lane.second}"
    return (
        f"{lane.kind} of {topology.names[lane.first]}" if lane.kind == "collective" else f"NIC of rank {lane.first}"
    )


def _cause(job: WalkedJob, place: Place) -> Station:
    look = job.looks[place.iteration]
    attribution = look.observation.attribution
    found = [] if attribution is None else find_causes([attribution], look.topology)
    causes = [
        {
            "kind": cause.kind,
            "suspects": [
                {"device": device.kind, "ranks": list(device.ranks), "probability": probability}
                for device, probability in cause.suspects
            ],
            "explained_ns": sum(cause.explained_ns.values()),
        }
        for cause in found
    ]
    title = "What may be behind it, by this iteration alone"
    return Station("cause", title, _by(find_causes), {"causes": causes})


def _verdict(job: WalkedJob, place: Place) -> Verdict | None:
    """Return the first revision of the verdict whose cause was seen in the iteration, or that is about it."""
    seen = job.iterations[place.iteration].verdict_ids
    opened = [one for one in job.revisions if one.event == "opened"]
    about = [
        one for one in opened
        if one.verdict_id in seen or (not seen and one.iterations[0] <= place.iteration < one.iterations[1])
    ]  # fmt: skip
    return min(about, key=order, default=None)


def _decided(job: WalkedJob, verdict: Verdict | None) -> Station:
    by = _by(VerdictTracker, encode_verdict)
    if verdict is None:
        return Station("verdict", "No verdict is about this iteration", by)
    values = {**_sent(_message(job, "verdicts", verdict)), "verdict": verdict.to_json()}
    return Station("verdict", "Seen often enough: a verdict opens, on topic verdicts", by, values)


def _alert(job: WalkedJob, verdict: Verdict | None) -> Station:
    """Show the first alert of the verdict, which a later revision may bring: see `sinks.alerts.alert_of`."""
    by = _by(alert_of, summarise)
    for one in job.revisions:
        if verdict is not None and one.verdict_id == verdict.verdict_id and alert_of(one) is not None:
            values = {
                **_sent(_message(job, "alerts", verdict)),
                "revision": one.revision,
                "event": one.event,
                "summary": summarise(one),
            }
            return Station("alert", "What people are told, on topic alerts", by, values)
    return Station("alert", "Nobody is alerted", by)


def _message(job: WalkedJob, topic: str, verdict: Verdict) -> Message:
    """Return the first message of a verdict on a topic."""
    return next(one for one in job.bus.topics[topic] if one.key == verdict.verdict_id.encode())


# --- values ---------------------------------------------------------------------------------------------------------


def _sent(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "key": message.key.decode(),
        "offset": message.offset,
        "message_bytes": len(message.value),
    }


def _known(value: Any) -> int | float | None:
    """Return a number for JSON: integers as such, and None for what is not known."""
    number = float(value)
    if math.isnan(number) or value == UNKNOWN:
        return None
    return int(value) if number.is_integer() else number


def _range(numbers: np.ndarray) -> list[int]:
    """Return the half-open range of the known numbers of iterations; empty if none is known."""
    known = numbers[numbers != UNKNOWN]
    return [int(known.min()), int(known.max()) + 1] if len(known) else []
