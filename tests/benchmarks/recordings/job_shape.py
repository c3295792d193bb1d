"""How the ranks of a recorded job divide its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobShape:
    """A job: how its ranks divide the work, and how much it is.

    Parameters
    ----------
    kind
        ``ddp``, ``sharded`` or ``pipeline``.
    dp, tp, pp
        Their product is the world size. In a pipeline, rank = (stage * dp + replica) * tp + part.
    shard
        Of a sharded job: ranks that share one copy of the parameters; it divides `dp`.
    layers
        Of the model; in a pipeline of each stage.
    rows, width
        Of an activation.
    device_ms
        A layer's forward pass on its accelerator.
    burns
        Matrix products of 64 x 64 that each forward pass of a layer computes for nothing, on the CPU.
    load_ms
        What loading a batch takes.
    microbatches
        Of a pipeline, in each iteration.
    """

    kind: str
    dp: int
    tp: int = 1
    pp: int = 1
    shard: int = 1
    layers: int = 6
    rows: int = 64
    width: int = 192
    device_ms: float = 1.5
    burns: int = 6
    load_ms: float = 12.0
    microbatches: int = 1

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp

    @property
    def dims(self) -> dict[str, int]:
        """As the label has it."""
        return {"dp": self.dp, "tp": self.tp, "pp": self.pp}

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """All ranks of a stage of the pipeline.

        >>> JobShape("pipeline", dp=2, tp=2, pp=2).stage_ranks(1)
        (4, 5, 6, 7)
        """
        size = self.dp * self.tp
        return tuple(range(stage * size, (stage + 1) * size))

    def groups(self) -> dict[str, list[list[int]]]:
        """Give the ranks of all groups of each kind that the job makes, in the order in which it makes them.

        >>> JobShape("pipeline", dp=2, tp=2, pp=2).groups()["pp"]
        [[0, 4], [1, 5], [2, 6], [3, 7]]
        >>> JobShape("sharded", dp=4, shard=2).groups()
        {'dp_shard': [[0, 1], [2, 3]], 'dp_replicate': [[0, 2], [1, 3]]}
        """
        ranks = range(self.world_size)
        if self.kind == "ddp" or (self.kind == "sharded" and self.shard == self.dp):
            return {}
        if self.kind == "sharded":
            shards = [list(ranks)[first : first + self.shard] for first in ranks[:: self.shard]]
            return {"dp_shard": shards, "dp_replicate": [list(one) for one in zip(*shards, strict=True)]}
        of_stage = [self.stage_ranks(stage) for stage in range(self.pp)]
        tp = [list(one[first : first + self.tp]) for one in of_stage for first in range(0, len(one), self.tp)]
        dp = [list(one[part :: self.tp]) for one in of_stage for part in range(self.tp)]
        pp = [list(one) for one in zip(*of_stage, strict=True)]
        return {name: found for name, found in (("tp", tp), ("dp", dp), ("pp", pp)) if len(found[0]) > 1}

    def describe(self) -> str:
        """Say in words what the job is."""
        match self.kind:
            case "ddp":
                return f"DDP over {self.dp} ranks, buckets beside the backward pass"
            case "sharded" if self.shard == self.dp:
                return f"parameters sharded over {self.dp} ranks (ZeRO-3)"
            case "sharded":
                return f"parameters sharded over {self.shard} ranks, {self.dp // self.shard} copies (HSDP)"
        return f"tp {self.tp} x pp {self.pp} x dp {self.dp}, 1F1B, {self.microbatches} microbatches"
