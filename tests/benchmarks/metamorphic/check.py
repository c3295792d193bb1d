"""Judge a recording again under each change, and say what became of its verdicts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from irregulars.errors import InputError
from irregulars.settings import JudgeSettings
from tests.benchmarks.metamorphic.changed import Changed, Delivery, Given, Naming
from tests.benchmarks.metamorphic.changes import CHANGES
from tests.benchmarks.metamorphic.judged import Charge, accused_ranks, charges_of, differences, judge
from tests.benchmarks.metamorphic.recording import Recording


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one change did to the verdicts."""

    name: str
    does_apply: bool = True  # false where the recording lacks what the change needs; then nothing was judged
    # gone, new: Verdicts that were there before alone, and afterwards alone, in the names of the unchanged recording
    gone: list[Charge] = field(default_factory=list)
    new: list[Charge] = field(default_factory=list)

    @property
    def is_changed(self) -> bool:
        """Whether a verdict is another."""
        return bool(self.gone or self.new)

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` writes it."""
        return {
            "change": self.name, "about": CHANGES[self.name].about, "applies": self.does_apply,
            "before": [charge.to_json() for charge in self.gone], "after": [charge.to_json() for charge in self.new],
        }  # fmt: skip


class Check:
    """One recording, judged once as it is, and then under changes.

    Parameters
    ----------
    seed
        All chance in the changes comes from it. What a change draws does not depend on which others are tried.
    delivery
        How changed recordings are handed over where the change itself does not say it; `None`: as
        `irregulars analyze` takes them. The first judgement is always that of `analyze`.
    """

    def __init__(
        self, recording: Recording, settings: JudgeSettings, *, seed: int = 0, delivery: Delivery | None = None
    ) -> None:
        # Leave out detectors, and so their verdicts: our own judgement is what is checked.
        self._recording, self._settings, self._seed, self._delivery = (
            recording,
            replace(settings, operator_detectors=(), rank_detectors=()),
            seed,
            delivery,
        )
        self.job = recording.job.job
        verdicts = judge(Changed(recording), self._settings)
        self.charges = charges_of(verdicts, Naming())
        self._accused = accused_ranks(verdicts, recording)

    def run(self, names: Sequence[str]) -> Iterator[Outcome]:
        """Judge under each of these changes; raises `InputError` if one is not known."""
        for name in names:
            # Raise `InputError` if there is no change of this name.
            if name not in CHANGES:
                raise InputError(f"change must be one of {', '.join(CHANGES)}; got {name!r}")
        return (self._under(name) for name in names)

    def _under(self, name: str) -> Outcome:
        random = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        changed = CHANGES[name].apply(self._recording, Given(random, self._accused))
        if changed is None:
            return Outcome(name, does_apply=False)
        if changed.delivery is None:
            changed = replace(changed, delivery=self._delivery)
        found = charges_of(judge(changed, self._settings), changed.naming)
        gone, new = differences(self.charges, found)
        return Outcome(name, gone=gone, new=new)
