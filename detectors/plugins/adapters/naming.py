"""Detectors made of models of River or scikit-learn, each named in one line of settings.

``river:anomaly.HalfSpaceTrees(n_trees=10) with (level="operator", warm_up=30)``: the library, the path of a class
inside of it, the options of its constructor, and behind ``with`` those of the adapter (`AdapterOptions`).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from irregulars.detectors.plugins.adapters.drifts import DriftAdapter
from irregulars.detectors.plugins.adapters.outliers import (
    Model,
    OutlierAdapter,
    PastScores,
    RiverModel,
    SklearnModel,
    make_seeded,
)
from irregulars.detectors.plugins.adapters.series import AdapterOptions, adapter_options
from irregulars.detectors.plugins.protocol import Detector, MakeDetector
from irregulars.errors import PluginError
from irregulars.validation import nearest

_EXTRA: Final = {"river": "worker", "sklearn": "train"}
_UNIT: Final = ("HalfSpaceTrees",)  # models that need inputs from 0 to 1


def adapt(library: str, path: str, options: Mapping[str, Any], adapter: Mapping[str, Any]) -> MakeDetector:
    """Return the maker of a model's detector.

    `library`: ``river`` or ``sklearn``. `path`: of a class inside of it: ``anomaly.HalfSpaceTrees``. `options`: of
    the class's constructor. `adapter`: see `AdapterOptions`. Raises `PluginError` if the library is not installed,
    has no such class, or the class is no detector of outliers or drifts.
    """
    kind = _find(library, path)
    own = adapter_options(adapter)
    if not own.inputs:
        own = replace(own, inputs="unit" if kind.__name__ in _UNIT else "sigmas")
    if library == "sklearn":
        make = partial(_sklearn_model, kind, dict(options), own)
    elif _is_drift(kind):
        return partial(_drift, kind, dict(options), own)
    else:
        make = partial(_river_model, kind, dict(options), own)
    make()  # options that the class does not take are refused now
    return partial(OutlierAdapter, kind.__name__, make, own)


def _drift(kind: type, options: dict[str, Any], own: AdapterOptions) -> Detector:
    make = partial(make_seeded, kind, options)
    make()
    # River is an extra: it is imported once a setting names a model of it.
    from river.base import BinaryDriftDetector

    return DriftAdapter(kind.__name__, make, own, is_binary=issubclass(kind, BinaryDriftDetector))


def _river_model(kind: type, options: dict[str, Any], own: AdapterOptions) -> Model:
    return RiverModel(make_seeded(kind, options), _past(own))


def _sklearn_model(kind: type, options: dict[str, Any], own: AdapterOptions) -> Model:
    make = partial(make_seeded, kind, options)
    make()
    return SklearnModel(make, partial(_past, own), window=own.window, refit=own.refit)


def _past(own: AdapterOptions) -> PastScores:
    return PastScores(kept=own.window, strange_share=own.strange_share)


def _find(library: str, path: str) -> type:
    module_name, _, name = path.rpartition(".")
    shown = f"{library}:{path}"
    if not module_name or any(not part.isidentifier() or part.startswith("_") for part in path.split(".")):
        raise PluginError(f"detector must be {library}:module.Class; got {shown!r}")
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise PluginError(f"detector {shown} needs {library}, in the extra {_EXTRA[library]}; got {error}") from error
    try:
        module = importlib.import_module(f"{library}.{module_name}")
    except ImportError as error:
        raise PluginError(f"detector {shown} must be in {library}; got no module {library}.{module_name}") from error
    known = [one for one, value in vars(module).items() if _is_detector(library, value)]
    if name not in known:
        there = f"are {', '.join(known)}" if known else "is none in this module"
        hint = nearest(name, known) or f"; there {there}"
        raise PluginError(f"detector {shown} must be an outlier or drift detector of {library}{hint}")
    kind: type = getattr(module, name)
    return kind


def _is_detector(library: str, value: object) -> bool:
    """Return whether a value is a class of the library that can be adapted, and no abstract one."""
    if not inspect.isclass(value) or not value.__module__.startswith(f"{library}.") or inspect.isabstract(value):
        return False
    if library == "sklearn":
        from sklearn.base import OutlierMixin

        return issubclass(value, OutlierMixin) and hasattr(value, "score_samples")
    from river.base import AnomalyDetector, SupervisedAnomalyDetector

    return issubclass(value, AnomalyDetector | SupervisedAnomalyDetector) or _is_drift(value)


def _is_drift(kind: type) -> bool:
    from river.base import BinaryDriftDetector, DriftDetector

    return issubclass(kind, DriftDetector | BinaryDriftDetector)
