"""The forest that people teach: River's adaptive random forest on how ranks work, with their words as labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np

from irregulars.detectors.plugins.forest.rank_features import FEATURES, READS, log_measures, rank_rows
from irregulars.detectors.plugins.forest.rank_past import RankPast
from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores
from irregulars.dtypes import Floats

_RULE_SIGMAS: Final = 6.0
"""Robust standard deviations above its peers from which a row is strange by the rule: as for `peers`."""

_SUSPICIOUS: Final = 3.0
"""The same from which the forest is asked, and taught: below nobody would look; one healthy row in 740."""

_MOST_SIGMAS: Final = 60.0
"""Of made rows: what lies above is as strange."""

_RULE_ROWS: Final = 60
"""Made rows, labelled by the rule, that the forest learns beside the words; chosen: a word has 12 rows, so that one
or two of a kind outweigh the rule where it was wrong."""

_LEARNED: Final = 1_500
"""About how many rows a forest learns: few rows are learned again and again, since a tree splits only where it has
seen enough to be sure. Chosen: 0.4 to 0.7 s of a core where words agree (12 to 240 rows), and 1.8 s where half of 240
rows contradict the others, since trees grow then. Monitors teach at most 240 (`detectors.judging.lessons`)."""

_MOST_PASSES: Final = 8
"""Over all rows; chosen with `_LEARNED`."""

_OF_THE_RANK: Final = ("work_p", "tokens", "operators")
_IS_OF_THE_JOB: Final = np.array([not name.startswith(_OF_THE_RANK) for name in FEATURES])
"""Features that tell more of a job and its moment than of a rank."""

_MIXED: Final = 0.8
"""Share of the rows that the forest learns in which those features are another row's. Words are few, and each is
about one moment: else it would know verdicts by what else was true then. Chosen on simulated jobs."""

_REASON: Final = 0.1
"""Least difference of logarithms that counts as a reason why a row is another case than the rule's."""


class TaughtForest:
    """Probability that a rank is abnormal, from a forest that learns what people say of verdicts.

    Until somebody has said a word, a rule stands in: robust standard deviations of a rank's work above its peers, of
    which 6 make 0.5; a rank without peers is held against its own past. The first word makes a forest, which learns
    made rows that follow the rule, and then the words. So what nobody spoke of goes on to be judged about as before.

    Parameters
    ----------
    trees
        Number of trees.
    most_scored
        Rows of a frame that the forest is asked for, those that stand out most; the others score 0.
    warm_up, fading, forget_after
        As of `detectors.plugins.forest.rank_past.RankPast`.
    seed
        Of the forest's own random numbers.

    Examples
    --------
    >>> from irregulars.detectors.plugins.sample_frames import sample_frame
    >>> detector, slow = TaughtForest(), sample_frame("rank", 50, is_faulty=True)
    >>> bool(detector.score(slow)[1] > 0.5)
    True
    >>> rows = detector.examples(slow)[[1] * 32]
    >>> detector.teach(rows, np.zeros(len(rows)))
    >>> bool(detector.score(sample_frame("rank", 51, is_faulty=True))[1] < 0.5)
    True

    References
    ----------
    Gomes et al.: Adaptive random forests for evolving data stream classification, Machine Learning 106, 2017.
    """

    level: ClassVar[Level] = "rank"
    against: ClassVar[Against] = "peers"
    reads: ClassVar[tuple[str, ...]] = READS
    strange_from: ClassVar[float] = 0.5
    example_names: ClassVar[tuple[str, ...]] = FEATURES

    def __init__(
        self, *, trees: int = 10, most_scored: int = 128, warm_up: int = 20, fading: float = 0.05,
        forget_after: int = 50, seed: int = 0,
    ) -> None:  # fmt: skip
        self.trees = trees
        self.most_scored = most_scored
        self.seed = seed
        self._past = RankPast(warm_up=warm_up, fading=fading, forget_after=forget_after)
        self._rows: Floats = np.empty((0, len(FEATURES)))  # what people said, and what it learned
        self._labels: Floats = np.empty(0)
        self._forest: Any = None  # made when the first row is put to it: see `_taught`

    def score(self, frame: Frame) -> Scores:
        """Score each rank; NaN: it has no peers and no past."""
        found = rank_rows(frame, self._past, _SUSPICIOUS)
        if not len(self._labels):
            return _by_rule(found.sigmas)
        suspicion = np.where(np.isnan(found.suspicion), -np.inf, found.suspicion)
        asked = np.flatnonzero(suspicion >= _SUSPICIOUS)
        asked = asked[np.argsort(-suspicion[asked], kind="stable")[: self.most_scored]]
        scores = np.where(np.isnan(found.suspicion), np.nan, 0.0)
        if len(asked):
            forest = self._taught()
            scores[asked] = [forest.predict_proba_one(row).get(True, 0.0) for row in _as_dicts(found.matrix[asked])]
        return scores

    def learn(self, frame: Frame) -> None:
        """Take in a regular frame as the past of later ones; the forest stays as it is."""
        logs = log_measures(frame)
        rows = np.flatnonzero(np.isfinite(logs).all(axis=1))
        self._past.learn(frame["rank"][rows].astype(np.int64), logs[rows])

    def examples(self, frame: Frame) -> Floats:
        """Return the features of each row that stands out, and NaN for the others."""
        found = rank_rows(frame, self._past, _SUSPICIOUS)
        return np.where((found.suspicion >= _SUSPICIOUS)[:, None], found.matrix, np.nan)

    def teach(self, examples: Floats, labels: Floats) -> None:
        """Learn what people said, from nothing; unless it is what was taught before."""
        if len(examples) and examples.shape[1] != len(FEATURES):
            raise ValueError(f"examples must have {len(FEATURES)} columns; got {examples.shape[1]} (taught_forest)")
        usable = np.isfinite(examples).all(axis=1) & np.isfinite(labels)
        rows, labels = examples[usable].reshape(-1, len(FEATURES)), labels[usable]
        if np.array_equal(self._rows, rows) and np.array_equal(self._labels, labels):
            return
        self._rows, self._labels = rows.copy(), labels.copy()
        self._forest = None

    def explain(self, frame: Frame, row: int) -> str:
        """Say how far a rank's work stands out, and by how many words that is judged."""
        found = rank_rows(frame, self._past, _SUSPICIOUS)
        work_ms = frame["work_ns"][row] / 1e6
        taught = len(self._labels)
        by = f"judged by {taught} rows that people spoke of" if taught else "nobody taught it yet"
        return f"it worked {work_ms:.3g} ms, {found.sigmas[row]:.3g} standard deviations above the others; {by}"

    def state(self) -> dict[str, Any]:
        """Return the past of all ranks; what people said is taught again after a restart."""
        return self._past.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._past.restore(state)

    def _taught(self) -> Any:
        """Return the forest of all words, made now if a word came since it was last asked.

        It takes a second, so nobody pays for it who is not asked: least of all a worker that restores many jobs. It
        draws from its own seed, and so comes out the same whenever it is made.
        """
        if self._forest is None:
            self._forest = self._trained()
        return self._forest

    def _trained(self) -> Any:
        """Make a forest of all words and of the rule, in an order that depends on the seed alone."""
        from river import drift, forest  # 0.7 s: not for those who only import the module

        # What people say has no order in time that a model should follow: the newest word is worth no more.
        still = drift.NoDrift()
        made = forest.ARFClassifier(
            n_models=self.trees, seed=self.seed, grace_period=20, delta=0.05, tau=0.1, drift_detector=still,
            warning_detector=still, max_features=len(FEATURES),
        )  # fmt: skip
        instead = [_by_rule_instead(row, label) for row, label in zip(self._rows, self._labels, strict=True)]
        parts = [_made_by_rule(self.seed, max(_RULE_ROWS, len(self._rows))), (self._rows, self._labels), *instead]
        rows = np.concatenate([rows for rows, _ in parts])
        labels = (np.concatenate([labels for _, labels in parts]) > 0.5).tolist()
        rng = np.random.default_rng([self.seed, 2])
        for _ in range(min(max(_LEARNED // len(labels), 1), _MOST_PASSES)):
            is_mixed = (rng.random(len(rows)) < _MIXED)[:, None] & _IS_OF_THE_JOB
            mixed = np.where(is_mixed, rows[rng.integers(len(rows), size=len(rows))], rows)
            order = rng.permutation(len(rows))
            for row, at in zip(_as_dicts(mixed[order]), order.tolist(), strict=True):
                made.learn_one(row, labels[at])
        return made


def _by_rule(sigmas: Floats) -> Floats:
    """Return 0 to 1, 0.5 at the rule's limit."""
    above = np.maximum(sigmas, 1e-9)  # NaN stays
    return np.asarray(1.0 / (1.0 + (_RULE_SIGMAS / above) ** 2))


def _by_rule_instead(row: Floats, label: float) -> tuple[Floats, Floats]:
    """Return what the rule goes on to say of the same work without the reason for which a word contradicts it.

    A rank that has twice the tokens and works twice as long stands out, and is regular, somebody says. Then it may be
    its tokens: with as many as the others have, twice the work is strange. None where a row has no such reason: the
    word is about the work itself.
    """
    one = dict(zip(FEATURES, row.tolist(), strict=True))
    is_strange = one["work_peers_sigmas"] >= np.log1p(_RULE_SIGMAS)
    usual = {"tokens_peers": 0.0, "operators_peers": 0.0}
    usual |= {"work_past": one["work_peers"], "work_past_sigmas": one["work_peers_sigmas"]}
    has_reason = any(
        abs(one[name] - usual[name]) > _REASON for name in ("tokens_peers", "operators_peers", "work_past")
    )
    if not has_reason or is_strange == (label > 0.5):
        return np.empty((0, len(FEATURES))), np.empty(0)
    one |= usual
    return np.array([[one[name] for name in FEATURES]]), np.array([float(is_strange)])


def _made_by_rule(seed: int, count: int) -> tuple[Floats, Floats]:
    """Return rows that are spread over what can be, and what the rule says of them."""
    rng = np.random.default_rng([seed, 1])
    sigmas, others = np.exp(rng.uniform(np.log(_SUSPICIOUS), np.log(_MOST_SIGMAS), (2, count)))
    # Of four rows two stand out from their peers and their own past alike; one from its past alone, as when all ranks
    # have more to do; and one from its peers alone, as it has always been.
    sort = rng.integers(4, size=count)
    past_sigmas = np.select([sort < 2, sort == 2], [sigmas, others], 0.0)
    sigmas = np.where(sort == 2, rng.uniform(-2.0, _SUSPICIOUS, count), sigmas)
    spread = rng.uniform(0.02, 0.06, count)
    peers = sigmas * spread
    share = rng.uniform(0.3, 1.0, count)
    zero = np.zeros(count)
    made = {
        "work_peers": peers,
        "work_peers_sigmas": np.sign(sigmas) * np.log1p(np.abs(sigmas)),
        "work_past": past_sigmas * spread,
        "work_past_sigmas": np.log1p(past_sigmas),
        "excess_share": share * -np.expm1(-peers),
        "work_share": share,
        "communication_peers": rng.uniform(-2.0, 0.0, count),
        "communication_past": rng.uniform(-2.0, 0.0, count),
        "tokens_peers": zero,
        "operators_peers": zero,
        "elapsed_past": rng.uniform(0.0, 0.8, count),
        "crowd": rng.uniform(0.0, 0.2, count),
    }
    return np.column_stack([made[name] for name in FEATURES]), (sigmas >= _RULE_SIGMAS).astype(np.float64)


def _as_dicts(matrix: Floats) -> list[dict[str, float]]:
    """River's form of rows."""
    return [dict(zip(FEATURES, row, strict=True)) for row in matrix.tolist()]
