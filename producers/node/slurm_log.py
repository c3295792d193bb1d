"""Slurm's words on this node: tasks and steps that ended badly, and states of the node itself.

Lines are those of slurmd's log (tasks' own ends from level ``verbose`` on), and those that scripts append to a file:
``sacct -nPo JobIDRaw,State,ExitCode`` of an epilog, ``scontrol -o show node`` of a health check.
"""

from __future__ import annotations

import re
from typing import Final

from irregulars.messages.device_events import MOST_TEXT
from irregulars.producers.node.kernel_log import KernelEvent

# [2026-11-25T07:40:54.119] [4711.0] task 3 (8122) exited. Killed by signal 9. The number is that among all tasks.
_TASK: Final = re.compile(
    r"\[(?P<job>\d{1,10})\.\d{1,9}\] (?P<end>task (?P<task>\d{1,7}) \(\d{1,10}\) (?:exited with exit code "
    r"(?P<code>[1-9]\d{0,2})|exited\. Killed by signal (?P<signal>\d{1,3})|Out Of Memory))"
)
# error: *** STEP 4711.0 ON node-3 CANCELLED AT 2026-11-25T07:40:54 DUE TO TIME LIMIT ***
_STEP: Final = re.compile(
    r"\*\*\* (?P<end>(?:STEP |JOB |StepId=)(?P<job>\d{1,10})[\w.+]{0,20} ON \S{1,253} "
    r"(?:CANCELLED|FAILED)[^*]{0,150})"
)
# 4711.0|CANCELLED by 1000|0:15, and states that are no end, as SUSPENDED. Who cancelled it is not told on.
_ACCOUNT: Final = re.compile(
    r"(?P<job>\d{1,10})\.\d{1,9}\|(?P<end>BOOT_FAIL|CANCELLED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|"
    r"TIMEOUT)[^|]{0,40}\|(?P<code>\d{1,3}):(?P<signal>\d{1,3})"
)
# NodeName=node-3 Arch=x86_64 ... State=IDLE+DRAIN ... Reason=Kill task failed [root@2026-11-25T07:40:54]
_NODE: Final = re.compile(
    r"NodeName=(?P<node>\S{1,253}) .*?\bState=(?P<state>\S{1,200})(?:.*?\bReason=(?P<reason>[^\[]{1,150}))?"
)
# Not those that save power (POWERED_DOWN), nor UNDRAIN
_TROUBLE: Final = re.compile(r"(?<![A-Z_])(?:DOWN|DRAIN|FAIL|NO_RESPOND|NOT_RESPONDING|REBOOT)|\*")


class SlurmLines:
    """Finds events in lines. Of the states of `host` those count in which something is wrong, if they are new."""

    def __init__(self, host: str) -> None:
        self._host = host.partition(".")[0]
        self._known = ""  # the state that counted last; empty: nothing was wrong

    def __call__(self, line: str) -> KernelEvent | None:
        """Return the event in a line; None: nothing of ours.

        >>> lines = SlurmLines("node-3")
        >>> lines("[4711.0] task 3 (8122) exited. Killed by signal 9.")[2:]
        (137, "Slurm's task 3 (8122) exited. Killed by signal 9", '4711', 3)
        >>> lines("NodeName=node-3 Arch=x86_64 State=DOWN*+DRAIN Weight=1 Reason=Not responding [root@2026]").detail
        'DOWN*+DRAIN: Not responding'
        """
        line = line[:2048]  # bounds the cost of the searches
        if node := _NODE.match(line):
            return self._of_node(node["node"], node["state"], (node["reason"] or "").strip())
        if found := _TASK.search(line) or _STEP.search(line) or _ACCOUNT.match(line):
            own = found.groupdict()
            signal = int(own.get("signal") or 0)
            # As shells have it; signal 125 stands for lack of memory.
            code = 128 + signal if 0 < signal < 125 else int(own.get("code") or 0) or None
            task = None if own.get("task") is None else int(own["task"])
            text = f"Slurm's {own['end'].strip()}"[:MOST_TEXT]
            return KernelEvent("process_exit", "", code, text, own["job"], task)
        return None

    def _of_node(self, node: str, state: str, reason: str) -> KernelEvent | None:
        if node.partition(".")[0] != self._host:
            return None
        before, self._known = self._known, ": ".join(filter(None, (state, reason))) if _TROUBLE.search(state) else ""
        return KernelEvent("node_state", "", None, self._known) if self._known not in ("", before) else None
