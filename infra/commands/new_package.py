"""The small package that ``irregulars plugins new`` writes: a detector, its entry point and its test."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from string import Template
from typing import Final

from irregulars.detectors.plugins.loading import installed_detectors
from irregulars.errors import InputError

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")

_PROJECT: Final = Template("""\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$dashed"
version = "0.1.0"
description = "A detector for Irregulars."
requires-python = ">=3.11"
dependencies = ["numpy"]  # and irregulars, which you have

[project.entry-points."irregulars.detectors"]
$name = "$name:$kind"

[tool.setuptools]
py-modules = ["$name"]
""")

_README: Final = Template("""\
# $name

A detector for Irregulars: it scores $rows, each against its own past.

    irregulars plugins check $name:$kind             # in this folder: does it keep the promises of its protocol?
    irregulars backtest $name:$kind RECORDINGS...    # how good is it on jobs whose truth is known?
    python -m pytest                                 # the same check, as a test
    pip install .                                    # then its name is enough: detectors = ["peers", "$name"]

`$name.py` is all of it. The columns that it may read: `irregulars.detectors.plugins.protocol`.
""")

_TEST: Final = Template('''\
"""The detector keeps the promises of its protocol, and finds what is put in."""

from irregulars import check_detector
from irregulars.detectors.plugins.sample_frames import sample_frame

from $name import $kind


def test_it_keeps_the_promises_of_its_protocol():
    check_detector($kind)


def test_rows_three_times_as_slow_are_strange():
    detector = $kind()
    for iteration in range(50):
        detector.learn(sample_frame("$level", iteration))
    slow = sample_frame("$level", 50, is_faulty=True)
    strange = detector.score(slow) >= detector.strange_from
    assert set(slow["$named"][strange].tolist()) == {$found}
''')

_DETECTOR: Final = Template('''\
"""$kind: $rows, each against its own past."""

import math

import numpy as np


class $kind:
    """How far $value lies above its usual value, in standard deviations of its logarithm.

    What is usual is an average in which older iterations fade: 0.05 gives the newest 14 half of the weight.
    """

    level = "$level"
    against = "past"
    reads = ($reads)
    strange_from = 6.0  # from this score on a row is strange; see infra/docs/detectors.md
    opens_verdicts = True  # it opens alerts of its own, of kind custom

    def __init__(self, *, warm_up=20, fading=0.05, floor_ratio=0.02, forget_after=100):
        self.warm_up = warm_up  # values before there is an opinion
        self.fading = fading
        self.floor_ratio = floor_ratio  # least deviation that counts as noise, as a ratio
        self.forget_after = forget_after  # iterations after which $what that is gone is forgotten
        self._frames = 0
        self._usual = {}  # key: (mean, variance, values, last frame)

    def score(self, frame):
        """One float64 for each row, NaN: no opinion yet. Changes nothing."""
        rows = zip(self._keys(frame), _logarithms(frame["$column"]), strict=True)
        return np.array([self._score_one(key, value) for key, value in rows], dtype=np.float64)

    def learn(self, frame):
        """Take the frame as an example of what is regular: the only method that changes anything."""
        self._frames += 1
        for key, value in zip(self._keys(frame), _logarithms(frame["$column"]), strict=True):
            if not math.isnan(value):
                self._learn_one(key, value)
        oldest = self._frames - self.forget_after
        self._usual = {key: usual for key, usual in self._usual.items() if usual[3] >= oldest}

    def explain(self, frame, row):
        """Say in one line why a row is strange; it stands in the alert."""
        usual = self._usual.get(self._keys(frame)[row])
        if usual is None:
            return ""
        return f"$column {frame['$column'][row] / 1e6:.3g} ms, usual {math.exp(usual[0]) / 1e6:.3g} ms"

    def state(self):
        """What a worker's snapshot keeps, so that a restart does not begin cold."""
        return {
            "frames": self._frames,
            "keys": np.array(list(self._usual), dtype=np.int64),
            "usual": np.array(list(self._usual.values()), dtype=np.float64),
        }

    def restore(self, state):
        """Go on from what `state` returned."""
        self._frames = int(state["frames"])
        values = [(mean, variance, int(count), int(last)) for mean, variance, count, last in state["usual"].tolist()]
        self._usual = dict(zip(map(tuple, state["keys"].tolist()), values, strict=True))

    def _keys(self, frame):
        """$key_text"""
        return list(zip($keys, strict=True))

    def _score_one(self, key, value):
        mean, variance, count, _ = self._usual.get(key, (0.0, 0.0, 0, 0))
        if count < self.warm_up:
            return math.nan
        return (value - mean) / max(math.sqrt(variance), self.floor_ratio)

    def _learn_one(self, key, value):
        mean, variance, count, _ = self._usual.get(key, (value, 0.0, 0, 0))
        weight = max(self.fading, 1 / (count + 1))
        distance = value - mean
        mean += weight * distance
        variance = (1 - weight) * (variance + weight * distance**2)
        self._usual[key] = (mean, variance, count + 1, self._frames)


def _logarithms(times_ns):
    is_known = np.isfinite(times_ns) & (times_ns >= 0)
    return np.where(is_known, np.log(np.maximum(np.where(is_known, times_ns, 1.0), 1.0)), np.nan).tolist()
''')

_LEVELS: Final = {
    "rank": {
        "level": "rank", "rows": "the ranks of a job", "what": "a rank", "value": "a rank's own work",
        "column": "work_ns", "reads": '"rank", "work_ns"', "keys": 'frame["rank"].tolist()',
        "key_text": "Whose past a row is held against: its rank's.", "named": "rank", "found": "1",
    },
    "operator": {
        "level": "operator", "rows": "the operators of a rank", "what": "an operator",
        "value": "the time of an operator", "column": "elapsed_ns",
        "reads": '"communicator", "operator", "peer", "elapsed_ns"',
        "keys": '*(frame[name].tolist() for name in ("communicator", "operator", "peer"))',
        "key_text": "Whose past a row is held against: operators of its communicator, kind and peer.",
        "named": "communicator", "found": "2",
    },
}  # fmt: skip


def class_name(name: str) -> str:
    """Return the class's name for that of its module: ``nic_drift`` gives ``NicDrift``."""
    return "".join(part.capitalize() for part in name.split("_"))


def write_package(name: str, level: str, place: Path) -> list[Path]:
    """Write the package of a new detector into a folder of its name; return its files.

    Raises `InputError` if the name can't be a module's, another module has it, or there is such a folder or file.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name.endswith("_"):
        raise InputError(f"name must be small letters, digits and single _, as of a module; got {name!r}")
    if name in installed_detectors():
        raise InputError(f"name must not be that of an installed detector; got {name!r}: settings could name neither")
    # A plain folder of the name is found as a namespace, without origin: that is no module to clash with.
    spec = importlib.util.find_spec(name)
    if name in sys.stdlib_module_names or (spec is not None and spec.origin is not None):
        raise InputError(f"name must not be that of another module; got {name!r}, which Python imports already")
    folder = place / name
    values = {**_LEVELS[level], "name": name, "kind": class_name(name), "dashed": name.replace("_", "-")}
    texts = {"pyproject.toml": _PROJECT, "README.md": _README, f"{name}.py": _DETECTOR, f"test_{name}.py": _TEST}
    try:
        folder.mkdir(parents=True)
        for file, text in texts.items():
            (folder / file).write_text(text.substitute(values))
    except FileExistsError as error:
        raise InputError(f"folder of the new detector must not be there yet; got {folder}") from error
    except OSError as error:
        raise InputError(f"folder of the new detector must be writable; got {error.strerror} ({folder})") from error
    return [folder / file for file in texts]
