"""The kind of a process group, read from its description, which Megatron and device meshes set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_WORDS: Final = re.compile(r"[a-z]+")
_KINDS: Final[Mapping[str, str]] = {
    word: kind
    for kind, words in {
        "ep": ("expert", "ep", "moe"),
        "pp": ("pipeline", "pp", "pipe"),
        "tp": ("tensor", "tp", "mp"),
        "cp": ("context", "cp", "ring", "ulysses", "sp"),
        "dp": ("data", "dp", "ddp", "fsdp", "shard", "replicate", "replica"),
    }.items()
    for word in words
}


def kind_of_description(description: str) -> str:
    """Return the kind of a group; one of several dimensions, or of none that is known, is ``unknown``.

    Megatron's experts have dimensions of their own (``EXPERT_DATA_PARALLEL_GROUP`` shares gradients); gradients are
    shared over the ranks of one context too.

    >>> [kind_of_description(f"{name}_PARALLEL_GROUP") for name in ("TENSOR_MODEL", "EXPERT_MODEL", "EXPERT_DATA")]
    ['tp', 'ep', 'dp']
    >>> [kind_of_description(text) for text in ("DATA_PARALLEL_GROUP_WITH_CP", "mesh_dp_shard", "pp0", "undefined")]
    ['dp', 'dp', 'pp', 'unknown']
    >>> kind_of_description("TENSOR_AND_DATA_PARALLEL_GROUP")
    'unknown'
    """
    found = {_KINDS[word] for word in _WORDS.findall(description.lower()) if word in _KINDS}
    if len(found) > 1:
        found.discard("ep")
    if found == {"dp", "cp"}:
        found.discard("cp")
    return found.pop() if len(found) == 1 else "unknown"
