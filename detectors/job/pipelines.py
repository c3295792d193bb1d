"""Pipelines that nobody announced, told by who sends to whom.

In a pipeline neighbours send both ways, activations down and gradients up. Where chunks are interleaved the last
stage also sends to the first, but less often than neighbours do: that tells it from a ring that turns both ways.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from irregulars.detectors.job.thresholds import JOB


def stages_from_transfers(
    counts: Mapping[tuple[int, int], int], groups: Iterable[Collection[int]] = ()
) -> dict[int, int]:
    """Find the pipeline stage of each rank; {} unless pipelines of equal length explain all messages.

    Parameters
    ----------
    counts
        Messages of each pair of sender and receiver in one iteration.
    groups
        Ranks of each communicator. A rank of which no message was logged gets the stage of the other ranks of one of
        its communicators, if those have one stage.

    Examples
    --------
    >>> chains = {(0, 2): 4, (2, 4): 4, (2, 0): 4, (4, 2): 4, (1, 3): 4, (3, 5): 4, (3, 1): 4, (5, 3): 4}
    >>> stages_from_transfers(chains)
    {0: 0, 2: 1, 4: 2, 1: 0, 3: 1, 5: 2}
    >>> stages_from_transfers({**chains, (4, 0): 4, (0, 4): 4, (5, 1): 4, (1, 5): 4})
    {}
    """
    if not counts or any((receiver, sender) not in counts for sender, receiver in counts):
        return {}
    pipelines = _connected(counts)
    if len(pipelines) < JOB.min_pipelines or len({len(one) for one in pipelines}) > 1:
        return {}
    group_of = {rank: group for group, ranks in enumerate(pipelines) for rank in ranks}
    sent: list[dict[tuple[int, int], int]] = [{} for _ in pipelines]
    for pair, count in counts.items():
        sent[group_of[pair[0]]][pair] = count
    if not all(map(_is_pipeline, pipelines, sent)):
        return {}
    stage_of = {rank: stage for one in pipelines for stage, rank in enumerate(one)}
    return stage_of | stages_of_silent(stage_of, groups)


def stages_of_silent(stage_of: Mapping[int, int], groups: Iterable[Collection[int]]) -> dict[int, int]:
    """Return the stages of ranks of which nothing tells it but the stage of all others in one of their groups.

    Examples
    --------
    >>> stages_of_silent({0: 0, 2: 1}, [(0, 1), (2, 3), (0, 2, 4)])
    {1: 0, 3: 1}
    """
    found: dict[int, int] = {}
    for ranks in groups:
        stages = {stage_of[rank] for rank in ranks if rank in stage_of}
        if len(stages) == 1:
            found.update(dict.fromkeys((rank for rank in ranks if rank not in stage_of), *stages))
    return found


def _connected(counts: Mapping[tuple[int, int], int]) -> list[list[int]]:
    """Return the connected components of the graph of sends, each sorted, ordered by their smallest rank."""
    beside: dict[int, list[int]] = {}
    for sender, receiver in counts:
        beside.setdefault(sender, []).append(receiver)
    groups, left = [], set(beside)
    for first in sorted(beside):
        reached = [first] if first in left else []
        left.discard(first)
        for rank in reached:  # grows as it goes
            new = left.intersection(beside[rank])
            left -= new
            reached += sorted(new)
        if reached:
            groups.append(sorted(reached))
    return groups


def _is_pipeline(ranks: Sequence[int], sent: Mapping[tuple[int, int], int]) -> bool:
    """Say whether connected ranks are a pipeline in ascending order; ``sent`` counts the messages between them."""
    steps = list(pairwise(ranks))  # from each stage to the next
    if len(ranks) < JOB.min_stages or any(step not in sent for step in steps):
        return False
    between = min(sent[step] for step in steps)
    back = sent.keys() - {*steps, *((receiver, sender) for sender, receiver in steps)}
    if not back:
        return True
    # An interleaved pipeline sends also from its last stage to the first, and back, but less often than to the next.
    is_round = back == {(ranks[0], ranks[-1]), (ranks[-1], ranks[0])}
    is_seldom = max(sent[pair] for pair in back) <= JOB.way_back_ratio * between
    return is_round and is_seldom and between >= JOB.min_messages
