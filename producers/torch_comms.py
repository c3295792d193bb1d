"""Log what a training process communicates: two lines in its script.

::

    from irregulars import torch_comms

    torch_comms.start(trace_dir="trace")  # or agent="/run/irregulars/agent.sock", or bootstrap="kafka:9092"

Every collective, send and recv of ``torch.distributed`` is logged from there on, DDP's own included; groups may be
made before or after. Iterations are those of the optimizer's steps, or, with ``iterations="marks"``, those that the
script marks::

    for number, batch in enumerate(loader):
        with torch_comms.iteration(number):
            train(batch)

What goes wrong in the hooks is kept from training, and told in the log ``irregulars.torch``; a phase, kind or group
that does not exist raises. Needs the extra ``torch``. Costs and limits: infra/docs/torch.md.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from irregulars.errors import InputError
from irregulars.kafka.security import security_of_environment
from irregulars.kafka.topics import TopicSettings
from irregulars.producers.torch_hook.leaving.exits import AgentSocket, Exit, Kafka, TraceDirectory
from irregulars.producers.torch_hook.records.identity import identity_of, machine_has_gpus

if TYPE_CHECKING:
    from irregulars.producers.torch_hook.session import Session, Troubles

__all__ = ["follow", "iteration", "lost_rows", "moved", "name_group", "phase", "report", "start", "stop",
           "undelivered_rows"]  # fmt: skip

_HOOKS = ("auto", "native", "python", "dispatcher")
_ITERATIONS = ("steps", "marks", "inferred")
_lock = threading.Lock()
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
) -> str:
    """Begin to log, before or after ``init_process_group``; returns the hook that serves.

    That is ``native``, ``python``, ``dispatcher`` (in Python too, for an older torch), or ``none`` where there is no
    torch, or one that offers nothing to hook into: that is said in the log, and training goes on without us. Where a
    recording runs already, it goes on as it is.

    Parameters
    ----------
    trace_dir, agent, bootstrap
        One of them: a trace directory to write, the socket of the node's agent, or Kafka brokers. Who we are to these
        say the variables ``IRREGULARS_KAFKA_…`` (infra/docs/access.md).
    topic_prefix
        Stands before each topic's name (Kafka).
    job
        Name of the job, the same on all ranks; default: what torchrun or Slurm say, else ``training``.
    nic, switch
        What this rank communicates through, where that is known.
    iterations
        ``steps``: each step of the optimizer ends one; ``marks``: the script marks them with `iteration`;
        ``inferred``: rows say none, and whoever reads them infers it (infra/docs/iterations.md).
    hook
        ``auto`` takes the native hook where it was built for this torch.

    Raises
    ------
    InputError
        If not exactly one way out is given, or a value breaks its rule; before anything was changed.
    """
    global _session
    _check_choices(hook, iterations)
    _check_one_way_out(trace_dir, agent, bootstrap)
    from irregulars.producers.torch_hook.session import Session, Troubles

    with _lock:
        if _session is not None and _session.is_ours:
            return _session.hook_name
        troubles = Troubles()
        way_out = _way_out(trace_dir, agent, bootstrap, topic_prefix, troubles)
        try:
            identity = identity_of(job, nic, switch, has_gpus=machine_has_gpus())
            session = Session(identity, way_out, troubles, hook, iterations)
            session.start()
        except Exception as error:  # no torch, or one that we can't hook into: the script goes on without us
            troubles.note(error, "start")
            return "none"
        _session = session
    return session.hook_name


def _check_choices(hook: str, iterations: str) -> None:
    if hook not in _HOOKS:
        raise InputError(f"hook must be one of {', '.join(_HOOKS)}; got {hook!r}")
    if iterations not in _ITERATIONS:
        raise InputError(f"iterations must be one of {', '.join(_ITERATIONS)}; got {iterations!r}")


def _check_one_way_out(*ways: object) -> None:
    given = sum(way is not None for way in ways)
    if given != 1:
        raise InputError(f"exactly one of trace_dir, agent and bootstrap must be given; got {given}")


def _way_out(
    trace_dir: str | Path | None,
    agent: str | Path | None,
    bootstrap: str | None,
    topic_prefix: str,
    troubles: Troubles,
) -> Exit:
    if trace_dir is not None:
        return TraceDirectory(Path(trace_dir))
    if agent is not None:
        return AgentSocket(Path(agent), lambda error: troubles.note(error, "agent"))
    return Kafka(
        str(bootstrap),
        TopicSettings(prefix=topic_prefix),
        lambda error: troubles.note(error, "kafka"),
        security_of_environment(os.environ),
    )


def stop() -> None:
    """Stop logging and pass on the rest (15 s at most); done by itself when the process exits.

    Rows that have not arrived by then are told in one line of the log ``irregulars.torch``, with their number.
    """
    global _session, _undelivered_rows
    with _lock:
        session, _session = _session, None
    if session is not None:
        session.stop()
        _undelivered_rows = session.undelivered_rows


def lost_rows() -> int:
    """Return how many rows were overwritten because they were not passed on in time."""
    session = _running()
    return 0 if session is None else session.lost_rows


def undelivered_rows() -> int:
    """Return how many recorded operators have not arrived: lost, on their way, or, after `stop`, lost for good."""
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


def report(*, loss: float | None = None, grad_norm: float | None = None, tokens: int | None = None) -> None:
    """Note figures of the iteration that runs; they must be on the host already."""
    session = _running()
    if session is not None:
        session.iterations.report(loss, grad_norm, tokens)


def follow(optimizer: Any) -> None:
    """Count iterations by this optimizer's steps; without it, by those of the first that steps."""
    session = _running()
    if session is not None:
        session.iterations.follow(optimizer)


def name_group(process_group: Any, kind: str) -> None:
    """Say what a process group is for: ``dp``, ``tp``, ``pp``, ``ep``, ``cp``; before the first iteration ends.

    Raises
    ------
    InputError
        If there is no such kind, or no such group.
    """
    session = _running()
    if session is not None:
        session.groups.set_kind(str(process_group.group_name), kind)


def moved() -> None:
    """Say that this process goes on in a group of another size, or as another rank: before its groups are made anew.

    Verdicts on what comes then name the places that ranks have there, and those on what was before name the old ones.
    A process that comes up with the rank of another one that this start had needs no such call.
    """
    session = _running()
    if session is not None:
        session.groups.start_over()


def _running() -> Session | None:
    return _session if _session is not None and _session.is_ours else None
