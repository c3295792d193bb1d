"""Log the communication of a training process: two lines in its script.

::

    from irregulars import torch_comms

    torch_comms.start(trace_dir="trace")  # or agent="/run/irregulars/agent.sock", or bootstrap="kafka:9092"

Every collective, send and recv of ``torch.distributed`` is logged from there on, DDP's own included; groups may be
made before or after. Iterations are those of the optimizer's steps, or, with ``iterations="marks"``, those that the
script marks::

    for number, batch in enumerate(loader):
        with torch_comms.iteration(number):
            train(batch)

Errors in the hooks are kept from training, and logged as ``irregulars.torch``; a phase, kind or group that does not
exist raises. Needs the extra ``torch``. Costs and limits: infra/docs/torch.md.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from irregulars.errors import InputError
from irregulars.kafka.security import security_of_environment
from irregulars.kafka.topics import TopicSettings
from irregulars.producers.torch_hook.exporters import AgentSocket, Exporter, Kafka, TraceDirectory
from irregulars.producers.torch_hook.identity import identity_of, machine_has_gpus
from irregulars.producers.torch_hook.pauses import GPU_SOURCES, SOURCES
from irregulars.producers.torch_hook.profiling import Profiler

if TYPE_CHECKING:
    from irregulars.producers.torch_hook.session import Session

__all__ = ["audit", "follow", "iteration", "lost_rows", "moved", "name_group", "phase", "report", "start", "stop",
           "undelivered_rows", "watch_numerics"]  # fmt: skip

_HOOKS = ("auto", "native", "python", "dispatcher")
_ITERATIONS = ("steps", "marks", "inferred")
_lock = threading.RLock()  # a signal handler of the script may call `stop` in the midst of `start`
_session: Session | None = None
_undelivered_rows = 0  # of the session that ended last


def start(
    *,
    trace_dir: str | Path | None = None,
    agent: str | Path | None = None,
    bootstrap: str | None = None,
    topic_prefix: str = "irregulars.",
    job: str | None = None,
    nic: str | None = None,
    switch: str | None = None,
    iterations: str = "steps",
    hook: str = "auto",
    pauses: Collection[str] = SOURCES,
    profiler: bool = True,
) -> str:
    """Begin to log, before or after ``init_process_group``; return the name of the hook.

    That is ``native``, ``python``, ``dispatcher`` (in Python too, for an older torch), or ``none`` where there is no
    torch, or one that offers nothing to hook into: that is logged, and training goes on without us. Where a recording
    runs already, it goes on as it is.

    Parameters
    ----------
    trace_dir, agent, bootstrap
        One of them: a trace directory to write, the socket of the node's agent, or Kafka brokers. For these the
        variables ``IRREGULARS_KAFKA_…`` hold how to log in (infra/docs/access.md).
    topic_prefix
        Begins each topic's name (Kafka).
    job
        Name of the job, the same on all ranks; default: by torchrun or Slurm, else ``training``.
    nic, switch
        Through which this rank communicates, where that is known.
    iterations
        ``steps``: each step of the optimizer ends one; ``marks``: the script marks them with `iteration`;
        ``inferred``: rows carry none, and their reader infers it (infra/docs/importing.md).
    hook
        ``auto`` takes the native hook where it was built for this torch.
    pauses
        Which pauses are recorded, with each iteration: ``garbage_collection``, ``data_loader`` (``next`` of torch's
        loaders), ``checkpoint_write`` (`torch.save`, ``torch.distributed.checkpoint.save``, the phase),
        ``compilation``, ``host`` (waiting for a processor, its quota, a disk or memory). By name alone, as nobody has
        tried them on a GPU: ``synchronization`` (`torch.cuda.synchronize`, ``item`` and the like of its tensors) and
        ``host_to_device`` (``to`` and ``cuda``).
    profiler
        Whether the node's agent may run torch.profiler over three iterations, where an alert accuses a rank.

    Raises `InputError` if not exactly one way out is given, or a value breaks its rule; before anything was changed.
    """
    global _session
    for name, value, known in (("hook", hook, _HOOKS), ("iterations", iterations, _ITERATIONS)):
        if value not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}; got {value!r}")
    if unknown := sorted(set(pauses).difference(SOURCES, GPU_SOURCES)):
        raise InputError(f"pauses must be of {', '.join((*SOURCES, *GPU_SOURCES))}; got {', '.join(unknown)}")
    given = sum(way is not None for way in (trace_dir, agent, bootstrap))
    if given != 1:
        raise InputError(f"exactly one of trace_dir, agent and bootstrap must be given; got {given}")
    from irregulars.producers.torch_hook.session import Session, Troubles

    with _lock:
        if _session is not None and _session.is_ours:
            return _session.hook_name
        troubles = Troubles()
        exporter: Exporter
        if trace_dir is not None:
            exporter = TraceDirectory(Path(trace_dir))
        elif agent is not None:
            own = Profiler(profiler, lambda error: troubles.add(error, "profiler"))
            exporter = AgentSocket(Path(agent), lambda error: troubles.add(error, "agent"), own)
        else:
            topics, security = TopicSettings(prefix=topic_prefix), security_of_environment(os.environ)
            exporter = Kafka(str(bootstrap), topics, lambda error: troubles.add(error, "kafka"), security)
        try:
            identity = identity_of(job, nic, switch, has_gpus=machine_has_gpus())
            session = Session(identity, exporter, troubles, hook, iterations, pauses=pauses)
            session.start()
        except Exception as error:  # no torch, or one that we can't hook into: the script goes on without us
            troubles.add(error, "start")
            return "none"
        _session = session
    return session.hook_name


def stop() -> None:
    """Stop logging and pass on the rest; done by itself when the process exits.

    It waits for 15 s at most, for a trace directory 120 s. The number of rows that have not arrived by then is in one
    line of the log ``irregulars.torch``.
    """
    global _session, _undelivered_rows
    with _lock:
        session, _session = _session, None
    if session is not None:
        session.stop()
        _undelivered_rows = session.undelivered_rows


def lost_rows() -> int:
    """Return the number of rows that were overwritten because they were not passed on in time."""
    session = _running()
    return 0 if session is None else session.lost_rows


def undelivered_rows() -> int:
    """Return the number of recorded operators that have not arrived: lost, on their way, or, after `stop`, lost."""
    session = _running()
    return _undelivered_rows if session is None else session.undelivered_rows


def iteration(number: int | None = None) -> AbstractContextManager[None]:
    """Mark one training iteration; without a number they count from 0. From the first mark on, steps mark none."""
    session = _running()
    return nullcontext() if session is None else session.iterations.mark(number)


def phase(name: str) -> AbstractContextManager[None]:
    """Mark a phase, ``checkpoint`` or ``eval``: iterations that hold any of it are not judged irregular."""
    session = _running()
    return nullcontext() if session is None else session.iterations.in_phase(name)


def report(
    *,
    loss: Any = None,
    grad_norm: Any = None,
    tokens: Any = None,
    local_grad_norm: Any = None,
    update_rms: Any = None,
    attention_logit: Any = None,
    not_finite: Any = None,
    parameters_checksum: Any = None,
) -> None:
    """Set figures of the iteration that runs: numbers, or tensors of one number, which a device may still compute.

    A NaN or infinity is sent as infinity: NaN says that a figure is not known. A count that is one is not known.

    Parameters
    ----------
    grad_norm
        Of all parameters, before clipping, after the reduction: the result of ``clip_grad_norm_``.
    local_grad_norm
        Of this rank's own gradient, before any reduction.
    update_rms
        Largest root mean square of a parameter's update.
    attention_logit
        Largest logit of all heads and layers, before the softmax.
    not_finite
        Elements of loss and gradients that are NaN or infinite.
    parameters_checksum
        Integer over this rank's parameters after the step; the same on all ranks that hold them too.
    """
    session = _running()
    if session is not None:
        figures = {"loss": loss, "grad_norm": grad_norm, "tokens": tokens, "local_grad_norm": local_grad_norm}
        figures |= {"update_rms": update_rms, "attention_logit": attention_logit, "not_finite": not_finite}
        session.report(figures, parameters_checksum)


def watch_numerics(
    model: Any, optimizer: Any, *, every: int = 1, checksum_steps: int = 64, process_group: Any = None
) -> None:
    """Report by itself, from now on: local_grad_norm, grad_norm, update_rms, not_finite and parameters_checksum.

    And attention_logit where modules keep ``current_max_attn_logits``, as Megatron's do for QK-clip.

    Call it on all ranks alike, once the model is as training will have it (in DDP, on its device). The findings and
    the price: infra/docs/numerics.md. Without a reported grad_norm, that of the gradients at the step is sent, which
    may be clipped by then.

    Parameters
    ----------
    every
        Only iterations that this divides.
    checksum_steps
        Number of iterations over which all parameters, and the optimizer's state, are summed once, a part in each;
        1: all in each. 0: none.
    process_group
        Whose ranks hold the same parameters after each step, bit by bit. Default: those that DDP or FSDP keeps equal;
        no checksum where that is unknown.

    Raises `InputError` if `every` is not at least 1, or `checksum_steps` is negative.
    """
    _require_at_least(1, "every", every)
    _require_at_least(0, "checksum_steps", checksum_steps)
    session = _running()
    if session is not None:
        session.watch(model, optimizer, every, checksum_steps, process_group)


def audit(
    model: Any, compute: Callable[[Any, Any], object], *, every: int = 50, process_group: Any = None
) -> Callable[[Any], None]:
    """Return a function to call with this rank's micro-batch before each step: one of `every` calls is an audit.

    ::

        audit = torch_comms.audit(model, compute)
        for batch in loader:
            optimizer.zero_grad()
            audit(batch)
            compute(model, batch)
            optimizer.step()

    In an audit every rank that holds the same parameters computes the gradients of one rank, in turn, and reports
    their checksum: a rank that gets other bits than most computes wrongly. It takes three ranks or more; where that
    is not possible, the log says why, once. Gradients, random numbers and buffers are afterwards as before.

    Parameters
    ----------
    compute
        Is given a model, in an audit the one inside DDP, and a batch; computes the loss and calls ``backward``. It
        must do the same on the same numbers; its changes beside gradients, random numbers and buffers remain.
    every
        At least 2. The price is a forward and a backward pass each `every` steps.
    process_group
        As in `watch_numerics`. All its ranks must make the same calls.

    Batches are tensors in dicts, lists and tuples; the rest of a batch must be picklable.
    """
    _require_at_least(2, "every", every)
    session = _running()
    if session is None:
        from irregulars.producers.torch_hook.audits import declined

        return declined(model, every, process_group)
    return session.audit(model, compute, every, process_group)


def follow(optimizer: Any) -> None:
    """Count iterations by this optimizer's steps; without it, by those of the first that steps."""
    session = _running()
    if session is not None:
        session.iterations.follow(optimizer)


def name_group(process_group: Any, kind: str) -> None:
    """Set the kind of a process group, ``dp``, ``tp``, ``pp``, ``ep`` or ``cp``, before the first iteration ends.

    Raises `InputError` if there is no such kind, or no such group.
    """
    session = _running()
    if session is not None:
        session.groups.set_kind(str(process_group.group_name), kind)


def moved() -> None:
    """Announce that this process goes on in a group of another size, or as another rank; before it makes its groups.

    Later verdicts name the new ranks, and those on earlier iterations the old ones. A process that comes up with the
    rank of another one of this start needs no such call.
    """
    session = _running()
    if session is not None:
        session.groups.start_over()


def _require_at_least(least: int, name: str, given: int) -> None:
    if given < least:
        raise InputError(f"{name} must be at least {least}; got {given}")


def _running() -> Session | None:
    # A forked process has its parent's session, without the threads that send its rows.
    return _session if _session is not None and _session.is_ours else None
