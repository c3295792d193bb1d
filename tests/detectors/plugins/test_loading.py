from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.plugins.baseline import RobustBaseline
from irregulars.detectors.plugins.checks import CHECKS, check_detector
from irregulars.detectors.plugins.loading import DetectorName, load_detector, load_detectors, parse_detector
from irregulars.detectors.plugins.peers import PeerDeviation
from irregulars.detectors.plugins.protocol import name_of, opens_verdicts, with_say
from irregulars.detectors.plugins.river_gaussian import RiverGaussian
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.detectors.plugins.stored_state import (
    decode_detector,
    encode_detector,
    restore_detectors,
    stored_detectors,
)
from irregulars.errors import PluginError, RecordError
from tests.detectors.bad_detectors import BAD_DETECTORS, FewTokens, LogWork


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
        ("peers(x='1 with 2')", DetectorName("peers", {"x": "1 with 2"})),
        (
            """river:a.B(x='it\\'s with y', y="3 with '") with (level='a with b')""",
            DetectorName("river:a.B", {"x": "it's with y", "y": "3 with '"}, {"level": "a with b"}),
        ),
    ],
)
def test_names_and_options_are_read(text: str, name: DetectorName) -> None:
    assert parse_detector(text) == name


@pytest.mark.parametrize("text", ["", "a b", "a:b:c", ".a", "a.", "1a", ":C", "os;system"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(PluginError, match=r"must be an entry point's name or package.module:Name; got"):
        parse_detector(text)


@pytest.mark.parametrize(
    "text", ["peers(1)", "peers(x=f())", "peers(x=1", "peers(**{})", "peers(x=1) y", "peers(x=y)", "peers(x={[]: 1})"]
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


@pytest.mark.parametrize(("text", "message"), [
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
])  # fmt: skip
def test_a_plug_in_that_cannot_be_used_is_one_line(plugin: str, text: str, message: str) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        load_detector(text)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("make", [RobustBaseline, PeerDeviation, RiverGaussian, LogWork])
@pytest.mark.filterwarnings("ignore:invalid value encountered in log")
def test_a_good_detector_passes_all_checks(make: Callable[[], Any]) -> None:
    check_detector(make)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "make", "message"), BAD_DETECTORS, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_check_rejects_its_bad_detector(check: str, make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PluginError, match=rf"{message}.*\(check {check}\)") as caught:
        check_detector(make)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_checks_themselves() -> None:
    # Every check has a bad detector
    assert {check for check, _, _ in BAD_DETECTORS} == set(CHECKS)
    # The budget is the callers
    with pytest.raises(PluginError, match=r"must take at most 0\.001 ms"):
        check_detector(PeerDeviation, budget_s=1e-6)
    # Checks leave the global random state alone
    random.seed(5)
    np.random.seed(5)
    wanted = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    check_detector(PeerDeviation)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == wanted  # type: ignore[index]


class RefusesItsState(RobustBaseline):
    def restore(self, state: Any) -> None:
        super().restore(state)
        raise KeyError("another version")


def taught(make: Callable[[], Any]) -> Any:
    detector = make()
    for iteration in range(40):
        detector.learn(sample_frame(detector.level, iteration))
    return detector


@pytest.mark.parametrize("make", [RobustBaseline, RiverGaussian])
def test_a_restored_detector_goes_on_as_the_one_that_was_stored(make: Callable[[], Any]) -> None:
    original = taught(make)
    ((_, restored),), cold = restore_detectors([make], stored_detectors([(name_of(original), original)], 10_000))
    assert cold == ()
    for iteration in range(40, 50):
        frame = sample_frame(original.level, iteration)
        np.testing.assert_allclose(restored.score(frame), original.score(frame), rtol=1e-6)
        original.learn(frame)
        restored.learn(frame)


def test_arrays_and_plain_values_come_back_as_they_were() -> None:
    state = {"n": 3, "x": 0.5, "words": ["a", None, True], "raw": b"\x00", "deep": {"a": np.arange(6).reshape(2, 3)}}
    found = decode_detector(encode_detector(state))
    np.testing.assert_array_equal(found["deep"].pop("a"), state["deep"].pop("a"))  # type: ignore[attr-defined]
    assert found == state


@pytest.mark.parametrize("value", [object(), np.array([object()]), 2**70])
def test_what_is_no_plain_value_is_refused(value: Any) -> None:
    with pytest.raises(PluginError, match="state of a detector must be a mapping of plain values"):
        encode_detector({"value": value})


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x93\x01\x02\x03", encode_detector({"a": np.zeros(4)})[:-3]])
def test_bytes_that_are_no_state_are_refused(value: bytes) -> None:
    with pytest.raises(RecordError, match="state of a detector must be a mapping; got another one"):
        decode_detector(value)


def test_states_that_are_not_taken() -> None:
    # A state above its bound is left out and the detector counted as cold
    states = stored_detectors([("few_tokens", FewTokens()), ("river_gaussian", taught(RiverGaussian))], 100)
    assert [bool(one.state) for one in states] == [True, False]
    assert restore_detectors([FewTokens, RiverGaussian], states)[1] == ("river_gaussian",)
    # Who does not take its state begins cold and whole
    states = stored_detectors([("refuses_its_state", taught(RefusesItsState))], 100_000)
    ((_, detector),), cold = restore_detectors([RefusesItsState], states)
    assert cold == ("refuses_its_state",)
    assert np.isnan(detector.score(sample_frame("operator", 50))).all()


@pytest.mark.parametrize("state", [{"made": object()}, None])
def test_who_has_no_state_to_give_costs_its_job_no_snapshot(state: dict[str, Any] | None) -> None:
    class GivesNone(RobustBaseline):
        def state(self) -> dict[str, Any]:
            if state is None:
                raise RuntimeError("not today")
            return state

    states = stored_detectors([("gives_none", GivesNone()), ("baseline", taught(RobustBaseline))], 100_000)
    assert [bool(one.state) for one in states] == [False, True]
