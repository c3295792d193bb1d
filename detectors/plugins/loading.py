"""Find detectors by name: an entry point of the group ``irregulars.detectors``, or a dotted path.

A third form names a model of River or scikit-learn (`detectors.plugins.adapters.naming`). Nothing is found by an
import's side effect. A detector that settings name is checked before a worker starts.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from irregulars.detectors.plugins.checks import check_detector
from irregulars.detectors.plugins.protocol import (
    Detector,
    Frame,
    MakeDetector,
    Scores,
    explanation_of,
    has_state,
    is_witness,
    name_of,
    strange_from,
)
from irregulars.errors import PluginError
from irregulars.messages.evidence import DETECTOR_NAME, MOST_DETECTORS
from irregulars.validation import first_line, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "irregulars.detectors"

LIBRARIES: Final = ("river", "sklearn")  # before a colon: whose models are adapted
_ADAPT: Final = "irregulars.detectors.plugins.adapters.naming:adapt"  # a floor above: found by name
_WITH: Final = re.compile(r"(?<=[\w)])\s+with\s+")
_QUOTED: Final = re.compile(r"""'(?:\\.|[^'\\])*'|["](?:\\.|[^"\\])*["]""")


@dataclass(frozen=True, slots=True)
class DetectorName:
    """A detector as settings name it: where its class is, the options of its constructor, and those of an adapter."""

    target: str
    options: dict[str, Any] = field(default_factory=dict)
    adapter: dict[str, Any] = field(default_factory=dict)
    opens_verdicts: bool = False

    @property
    def library(self) -> str | None:
        """Whose model is adapted; None: it is a detector by itself."""
        library, colon, _ = self.target.partition(":")
        return library if colon and library in LIBRARIES else None


def parse_detector(text: str) -> DetectorName:
    """Read ``name``, ``package.module:Name`` or ``package.module.Name``, each with options in brackets or without.

    Of ``river:module.Name`` and ``sklearn:module.Name`` options of the adapter may follow: ``with (level="rank")``.

    Raises
    ------
    PluginError
        If the text is none of these, or an option is no number, text, boolean or None.

    >>> parse_detector("baseline(warm_up=30)")
    DetectorName(target='baseline', options={'warm_up': 30}, adapter={}, opens_verdicts=False)
    >>> parse_detector("our_plugins.nic:NicDrift!").opens_verdicts
    True
    """
    plain = text.strip().removesuffix("!").rstrip()
    # A text among the options may hold the word as well: blanks stand for texts, as long as these.
    word = _WITH.search(_QUOTED.sub(lambda quoted: " " * len(quoted[0]), plain))
    named, behind = (plain, "") if word is None else (plain[: word.start()], plain[word.end() :].strip())
    target, bracket, options = named.partition("(")
    names = target.replace(":", ".", 1).split(".")
    if not all(name.isidentifier() for name in names) or (":" in target and len(names) < 2):
        raise PluginError(f"detector must be an entry point's name or package.module:Name; got {text!r}")
    name = DetectorName(
        target, _parse_options("f(" + options, text) if bracket else {}, opens_verdicts=text.strip().endswith("!")
    )
    if word is None:
        return name
    if name.library is None:
        raise PluginError(f"options behind 'with' must be those of {' or '.join(LIBRARIES)} models; got {text!r}")
    is_bracketed = behind.startswith("(") and behind.endswith(")")  # as a list of settings needs it, split at commas
    return replace(name, adapter=_parse_options(f"f{behind}" if is_bracketed else f"f({behind})", text))


def load_detector(text: str, *, is_checked: bool | None = None) -> MakeDetector:
    """Find a detector and return its maker, which pickles.

    Parameters
    ----------
    text
        As `parse_detector` reads it.
    is_checked
        Run `check_detector`, about half a second. None: run it unless the detector ships with us, since our tests do.

    Raises
    ------
    PluginError
        If it can't be found or imported, is no detector, takes other options, reads unknown columns or fails a
        check: one line.
    """
    name = parse_detector(text)
    make = _maker(name, text)
    try:
        detector: Detector = make()
    except (Exception, SystemExit) as error:  # a stranger's constructor, or options that it does not take
        raise PluginError(f"detector {text} must be constructible; got {first_line(error)}") from error
    missing = [one for one in ("level", "against", "reads", "score", "learn") if not hasattr(detector, one)]
    if missing:
        raise PluginError(f"detector {text} must have {', '.join(missing)}; got {type(detector).__name__} without")
    is_ours = type(detector).__module__.startswith("irregulars.detectors.") and name.library is None
    if is_checked or (is_checked is None and not is_ours):
        try:
            check_detector(make)
        except PluginError as error:
            raise PluginError(f"detector {text}: {error}") from error
    return make


def _maker(name: DetectorName, text: str) -> MakeDetector:
    if name.library is None:
        is_path = "." in name.target or ":" in name.target
        path = name.target if is_path else _entry_point(name.target).value
        return partial(_import(path, name.target), **name.options)
    adapt = _import(_ADAPT, text)
    try:
        make: MakeDetector = adapt(name.library, name.target.partition(":")[2], name.options, name.adapter)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:  # options that a model does not take
        raise PluginError(f"detector {text} must be constructible; got {first_line(error)}") from error
    return make


def load_from_here(text: str, *, is_checked: bool | None = None) -> MakeDetector:
    """Find a detector as `load_detector` does, and modules in the working directory as well: for commands.

    A worker does not search there: it runs installed detectors.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return load_detector(text, is_checked=is_checked)


def load_detectors(texts: Sequence[str], *, is_checked: bool | None = None) -> dict[str, tuple[MakeDetector, ...]]:
    """Load several detectors and sort them by level: keys ``operator`` and ``rank``. Raises as `load_detector`.

    They make `Comparable` detectors: all have names, no two the same, and score on one scale. More detectors of
    operators than evidence has columns for are refused.
    """
    makers: list[MakeDetector] = []
    taken: set[str] = set()
    for text in texts:
        make = load_detector(text, is_checked=is_checked)
        named = partial(
            Comparable.made_by, make, _free_name(make(), text, taken), parse_detector(text).opens_verdicts
        )
        makers.append(named)
    found = {level: tuple(make for make in makers if make().level == level) for level in ("operator", "rank")}
    if (count := len(found["operator"])) > MOST_DETECTORS:
        raise PluginError(f"detectors of operators must be at most {MOST_DETECTORS}; got {count}")
    return found


class Comparable:
    """A detector as monitors use it: it has a name, and its scores are divided by where strange begins on its scale.

    Parameters
    ----------
    detector
        The one that scores and learns.
    name
        Under which its scores are stored; None: that of `detectors.plugins.protocol.name_of`.
    opens_verdicts
        Whether the settings let it open verdicts; else its own attribute decides.
    """

    strange_from: Final = 1.0

    def __init__(self, detector: Detector, name: str | None = None, opens_verdicts: bool = False) -> None:
        self.detector = detector
        self.level, self.against, self.reads = detector.level, detector.against, detector.reads
        self.name = name or name_of(detector)
        self.opens_verdicts = opens_verdicts or bool(getattr(detector, "opens_verdicts", False))
        self.is_witness = is_witness(detector)
        self._unit = strange_from(detector)
        # On the object: the class has neither, so that `has_state` is true of it where it is of the detector.
        if has_state(detector):
            self.state, self.restore = detector.state, detector.restore  # type: ignore[attr-defined]

    @classmethod
    def made_by(cls, make: MakeDetector, name: str, opens_verdicts: bool) -> Comparable:
        """Make a detector with its name; a function that pickles."""
        return cls(make(), name, opens_verdicts)

    def score(self, frame: Frame) -> Scores:
        """Score each row; 1: strange begins here."""
        scores = self.detector.score(frame)
        return scores if self._unit == 1.0 else scores / self._unit

    def learn(self, frame: Frame) -> None:
        """Learn a regular frame."""
        self.detector.learn(frame)

    def explain(self, frame: Frame, row: int) -> str:
        """Explain in one short line why a row is strange; empty: the detector gives no reason."""
        return explanation_of(self.detector, frame, row)


def _free_name(detector: Detector, text: str, taken: set[str]) -> str:
    """Return the name of a detector of the settings, and take it: the second of one name is called ``name_2``."""
    target = parse_detector(text).target
    is_entry_point = "." not in target and ":" not in target
    name = str(getattr(detector, "name", "") or (target if is_entry_point else name_of(detector)))
    if not DETECTOR_NAME.fullmatch(name):
        raise PluginError(f"name of detector {text} must match {DETECTOR_NAME.pattern}; got {name!r}")
    # One name more than are taken, so that one of them is free.
    names = (name if count == 1 else f"{name}_{count}" for count in range(1, len(taken) + 2))
    free = next(one for one in names if one not in taken)
    taken.add(free)
    return free


def installed_detectors() -> dict[str, str]:
    """Return the entry points of the group by name, with their targets."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def _parse_options(call: str, text: str) -> dict[str, Any]:
    try:
        tree = ast.parse(call, mode="eval").body
        # A keyword without a name is ``**options``.
        if not isinstance(tree, ast.Call) or tree.args or not all(one.arg for one in tree.keywords):
            raise ValueError("options are key=value")
        return {str(one.arg): ast.literal_eval(one.value) for one in tree.keywords}
    except (SyntaxError, ValueError, TypeError) as error:  # TypeError: a key that is a list
        raise PluginError(f"options must be (name=value, …) with plain values; got {text!r}") from error


def _entry_point(name: str) -> EntryPoint:
    from importlib.metadata import entry_points  # reads a file of every package that is installed

    # A target that is listed twice is still one.
    found = list({point.value: point for point in entry_points(group=GROUP, name=name)}.values())
    if len(found) == 1:
        return found[0]
    if found:
        raise PluginError(f"detector {name} must be one entry point; got {sorted(p.value for p in found)}")
    known = installed_detectors()
    told = f"detector must be an installed entry point of {GROUP} ({', '.join(known) or 'none'}); got {name!r}"
    raise PluginError(f"{told}{nearest(name, known) or '; or name a class: package.module:Name'}")


def _import(path: str, shown: str) -> Any:
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a stranger's module: whatever it raises is the finding
        raise PluginError(f"detector {shown} must be importable; got {first_line(error)} ({module_name})") from error
    if not hasattr(module, attribute):
        raise PluginError(f"detector {shown} must be in its module; got no {attribute!r} in {module_name}")
    made = getattr(module, attribute)
    if not callable(made):
        raise PluginError(f"detector {shown} must be a class or function that makes one; got {type(made).__name__}")
    return made
