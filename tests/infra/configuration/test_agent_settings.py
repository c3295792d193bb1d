from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path

import pytest

from irregulars.errors import InputError, PluginError
from irregulars.infra.agent_settings import (
    ARRAYS,
    KINDS,
    TABLES,
    AgentFile,
    open_source,
    read_agent_file,
)
from irregulars.infra.docs_site.made_parts import agent_keys
from irregulars.infra.settings import load_settings
from irregulars.producers.trace.source import TraceSource
from tests.producers.trace_directories import RECORDINGS

NODE = Path(__file__).parents[3] / "infra" / "node"
DOCS = Path(__file__).parents[3] / "infra" / "docs"
OWN = (*TABLES, *ARRAYS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.toml"


def read(path: Path, text: str) -> AgentFile:
    path.write_text(text)
    return read_agent_file(path)


def test_general_settings_and_tables_stand_in_one_file_and_an_empty_one_has_the_defaults(path: Path) -> None:
    file = read(path, "")
    assert file == AgentFile()
    assert (file.nics.period_ms, file.gpus.period_s, file.metrics.host) == (10.0, 1.0, "127.0.0.1")
    file = read(path, 'kafka_bootstrap = "k:9"\n[nics]\nperiod_ms = 5\n[[ranks]]\njob = "j"\nrank = 3\ngpu = 1\n')
    assert (file.nics.period_ms, file.ranks[0].rank, file.ranks[0].nic) == (5.0, 3, None)
    assert load_settings(config=path, environment={}, others=OWN).kafka_bootstrap == "k:9"


@pytest.mark.parametrize(("text", "complaint"), [
    ("[nics]\nperoid_ms = 5", r"key must be a known one; got 'peroid_ms' \(.*, table nics\); did you mean period_ms"),
    ("[nics]\nxyz = 5", r"got 'xyz' .*; it may be one of enabled, period_ms"),
    ("[nics]\nperiod_ms = '5'",
     r"period_ms must be a number from 1 to 60000; got '5' \(.*, table nics, key period_ms\)"),
    ("[nics]\nperiod_ms = true", r"period_ms must be a number from 1 to 60000; got True"),
    ("[nics]\nperiod_ms = 0.5", r"period_ms must be a number from 1 to 60000; got 0.5"),
    ("[nics]\nperiod_ms = nan", r"period_ms must be a number from 1 to 60000; got nan"),
    ("[nics]\nenabled = 1", r"enabled must be true or false; got 1"),
    ("[spool]\nlimit_mib = 10.5", r"limit_mib must be an integer from 2 to 1048576; got 10.5"),
    ("[metrics]\nport = 65536", r"port must be an integer from 0 to 65535; got 65536"),
    ("[metrics]\nhost = ''", r"host must be text of 1 to 255 characters; got ''"),
    ("nics = 3", r"table must hold keys; got 3 \(.*, table nics\)"),
    ("[[ranks]]\njob = 'j'", r"key rank must be there; got none \(.*, ranks 1\)"),
    ("[[ranks]]\njob = 'j'\nrank = -1",
     r"rank must be an integer from 0 to 2147483647; got -1 \(.*, ranks 1, key rank\)"),
    ("[ranks]\njob = 'j'", r"ranks must be an array of tables, \[\[ranks\]\]; got a table"),
    ("[[sources]]\nname = 'x'", r"kind must be text that is not empty; got None \(.*, sources 1, key kind\)"),
    ("sources = [3]", r"source must be a table, \[\[sources\]\]; got 3 \(.*, sources 1\)"),
    ("[nics]\nperiod_ms = 0x1" + "f" * 5000,
     r"period_ms must be a number from 1 to 60000; got a number of thousands of digits"),
    ("[nics]\nperiod_ms = '" + "x" * 9999 + "'", r"period_ms must be a number .*; got 'x{75} \.\.\. \("),
    ("[spool]\ndirectory = 'a\0b'", r"agent's file must be TOML; got Found invalid"),
    ('[spool]\ndirectory = "a\\u0000b"', r"directory must be a path without a null; got 'a\\x00b' \(.*, table sp"),
    ("a = " + "[" * 5000, r"agent's file must be TOML; got maximum recursion depth"),
    ("[nics", r"agent's file must be TOML; got .*agent.toml"),
])  # fmt: skip
def test_what_is_wrong_is_named_with_file_and_key(path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read(path, text)


def test_an_unknown_table_is_an_unknown_setting_and_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(InputError, match=r"agent's file must be readable; got No such file .*agent\.toml"):
        read_agent_file(path)
    read(path, "[spol]\nlimit_mib = 3")
    with pytest.raises(InputError, match=r"setting must be a known one; got 'spol' \(.*agent.toml, key spol\)"):
        load_settings(config=path, environment={}, others=OWN)


def source_table(path: Path, text: str):  # type: ignore[no-untyped-def]
    return read(path, f"[[sources]]\n{text}").sources[0]


@pytest.mark.parametrize(("text", "records"), [
    (f"kind = 'replay'\ndirectory = '{RECORDINGS / 'gloo-clean'}'\nspeed = 0", 5),
    ("kind = 'torch'\npath = '{folder}/agent.sock'", 0),
    *((f"kind = '{kind}'\ndirectory = '{{folder}}'\njob = 'j'\nworld_size = 8", 0)
      for kind in ("kineto", "flight-recorder", "nccl-inspector")),
    ("kind = 'tests.benchmarks.agent_load:Operators'\nranks = 2\nper_s = 0", 2),  # anybody's, by its place
])  # fmt: skip
def test_each_kind_of_source_is_opened(path: Path, text: str, records: int) -> None:
    table = source_table(path, text.replace("{folder}", str(path.parent)))
    source = open_source(table, path.parent)
    assert isinstance(source, TraceSource) is (table.kind == "replay")
    assert (path.parent / "agent.sock").is_socket() is (table.kind == "torch")
    assert len(source.poll(10)) == records
    source.close()


@pytest.mark.parametrize(("text", "error", "complaint"), [
    ("kind = 'reply'", InputError, r"kind must be one of replay, torch, .*; got 'reply' .*key kind"),
    ("kind = 'replay'", InputError, r"key directory must be there; got none \(.*, sources 1\)"),
    ("kind = 'nccl-inspector'\ndirectory = '.'\njob = 'j'", InputError,
     r"key world_size must be there; got none \(.*, sources 1\)"),
    ("kind = 'replay'\ndirectory = 3", InputError, r"directory must be a path; got 3"),
    ("kind = 'no.such:Thing'", PluginError, r"must be one that can be imported.*ModuleNotFoundError: No module"),
    ("kind = 'tests.benchmarks.agent_load:Operators'\nx = 1", PluginError, r"TypeError: .*unexpected keyword"),
    ("kind = 'kineto'\ndirectory = 'd'\njob = ''", InputError,
     r"job must be text of 1 to 1000 characters; got '' "),
    ("kind = 'kineto'\ndirectory = 'd'\njob = 'j'\nworld_size = 0", InputError,
     r"world_size must be an integer .*; got 0 "),
    ("kind = 'replay'\ndirectory = '/nowhere'", InputError,
     r"must be a trace directory; got nothing \(.*, sources 1\)"),
    ("kind = 'replay'\ndirectory = 'd'\nspeed = 1" + "0" * 400, InputError,
     r"speed must be a number below 1e308; got 1"),
    ("kind = 'collections:Counter'", InputError,
     r"got TypeError: a Counter without poll, position, .* \(.*, sources 1\)"),
    ("kind = 'sys:exit'", InputError, r"kind must be one that can be imported .*; got SystemExit"),
])  # fmt: skip
def test_a_source_that_cannot_be_opened_is_named_with_its_place_in_the_file(
    path: Path, text: str, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        open_source(source_table(path, text), path.parent)


def test_the_example_is_sound_and_shows_every_table() -> None:
    example = NODE / "agent.toml"
    file = read_agent_file(example)
    assert load_settings(config=example, environment={}, others=OWN).topic_prefix == "irregulars."
    assert file.spool.directory == Path("/var/lib/irregulars/spool")
    uncommented = re.sub(r"^# (?=\[\[|\w+ = )", "", example.read_text(), flags=re.MULTILINE)
    assert {"nics", "gpus", "spool", "metrics", "ranks", "sources"} <= set(tomllib.loads(uncommented))


def test_the_daemonset_s_file_is_sound(path: Path) -> None:
    text = (NODE / "daemonset.yaml").read_text()
    block = re.search(r"  agent\.toml: \|\n((?:    .*\n|\n)+)", text)
    assert block is not None
    file = read(path, re.sub(r"^    ", "", block[1], flags=re.MULTILINE))
    assert (file.agent.sysfs, file.metrics.port) == (Path("/host/sys"), 9464)
    mounts = set(re.findall(r"mountPath: ([\w/]+)", text))
    assert {str(file.spool.directory.parent), str(Path(file.sources[0].options["path"]).parent)} <= mounts
    assert load_settings(config=path, environment={}, others=OWN).kafka_bootstrap == "kafka.irregulars:9092"


def test_the_unit_leaves_time_to_end_and_keeps_the_spool() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(NODE / "irregulars-agent.service")
    service = unit["Service"]
    assert service["ExecStart"].endswith("irregulars agent /etc/irregulars/agent.toml")
    assert float(service["TimeoutStopSec"]) > 2 * AgentFile().spool.final_s
    assert f"/var/lib/{service['StateDirectory']}" in str(AgentFile().spool.directory)
    (source,) = read_agent_file(NODE / "agent.toml").sources
    assert Path(source.options["path"]).parent == Path("/run", service["RuntimeDirectory"])
    assert service["KillSignal"] == "SIGTERM"


def test_the_docs_list_every_key_and_every_kind() -> None:
    page = (DOCS / "agent.md").read_text()
    keys = {row.split("`")[3] for row in agent_keys().splitlines()[2:]}
    assert {"period_ms", "limit_mib", "directory"} <= keys
    assert "<!-- made: settings of the agent -->" in page
    assert all(f"`{kind}`" in page for kind in KINDS)
