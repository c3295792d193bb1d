from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from irregulars.detectors.plugins.baseline import RobustBaseline
from irregulars.detectors.plugins.loading import DetectorName, load_detector, load_detectors, parse_detector
from irregulars.detectors.plugins.peers import PeerDeviation
from irregulars.detectors.plugins.protocol import name_of, opens_verdicts, with_say
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.errors import PluginError


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A stranger's package on the path: ``stranger.py``, with mistakes."""
    (tmp_path / "stranger.py").write_text(
        "from irregulars.detectors.plugins.peers import PeerDeviation\n"
        "class Good(PeerDeviation): pass\n"
        "class Scaleless:\n"
        "    level, against, reads = 'rank', 'peers', ('work_ns', 'stage')\n"
        "    def score(self, frame): return PeerDeviation().score(frame)\n"
        "    def learn(self, frame): pass\n"
        "class Bad(PeerDeviation):\n    reads = ('smell',)\n"
        "class Breaks(PeerDeviation):\n    def __init__(self): raise OSError('no disk')\n"
        "class Named(PeerDeviation): name = 'odd:one'\n"
        "class Misnamed(PeerDeviation): name = 'two words'\n"
        "NUMBER = 3\n"
    )
    (tmp_path / "broken.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield_name = "stranger"
    for name in ("stranger", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return yield_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("baseline", DetectorName("baseline")),
        ("a.b:C", DetectorName("a.b:C")),
        (" a.b.C(x=1, y='two', z=None) ", DetectorName("a.b.C", {"x": 1, "y": "two", "z": None})),
        ("peers()", DetectorName("peers")),
    ],
)
def test_names_and_options_are_read(text: str, name: DetectorName) -> None:
    assert parse_detector(text) == name


@pytest.mark.parametrize("text", ["", "a b", "a:b:c", ".a", "a.", "1a", ":C", "os;system"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(PluginError, match=r"must be an entry point's name or package.module:Name; got"):
        parse_detector(text)


@pytest.mark.parametrize(
    "text", ["peers(1)", "peers(x=f())", "peers(x=1", "peers(**{})", "peers(x=1) y", "peers(x=y)"]
)
def test_what_is_no_option_is_refused(text: str) -> None:
    with pytest.raises(PluginError, match=r"options must be \(name=value, …\)"):
        parse_detector(text)


def test_ours_are_loaded() -> None:
    # Ours are found by dotted path in both spellings and pass options
    for text in (
        "irregulars.detectors.plugins.baseline:RobustBaseline(warm_up=5)",
        "irregulars.detectors.plugins.baseline.RobustBaseline(warm_up=5)",
    ):
        detector = load_detector(text, is_checked=False)()
        assert isinstance(detector, RobustBaseline)
        assert detector.warm_up == 5
    # More detectors of operators than evidence has columns for are refused
    assert len(load_detectors(["baseline"] * 16 + ["peers"])["operator"]) == 16
    with pytest.raises(PluginError, match="detectors of operators must be at most 16; got 17"):
        load_detectors(["baseline"] * 17)
    # Ours are found by entry point
    makers = load_detectors(["baseline", "peers"])
    assert [type(make().detector) for make in makers["operator"]] == [RobustBaseline]  # type: ignore[attr-defined]
    assert [type(make().detector) for make in makers["rank"]] == [PeerDeviation]  # type: ignore[attr-defined]
    # Detectors of different scales score on one
    slow = sample_frame("operator", 70, is_faulty=True)
    for make in load_detectors(["baseline", "operator_forest"])["operator"]:
        detector = pickle.loads(pickle.dumps(make))()
        for iteration in range(60):
            detector.learn(sample_frame("operator", iteration))
        scores = detector.score(slow)
        assert scores[slow["communicator"] == 2].max() > 1
        assert np.nanmedian(scores[slow["communicator"] != 2]) < 0.5


def test_who_states_no_scale_scores_as_it_is(plugin: str) -> None:
    (make,) = load_detectors([f"{plugin}:Scaleless"])["rank"]
    frame = sample_frame("rank", 0)
    np.testing.assert_array_equal(make().score(frame), PeerDeviation().score(frame))


def test_scores_are_stored_under_the_name_of_the_detector_its_entry_point_or_its_class(plugin: str) -> None:
    texts = ["peers", f"{plugin}:Scaleless", f"{plugin}:Named", "peers(least_peers=4)", f"{plugin}:Good"]
    made = [make() for make in load_detectors(texts, is_checked=False)["rank"]]
    names = [name_of(one) for one in made]
    assert names == ["peers", "scaleless", "odd:one", "peers_2", "good"]


def test_a_name_that_no_column_can_have_is_refused(plugin: str) -> None:
    with pytest.raises(PluginError, match=r"name of detector stranger:Misnamed must match .*; got 'two words'"):
        load_detectors([f"{plugin}:Misnamed"], is_checked=False)


def test_who_has_a_say() -> None:
    # A sign behind the name lets a detector open verdicts
    loud, quiet = load_detectors(["peers(least_peers=4)!", "river_gaussian"])["rank"]
    assert opens_verdicts(loud())
    assert loud().detector.least_peers == 4  # type: ignore[attr-defined]
    assert not opens_verdicts(quiet())
    # Only those with a say touch verdicts
    made = load_detectors(["peers", "peers!", "river_gaussian"])["rank"]
    assert [name_of(make()) for make in with_say(made)] == ["peers_2", "river_gaussian"]
    # What makes a detector pickles
    make = load_detector("irregulars.detectors.plugins.peers:PeerDeviation(least_peers=4)", is_checked=False)
    assert pickle.loads(pickle.dumps(make))().least_peers == 4


def test_a_strangers_detector_is_found(plugin: str) -> None:
    assert type(load_detector(f"{plugin}:Good")()).__name__ == "Good"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere", r"must be an installed entry point of irregulars.detectors \(.*\); got 'nowhere'"),
        ("baselin", r"got 'baselin'; did you mean baseline\?"),
        ("not_there.at_all:X", "must be importable; got ModuleNotFoundError: No module named 'not_there'"),
        ("broken:X", "must be importable; got ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("stranger:Missing", "got no 'Missing' in stranger"),
        ("stranger:NUMBER", "must be a class or function that makes one; got int"),
        ("stranger:Breaks", "must be constructible; got OSError: no disk"),
        ("stranger:Good(speed=3)", "must be constructible; got TypeError: .*unexpected keyword argument 'speed'"),
        ("builtins:dict", "must have level, against, reads, score, learn; got dict without"),
        ("stranger:Bad", r"detector stranger:Bad: reads must be columns of level rank .*got \['smell'\]"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_one_line(plugin: str, text: str, message: str) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        load_detector(text)
    assert "\n" not in str(caught.value)
