"""Slurm's nodes, by its own commands: drained with a reason that says that it was us, and given back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from irregulars.errors import ServiceRefused, ServiceUnavailable
from irregulars.sinks.notices.actions.actor import Marked, Proposal, is_usable_host

# With it begins the reason of a node that we drained; a node with any other reason is somebody else's
PREFIX: Final = "irregulars: "

_NO_REASON: Final = "none"
_COMMAND_S: Final = 20.0
_REASON_CHARACTERS: Final = 240
_REFUSALS: Final = ("permission denied", "invalid user id", "authentication error")


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as ``sinfo`` prints it; `reason` is empty where there is none."""

    host: str
    state: str
    reason: str

    @property
    def action_id(self) -> str | None:
        """The action for which we drained it; None: not drained, or not by us."""
        words = self.reason.removeprefix(PREFIX).split()
        is_ours = self.reason.startswith(PREFIX) and self.state.startswith("drain") and words
        return words[0] if is_ours else None


class SlurmNodes:
    """The nodes of the cluster that ``scontrol`` reaches.

    A node is drained: jobs on it go on, and no new one begins there. Who gives it another reason takes it over: it is
    not touched any more. `folder`: where ``scontrol`` and ``sinfo`` are; None: they are looked for in ``PATH``.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder: Final = folder

    def marked(self) -> Marked:
        """Return the nodes that we drained; who resumed one by hand leaves no trace on it."""
        return Marked({node.host: node.action_id for node in self._nodes() if node.action_id is not None})

    def obstacle(self, host: str) -> str | None:
        """Return why a node can't be drained by us."""
        node = self._node(host)
        if node is None:
            return f"Slurm knows no node {host}"
        if node.reason or node.state.startswith("drain"):
            return f"it is {node.state} already ({node.reason or 'no reason given'})"
        return None

    def cordon(self, one: Proposal) -> str | None:
        """Drain a node, unless it is drained, or carries another reason, already."""
        obstacle = self.obstacle(one.host)
        if obstacle is not None:
            return obstacle
        reason = f"{PREFIX}{one.action.action_id} {one.action.reason}"[:_REASON_CHARACTERS]
        self._run("scontrol", "update", f"nodename={one.host}", "state=drain", f"reason={reason}")
        return None

    def release(self, host: str, why: str) -> str | None:
        """Take our drain off a node; a node that is down stays down, which ``resume`` would change."""
        node = self._node(host)
        if node is None or node.action_id is None:
            return "it is not drained by us any more" if node else f"Slurm knows no node {host}"
        self._run("scontrol", "update", f"nodename={host}", "state=undrain")
        return None

    def accuse(self, accused: Mapping[str, Proposal]) -> None:
        """Do nothing: a Slurm node shows a reason only while it is drained."""

    def _node(self, host: str) -> SlurmNode | None:
        # Slurm takes a pattern for all nodes that it fits.
        if not is_usable_host(host):
            raise ValueError(f"host must be the name of one node; got {host!r}")
        return next((node for node in self._nodes("--nodes", host) if node.host == host), None)

    def _nodes(self, *options: str) -> Iterator[SlurmNode]:
        """Yield each node once for each partition that it is in."""
        # --all: nodes of hidden partitions too.
        text = self._run("sinfo", "--noheader", "--Node", "--all", "--format=%N|%T|%E", *options)
        for line in text.split("\n"):
            # A reason may hold the sign too. And line breaks: what follows the first one is no node.
            host, _, rest = line.partition("|")
            state, sign, reason = rest.partition("|")
            if sign:
                yield SlurmNode(host, state, "" if reason == _NO_REASON else reason)

    def _run(self, *command: str) -> str:
        path = str(self._folder / command[0]) if self._folder else command[0]
        try:
            done = subprocess.run(
                [path, *command[1:]], capture_output=True, text=True, errors="replace", timeout=_COMMAND_S,
                check=False,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise ServiceRefused(
                f"{command[0]} must be there; got none at {path}. Is Slurm's client installed?"
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServiceUnavailable(f"{command[0]} must answer within {_COMMAND_S:g} s; got {error}") from error
        if done.returncode:
            told = " ".join(done.stderr.split()) or "no text"
            kind = ServiceRefused if any(word in told.lower() for word in _REFUSALS) else ServiceUnavailable
            raise kind(f"{' '.join(command[:3])} must succeed; got {told}")
        return done.stdout
