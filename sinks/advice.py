"""Text for people about a verdict: names of devices, the next step, and where to look. Plain ASCII but for names.

Advice goes no further than the verdict. It says to drain a device only if the kind of the verdict blames a device,
its probability suffices, and the cause lies in hardware or network. A host is not drained for a program that collects
garbage, nor for a cause that nobody knows before its devices were tested.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from irregulars.messages.device_events import DEVICE_EVENTS, GPU_METRICS
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.kinds import GPU, STANDSTILLS, VERDICT_KINDS, layer_of
from irregulars.messages.reasons import Considered, Reasons, Reported, Step
from irregulars.words import duration, name_kind, name_ranks, usual_duration

_NO_HOST: Final = "a host that is not announced"
SURE: Final = 0.5  # below this probability of the first suspect, advice says to confirm before anything is drained
RUNBOOK: Final = "infra/docs/runbook.md"  # a section for each kind of verdict, which is its anchor as well


def name_cause(verdict: Verdict) -> str:
    """Return the cause that a verdict names: its kind, or the detector that found it.

    >>> verdict = Verdict("v", 1, "open", "j", "custom", (0, 5), 1.0, 0.0, None, (), "", detector="quiet_loss")
    >>> name_cause(verdict)
    'quiet_loss (detector)'
    """
    return f"{verdict.detector} (detector)" if verdict.detector else name_kind(verdict.kind)


def name_device(suspect: Suspect) -> str:
    """Name a suspect as a technician would: device, host, and its ranks.

    >>> name_device(Suspect("nic", 26, (26,), 0.91, host="node-3", gpu=2, nic="mlx5_0"))
    'NIC mlx5_0 on node-3 (GPU 2, rank 26)'
    >>> name_device(Suspect("gpu", 26, (26,), 0.91))
    'rank 26 (host not announced)'
    >>> name_device(Suspect("dpu", 26, (26,), 0.91, host="node-3"))
    'dpu of rank 26 on node-3'
    """
    ranks, host = name_ranks(suspect.ranks), suspect.host or _NO_HOST
    gpu = None if suspect.gpu is None else f"GPU {suspect.gpu}"
    nic = suspect.nic and f"NIC {suspect.nic}"
    kind, name = suspect.traits, _own_name(suspect)
    if kind.is_way:
        place = _bracket(suspect.host, gpu, nic)
        return f"the path from rank {suspect.rank}{place} to rank {suspect.peer}{_bracket(suspect.peer_host)}"
    if suspect.device == GPU:
        is_one_gpu = gpu is not None and len(suspect.ranks) == 1
        if suspect.host is None:
            return f"{gpu} of {ranks} (host not announced)" if is_one_gpu else f"{ranks} (host not announced)"
        if is_one_gpu:
            return f"{gpu} on {suspect.host}{_bracket(ranks, nic)}"
        # Several ranks may live on several hosts.
        return f"{ranks} on {suspect.host}" if len(suspect.ranks) == 1 else f"{ranks} (the first on {suspect.host})"
    if name is None:
        return kind.unnamed.format(device=suspect.device, noun=kind.noun, ranks=ranks, host=host)
    return f"{name}{_bracket(gpu if len(kind.identity) > 1 else None, ranks)}"


def _own_name(suspect: Suspect) -> str | None:
    """Return the device's own name, "switch leaf-1", "NIC mlx5_1 on node-2"; None where it has none that is known."""
    names = suspect.traits.identity
    own = getattr(suspect, names[-1]) if names else None
    on = f" on {suspect.host or _NO_HOST}" if len(names) > 1 else ""
    return None if own is None or own == "" else f"{suspect.traits.noun} {own}{on}"


def _bracket(*parts: str | None) -> str:
    known = [part for part in parts if part]
    return f" ({', '.join(known)})" if known else ""


@dataclass(frozen=True, slots=True)
class NextStep:
    """The next step, for people and for machines: made together, so that both get the same."""

    sentence: str  # for people; begins in lower case, ends without a stop
    # For orchestrators, of `ACTION_NAMES`: all concern the first suspect. Empty: a machine can do nothing.
    actions: tuple[str, ...] = ()


# Actions of an orchestrator: let no new work onto the host; move the job off it at its next checkpoint;
# write that checkpoint now; test the device; give the pipeline stage fewer layers; go back to a trusted checkpoint
ACTION_NAMES: Final = ("cordon", "drain", "checkpoint_now", "test_device", "replan_stages", "roll_back")


def advise(verdict: Verdict) -> str:
    """Return the next step as a sentence; it begins in lower case and ends without a stop."""
    return plan_of(verdict).sentence


def plan_of(verdict: Verdict) -> NextStep:
    """Return the next step. Without a suspect, or below `SURE`, no host is to be taken out of service."""
    if verdict.close_reason == "merged":
        return NextStep("go by the verdict that the evidence names: it tells of the same, and goes on")
    if verdict.state == "closed":
        about = _plan_of_host(verdict, _first(verdict))
        if verdict.kind == "mismatch":
            return NextStep("mend the branch or the sizes in which the calls differ before it runs again")
        if verdict.kind in OF_NUMBERS and verdict.severity != "note":
            trusted = _command("trusted_checkpoints", job=verdict.job)
            sentence = f"trust no checkpoint since iteration {verdict.iterations[0]} ({trusted})"
            return NextStep(sentence) if about is None else NextStep(f"{sentence}; {about.sentence}", about.actions)
        if verdict.close_reason == "silent":
            sentence = "see whether the job still runs: its ranks have fallen silent"
            return NextStep(sentence) if about is None else NextStep(f"{sentence}; {about.sentence}", about.actions)
        return about or NextStep("nothing now; the history is in the database")
    if verdict.severity == "note" and verdict.kind not in OF_NUMBERS:
        # A note whatever it costs: nobody knows how much of it is the job's own nature
        if not verdict.suspects and not verdict.has_healthy_past:
            return NextStep(f"nothing in a hurry, no time without it is known; {_act_on(verdict, None)}")
        return NextStep("nothing yet, it costs too little; see whether it comes back or goes on")
    suspect = _first(verdict)
    sentence, actions = _act_on(verdict, suspect), _actions(verdict, suspect)
    if suspect is not None and suspect.probability < SURE and _drains(verdict):
        return NextStep(f"confirm before you drain anything, then {sentence}", actions)
    return NextStep(sentence, actions)


_DRAINING: Final = frozenset(name for name, one in VERDICT_KINDS.items() if one.drains)
_TEST: Final = ("test_device",)
OF_NUMBERS: Final = ("corruption", "loss_spike")  # kinds that cost no time, and spoil the model


def _layer(verdict: Verdict) -> str:
    """Return where the cause lies; an older worker does not say it, but for some kinds it is always the same."""
    return layer_of(verdict.kind) if verdict.layer == "unknown" else verdict.layer


def _drains(verdict: Verdict) -> bool:
    """Whether the accused host may be taken out of service for this."""
    return verdict.kind in _DRAINING and _layer(verdict) in ("hardware", "network")


def _actions(verdict: Verdict, suspect: Suspect | None) -> tuple[str, ...]:
    if suspect is None:
        return ()
    kind, layer = verdict.kind, _layer(verdict)
    if kind in _DRAINING and not _drains(verdict):
        # Its kind blames a device, and its cause may lie elsewhere: a test finds out where nobody knows.
        return _TEST if layer == "unknown" else ()
    if kind == "slow_stage" and verdict.cause is not None:
        return ()  # it has not too many layers
    steps = VERDICT_KINDS[kind].actions if kind in VERDICT_KINDS else ()
    if suspect.probability >= SURE or not steps:
        return steps
    return () if kind == "slow_stage" else _TEST  # of a stage there is no device to test


def _host(suspect: Suspect | None) -> str:
    if suspect is None:
        return "the host"
    return suspect.host or f"the host of {name_ranks(suspect.ranks)}"


def _first(verdict: Verdict) -> Suspect | None:
    return verdict.suspects[0] if verdict.suspects else None


def _act_on(verdict: Verdict, suspect: Suspect | None) -> str:
    host = _host(suspect)
    trusted = f"go back to a trusted checkpoint ({_command('trusted_checkpoints', job=verdict.job)})"
    match verdict.kind:
        case "slow_rank":
            if suspect is None:
                return "compare the ranks' own work; no device is named yet"
            return _act_on_work(verdict, suspect, host)
        case "slow_checkpoint":
            return (
                f"drain nothing: see what else uses the storage that {host} writes checkpoints to, and whether it is "
                "full; else write them asynchronously, from fewer ranks, or to faster storage"
            )
        case "slow_nic":
            if suspect is None:
                return "compare the bandwidth of the ranks; no NIC is named yet"
            nic = f"NIC {suspect.nic}" if suspect.nic else "its NIC"
            return f"cordon {host}, drain it at the next checkpoint, then check port, optics and firmware of {nic}"
        case "slow_link":
            if suspect is None:
                return "compare the transfers between the ranks; no path is named yet"
            between = f"between {host} and {suspect.peer_host or f'the host of rank {suspect.peer}'}"
            return f"drain nothing yet: have cables, optics and routes checked {between}"
        case "slow_communicator":
            where = (suspect and _own_name(suspect)) or "the fabric between its ranks"
            return f"drain nothing: have {where} checked for congestion, errors and failed uplinks"
        case "slow_stage":
            ranks = "the stage" if suspect is None else name_ranks(suspect.ranks)
            plan = "drain nothing: give that stage fewer layers at the next restart"
            return _by_cause(verdict, ranks, "their hosts") or plan
        case "imbalance":
            plan = "drain nothing: even out the batches (sequence lengths, experts) between the ranks"
            return _by_cause(verdict, "ranks in turn", "their hosts") or plan
        case "hang":
            if suspect is None:
                return (
                    "drain nothing, no rank stands out: dump the stacks of all ranks (py-spy dump), look at the "
                    "counters of NICs and switches and at NCCL_DEBUG=INFO for a stuck kernel or lost packets, then "
                    "restart from the last checkpoint"
                )
            where = "" if suspect.host is None else f" on {suspect.host}"
            dump = f"dump the stack of rank {suspect.rank}{where} (py-spy dump)"
            if _drains(verdict):
                return f"{dump}, cordon {host}, and restart from the last checkpoint"
            return f"{dump}, restart from the last checkpoint, and test {host} before anything is drained"
        case "mismatch":
            who = "all ranks" if suspect is None else f"{name_ranks(suspect.ranks)} and of one other rank"
            return (
                f"drain nothing, it is the program: compare the stacks of {who} at that call, mend the branch or the "
                "sizes in which they differ (TORCH_DISTRIBUTED_DEBUG=DETAIL checks each call), and restart"
            )
        case "corruption":
            if suspect is None:
                in_sum = "test NICs, links and memory of its ranks: a sum does not show where it went wrong"
                learn = in_sum if _layer(verdict) == "network" else "turn audits on to learn which rank it is"
                return f"write no checkpoint; {trusted}, and {learn}"
            # Wrong gradients went into everybody's parameters: a replica is good only where parameters alone differ
            good = f"copy a good replica's parameters to rank {suspect.rank} if nothing but these differs"
            return f"write no checkpoint; {trusted}, or {good}; then cordon {host} and test its GPU"
        case "loss_spike":
            # The loss itself is not finite: so are the parameters, unless that step was skipped
            is_grave = verdict.severity == "page"
            lost = f"write no checkpoint; if the loss stays infinite {trusted}; " if is_grave else ""
            if suspect is None:
                skip = "drain nothing: skip the batch, clip the gradient or lower the rate if it does not fall back"
                return f"{lost}{skip}"
            again = f"{lost}compute that step again on rank {suspect.rank}"
            return f"{again}: if it comes out otherwise test the GPU on {host}, if alike skip the batch"
        case "custom" if verdict.detector == DEVICE_EVENTS and suspect is not None:
            if verdict.layer == "software":
                return f"drain nothing: see which program ran on {name_device(suspect)}, its error is reported"
            if verdict.layer == "unknown":
                return f"drain nothing: see in the job's log why a process of {name_ranks(suspect.ranks)} ended"
            if verdict.layer == "host":
                return f"look at {host} before you drain anything: what it reports may have ended processes"
            return f"test {name_device(suspect)} before you drain anything: what it reports has cost no time so far"
        case "custom":
            who = "the ranks" if suspect is None else name_ranks(suspect.ranks)
            said = f"look at {who} with what the detector says in the evidence"
            return _by_cause(verdict, who, host) or f"drain nothing on a detector's word alone: {said}"
    return "drain nothing: go by the evidence, this release does not know such verdicts"


_BY_CAUSE: Final = {
    "garbage_collection": "drain nothing: {ranks} collected garbage while others waited; collect on all ranks "
    "together each N steps (gc.disable(), gc.collect()), or exempt what stays (gc.freeze())",
    "data_loader": "drain nothing: {ranks} waited for data; look at the storage behind it, and give the "
    "loader more workers or a longer queue",
    "checkpoint_write": "drain nothing: {ranks} wrote a checkpoint while others waited; write it asynchronously, "
    "with fewer writers, or to faster storage",
    "compilation": "drain nothing: {ranks} compiled in the middle of training; compile before it, and keep shapes "
    "from changing",
    "cpu_throttled": "drain nothing: the CPU quota of {ranks} was spent; raise the limit that the scheduler sets "
    "(Kubernetes: limits.cpu)",
    "cpu_wait": "drain nothing yet: {ranks} waited for a processor; see what else runs on {host}, and give ranks "
    "cores of their own",
    "memory_pressure": "drain nothing yet: {host} is short of memory; see what takes it, and whether it swaps",
    "gpu_idle": "drain nothing: the GPU of {ranks} waited for launches; see what its CPU did then (py-spy record), "
    "and take synchronizations, collections and logging out of the step",
    "io_wait": "drain nothing yet: {ranks} waited for a disk of {host}; see what else uses it, and how it does",
    "host": "drain nothing yet: {ranks} waited for processors, a quota or disks of {host}; see what else runs on it, "
    "and which limits are set",
}
"""The next step where the cause of the lost time is known."""


def _by_cause(verdict: Verdict, ranks: str, host: str) -> str | None:
    """Return the next step where the cause of the lost time is known; None: it is not."""
    cause = verdict.cause or ""
    if not cause and _layer(verdict) == "host":
        is_short = any(one.kind == "out_of_memory" for one in _reported(verdict))
        cause = "memory_pressure" if is_short else "host"
    if cause in _BY_CAUSE:
        return _BY_CAUSE[cause].format(ranks=ranks, host=host)
    if not cause or cause == "gpu_kernels" or _drains(verdict):
        return None
    return f"drain nothing: {name_kind(cause)} took the time of {ranks}"


def _reported(verdict: Verdict) -> tuple[Reported, ...]:
    return () if verdict.explanation is None else verdict.explanation.reported


def _act_on_work(verdict: Verdict, suspect: Suspect, host: str) -> str:
    known = _by_cause(verdict, name_ranks(suspect.ranks), host)
    if known is not None:
        return known
    if _drains(verdict):
        is_throttled = any(one.kind == "throttle" for one in _reported(verdict))
        then = ", then check its cooling, power and clocks (nvidia-smi -q -d PERFORMANCE)" if is_throttled else ""
        return f"cordon {host} and drain it at the next checkpoint{then}"
    is_gpu = verdict.cause == "gpu_kernels"
    why = "its kernels are slower or have more to do" if is_gpu else "what its time went to is not known"
    return f"test {name_device(suspect)} before you drain anything: {why}"


def _plan_of_host(verdict: Verdict, suspect: Suspect | None) -> NextStep | None:
    """Return the next step for the accused host, now that the verdict is closed.

    A host that was seen to be as usual again takes work. One of a job that ended or moved away was not: a job that
    was restarted elsewhere because the host is cordoned must not bring it back.
    """
    if suspect is None or verdict.severity == "note":
        return None
    if verdict.detector == DEVICE_EVENTS and verdict.layer == "hardware" and verdict.close_reason != "recovered":
        return NextStep(f"test {name_device(suspect)} before it takes work again")
    if verdict.kind not in _DRAINING:
        return None
    place = _host(suspect)
    if not _drains(verdict) and _layer(verdict) != "unknown":
        return None
    if suspect.probability < SURE or not _drains(verdict):
        return NextStep(f"test {place} when it is free", _TEST)
    # Numbers agree again as soon as a replica is copied, whatever the device computes next
    if verdict.close_reason == "recovered" and verdict.kind != "corruption":
        return NextStep(
            f"let {place} take work again if it was cordoned for this, and test it when it is free", _TEST
        )
    sentence = {
        "finished": f"keep {place} out of the next job until it is tested",
        "restarted": f"make sure that the new attempt does not run on {place}",
    }.get(verdict.close_reason or "", f"test {place} before it takes work again")
    return NextStep(sentence, ("cordon", *_TEST))


def where_to_look(verdict: Verdict) -> str:
    """Return the checks on the machine, how to cordon it, and the commands that show more."""
    show = f"irregulars show {shlex.quote(verdict.verdict_id)}"
    look = f"Look further: {show}; {command_to_run(verdict)}"
    return " ".join(one for one in (what_to_check(verdict), look) if one)


def runbook_of(kind: str, url: str | None = None) -> str:
    """Return where the runbook has the kind's section; without a `url` by the page's path in the repository.

    >>> runbook_of("slow_nic"), runbook_of("hang", "https://docs.example/runbook/")
    ('infra/docs/runbook.md#slow_nic', 'https://docs.example/runbook/#hang')
    """
    return f"{url or RUNBOOK}#{kind}"


def what_to_check(verdict: Verdict) -> str:
    """Return the checks on the machine, and how to cordon it; empty where neither is to be done."""
    suspect = _first(verdict)
    # Where a cause is known that is not the device's, nothing of the machine need be sought.
    if suspect is None or (verdict.cause is not None and _layer(verdict) in ("host", "software", "data")):
        return ""
    checks = suspect.traits.checks.get(verdict.kind)
    sentences = [f"On {_host(suspect)}: {checks}."] if checks else []
    is_urgent = verdict.state != "closed" and verdict.severity != "note"
    if _drains(verdict) and is_urgent and suspect.host is not None:
        node = shlex.quote(suspect.host)
        cordon = f"kubectl cordon {node}, or scontrol update nodename={node} state=drain reason=irregular"
        sentences.append(f"Cordon: {cordon}.")
    return " ".join(sentences)


def command_to_run(verdict: Verdict) -> str:
    """Return the shipped investigation that shows more, as a command; names are quoted for a shell."""
    first, past_last = verdict.iterations
    rank = verdict.suspects[0].rank if verdict.suspects else None
    job: dict[str, str | int] = {"job": verdict.job, "attempt": verdict.attempt}
    if verdict.kind == "slow_nic" and rank is not None:
        return _command("bandwidth_of_rank", **job, rank=rank)
    if verdict.detector == GPU_METRICS:
        return _command("metrics_of_ranks", **job)
    if verdict.detector == DEVICE_EVENTS:
        host = verdict.suspects[0].host if verdict.suspects else None
        return _command("reported_events", **({"host": host} if host else {}))
    if verdict.kind == "custom" and rank is not None:
        return _command("strange_ranks", **job, rank=rank)
    if verdict.kind in OF_NUMBERS:
        return _command("numerics_of_job", **job)
    if verdict.kind in STANDSTILLS:
        return _command("hang_positions", job=verdict.job, verdict_id=verdict.verdict_id)
    if verdict.kind in ("slow_link", "slow_nic", "slow_communicator"):
        return _command("slowest_links", **job, first_iteration=first, past_last_iteration=past_last)
    # The iteration whose path is shown beside it
    shown = past_last - 1 if verdict.explanation is None else verdict.explanation.iteration
    return _command("ranks_of_iteration", **job, iteration=shown)


def stack_command(verdict: Verdict) -> str:
    """Return how its host dumps the stack of a rank for which others wait; empty where none does any more.

    The launcher gave the process its rank; those that it forked have a later number. Slurm's own counts only where
    there is no other: torchrun, started by it, has that of the node.
    """
    if verdict.kind not in STANDSTILLS or verdict.state == "closed" or not verdict.suspects:
        return ""
    own = f'grep -slzx "$name={verdict.suspects[0].rank}" /proc/[0-9]*/environ | cut -d/ -f3 | sort -n'
    return f'py-spy dump --pid "$(for name in RANK SLURM_PROCID; do {own}; done | head -1)"'


def _command(name: str, **values: str | int) -> str:
    return " ".join(["irregulars sql", name, *(shlex.quote(f"{key}={value}") for key, value in values.items())])


_HOUR_S = 3600.0


def gpu_hours_lost(verdict: Verdict) -> float | None:
    """GPU hours that waited in vain so far; None where the number of GPUs is not known.

    >>> from dataclasses import replace
    >>> verdict = Verdict("v", 1, "open", "j", "imbalance", (0, 5), 1.3, 90.0, None, (), "", world_size=1000)
    >>> gpu_hours_lost(verdict), gpu_hours_lost(replace(verdict, world_size=0))
    (25.0, None)
    """
    if not verdict.world_size or not math.isfinite(verdict.lost_s):
        return None
    return round(verdict.lost_s * verdict.world_size / _HOUR_S, 6)


def share_lost(verdict: Verdict) -> float | None:
    """Return the share of the job's time that is lost while the cause is there, 0 to 1; None: not known.

    It is the time that was lost of the time that passed from the first to the newest iteration in which the cause
    was seen. A verdict of an older worker does not say how much passed: then as if all of its iterations had taken as
    long as the irregular ones. While a job hangs, all of its time is lost.

    >>> from dataclasses import replace
    >>> verdict = Verdict("v", 1, "open", "j", "slow_nic", (0, 9), 2.0, 3.0, None, (), "", lasted_s=10.0)
    >>> share_lost(verdict), share_lost(replace(verdict, lasted_s=None)), share_lost(replace(verdict, kind="hang"))
    (0.3, 0.5, 1.0)
    """
    if verdict.kind in STANDSTILLS:
        return 1.0
    if verdict.lasted_s and math.isfinite(verdict.lost_s):
        return min(verdict.lost_s / verdict.lasted_s, 1.0)
    return 1 - 1 / verdict.delta if math.isfinite(verdict.delta) and verdict.delta >= 1 else None


def gpu_hours_per_hour(verdict: Verdict) -> float | None:
    """Return the GPU-hours that are lost in an hour while the cause is there: GPUs that stand still, as it were."""
    share = share_lost(verdict)
    return None if share is None or not verdict.world_size else round(share * verdict.world_size, 6)


_SUSPECTS_SHOWN: Final = 3

NameRank = Callable[[int], str]  # names a rank for people, with its host where that is known
RANK_ALONE: Final[NameRank] = "rank {}".format  # where its host is not known


def usual_of(verdict: Verdict) -> str:
    """Return the time of which `Verdict.delta` is a multiple: a fault that peers alone show has no usual time.

    >>> verdict = Verdict("v", 1, "open", "j", "imbalance", (0, 5), 1.3, 90.0, None, (), "")
    >>> usual_of(verdict)
    'the usual time'
    """
    return "the usual time" if verdict.has_healthy_past else "the time without it"


def least_text(kind: str, *, is_closed: bool) -> str:
    """Return the word before a loss that is not all counted: for how long a job had stood before it was noticed.

    >>> least_text("hang", is_closed=False), least_text("hang", is_closed=True)
    ('at least ', '')
    """
    return "at least " if kind in STANDSTILLS and not is_closed else ""


def unended_text(verdict: Verdict) -> str:
    """Return which iteration does not end, of a job that stands still; or had not, where the verdict is closed.

    >>> verdict = Verdict("v", 1, "open", "j", "hang", (7, 8), 1.3, 90.0, None, (), "")
    >>> unended_text(verdict)
    'iteration 7 does not end'
    """
    return f"iteration {verdict.iterations[1] - 1} {'had not ended' if verdict.state == 'closed' else 'does not end'}"


def head_text(reasons: Reasons) -> str:
    """Return a heading: the shown iteration, and its standard of comparison."""
    others = "" if reasons.against == "past" else "; usual is what its peers took"
    order = ", the costliest part last" if len(reasons.path) > 1 else ""
    return f"in iteration {reasons.iteration}{order}{others}:"


def name_step(step: Step) -> str:
    """Name the work or the transfer of a step, the same for each iteration.

    >>> name_step(Step("work", 5, "all_reduce", "tp0", 21.2e6, 7e6, False, waiting=3))
    'work of rank 5 before all_reduce on tp0'
    >>> name_step(Step("transfer", 1, "recv", "pp1", 24.9e6, 411e3, False, peer=3))
    'rank 1 to rank 3 on pp1'
    """
    on = "" if step.communicator is None else f" on {step.communicator}"
    if step.what == "work":
        return f"work of rank {step.rank} before {step.operator}{on}"
    return f"{step.operator}{on}" if step.peer is None else f"rank {step.rank} to rank {step.peer}{on}"


def step_text(step: Step, usual: str = "usual", name: NameRank = RANK_ALONE) -> str:
    """Put one step into words; `usual` is the word for its standard of comparison.

    >>> step_text(Step("work", 5, "all_reduce", "tp0", 21.2e6, 7e6, True, waiting=3, waited_rank=2, waited_ns=14e6))
    'rank 5 worked 21.2 ms before all_reduce on tp0 (usual 7 ms); rank 2 and 2 more waited up to 14 ms for it'
    >>> step_text(Step("transfer", 1, "recv", "pp1", 24.9e6, 411e3, True, peer=3))
    'rank 1 to rank 3 on pp1 took 24.9 ms after both had arrived (usual 411 µs)'
    """
    where = step.operator if step.communicator is None else f"{step.operator} on {step.communicator}"
    if step.what == "absence" or (step.what == "transfer" and step.elapsed_ns is None):
        waiting = "1 rank waits" if step.waiting == 1 else f"{step.waiting} ranks wait"
        is_in = "is missing in" if step.what == "absence" else "does not come out of"
        return f"{name(step.rank)} {is_in} {where}; {waiting}"
    elapsed = "an unknown time" if step.elapsed_ns is None else duration(step.elapsed_ns)
    beside = "" if step.usual_ns is None else f" ({usual} {usual_duration(step.usual_ns)})"
    if step.what == "work":
        waits = ""
        if step.waited_rank is not None and step.waited_ns is not None:
            more, up_to = (f" and {step.waiting - 1} more", "up to ") if step.waiting > 1 else ("", "")
            waits = f"; {name(step.waited_rank)}{more} waited {up_to}{duration(step.waited_ns)} for it"
        return f"{name(step.rank)} worked {elapsed} before {where}{beside}{waits}"
    if step.peer is None:
        return f"{where} took {elapsed} after its last rank had arrived{beside}"
    on = "" if step.communicator is None else f" on {step.communicator}"
    return f"rank {step.rank} to rank {step.peer}{on} took {elapsed} after both had arrived{beside}"


def path_texts(reasons: Reasons, name: NameRank = RANK_ALONE) -> list[str]:
    """Put the path into words, a line a step; steps that say the same are one."""
    usual = "usual" if reasons.against == "past" else "peers"
    return list(dict.fromkeys(step_text(one, usual, name) for one in reasons.path))


def alternatives_of(verdict: Verdict, name: NameRank = RANK_ALONE) -> list[tuple[str, str]]:
    """Return the other causes and why each is ruled out, a name and a text each; other suspects come last."""
    considered = () if verdict.explanation is None else verdict.explanation.considered
    found = [(_ALTERNATIVES.get(one.what, one.what), considered_text(one, name)) for one in considered]
    suspects = verdict.suspects
    found += [
        ("other suspect", f"{name_device(one)}: {one.probability:.1%}") for one in suspects[1 : 1 + _SUSPECTS_SHOWN]
    ]
    if left := suspects[1 + _SUSPECTS_SHOWN :]:
        ranks = name_ranks([one.rank for one in left])
        found.append(("other suspect", f"{len(left)} more ({ranks}): {sum(one.probability for one in left):.1%}"))
    none = 1 - sum(one.probability for one in suspects)
    # Less would be shown as 0.0%.
    if suspects and none >= 0.0005:
        found.append(("none of these", f"{none:.1%}"))
    return found


_ALTERNATIVES: Final = {
    "own_work": "own work", "one_link": "one link", "whole_nic": "a whole NIC", "its_transfers": "its NIC",
    "everybody": "the whole job",
}  # fmt: skip


def considered_text(one: Considered, name: NameRank = RANK_ALONE) -> str:
    """Put into words whether an alternative is ruled out, and by which numbers.

    >>> considered_text(Considered("own_work", True, 1, 280e3)), considered_text(Considered("own_work", None, 2))
    ('no: rank 1 worked only 280 µs longer than usual', 'how long rank 2 worked was not read')
    >>> considered_text(Considered("one_link", True, 1, slow=1, known=2))
    'no: the slow one of 2 ways of rank 1 is a collective, of more ranks than two'
    """
    verdict = {True: "no: ", False: "maybe: ", None: ""}[one.is_ruled_out]
    who = "all ranks alike" if one.rank is None else name(one.rank)
    uncompared = f"of {who} no transfers were compared"
    if one.what in ("one_link", "whole_nic"):
        if not one.known:
            return uncompared
        if one.what == "one_link" and one.is_ruled_out and one.slow == 1:
            return f"no: the slow one of {one.known} ways of {who} is a collective, of more ranks than two"
        return f"{verdict}{one.slow} of {one.known} ways of {who} are slow"
    if one.excess_ns is None:
        return f"how long {who} worked was not read" if one.what == "own_work" else uncompared
    # Where ranks wait for a slow one they seem to work less, by times that say nothing
    only = "only " if one.is_ruled_out else ""
    longer = "no longer than usual" if one.excess_ns <= 0 else f"{only}{duration(one.excess_ns)} longer than usual"
    if one.what == "its_transfers":
        beside = "" if one.usual_ns is None else f" (usual {duration(one.usual_ns)})"
        ways = f", the slowest of {one.known} ways" if (one.known or 0) > 1 else ""
        return f"{verdict}transfers of {who} took {longer}{beside}{ways}"
    return f"{verdict}{who} worked {longer}"
