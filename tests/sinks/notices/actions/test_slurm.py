"""Draining and giving back, on a real slurmctld with real slurmds, from messages of a real broker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from irregulars.errors import ServiceRefused, ServiceUnavailable
from irregulars.sinks.notices.actions.actions import decode_actions, encode_actions
from irregulars.sinks.notices.actions.actor import Proposal
from irregulars.sinks.notices.actions.slurm import SlurmNode, SlurmNodes
from tests.sinks.notices.actions.slurm_cluster import SlurmCluster, missing_programs
from tests.sinks.notices.actions.told import Told
from tests.sinks.notices.made_up_notices import GPU, VERDICT, notice_of

MISSING = missing_programs()
needs_slurm = pytest.mark.skipif(
    bool(MISSING), reason=f"Slurm must be installed (Debian: slurmctld slurmd munge); missing: {', '.join(MISSING)}"
)


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[SlurmCluster]:
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, SlurmCluster(Path(folder)) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """A cluster whose nodes are all idle."""
    monkeypatch.setenv("SLURM_CONF", str(running_cluster.config))
    for name, (state, _) in running_cluster.sinfo().items():
        if state != "idle":
            running_cluster.scontrol("update", f"nodename={name}", "state=undrain")
    running_cluster.wait_for("idle", *running_cluster.names)
    return running_cluster


def proposal(host: str = "node-0") -> Proposal:
    message = decode_actions(encode_actions(notice_of(replace(VERDICT, suspects=(replace(GPU, host=host),)))))
    return Proposal(message, message.actions[0])


@needs_slurm
def test_a_drained_node_says_that_it_was_us_and_is_given_back(cluster: SlurmCluster) -> None:
    nodes, one = SlurmNodes(), proposal()
    assert nodes.cordon(one) is None
    state, reason = cluster.sinfo()["node-0"]
    assert state == "drained"
    assert reason.startswith(f"irregulars: {one.action.action_id} slow rank in llama: GPU 0 on node-0")
    assert nodes.marked().cordoned == {"node-0": one.action.action_id}
    assert nodes.release("node-0", "it recovered") is None
    assert cluster.sinfo()["node-0"] == ("idle", "none")
    assert nodes.marked().cordoned == {}


@needs_slurm
def test_a_node_that_is_somebody_else_s_or_unknown_is_never_touched(cluster: SlurmCluster) -> None:
    nodes = SlurmNodes()
    assert nodes.cordon(proposal("node-77")) == "Slurm knows no node node-77"
    assert set(cluster.sinfo().values()) == {("idle", "none")}
    nodes.cordon(proposal())
    cluster.scontrol("update", "nodename=node-0", "state=drain", "reason=ours now")
    cluster.scontrol("update", "nodename=node-1", "state=drain", "reason=ticket 4711")
    before = cluster.sinfo()
    assert before["node-0"] == ("drained", "ours now")
    assert nodes.cordon(proposal("node-1")) == "it is drained already (ticket 4711)"
    for host in ("node-0", "node-1"):
        assert nodes.release(host, "it recovered") == "it is not drained by us any more"
    assert (nodes.marked().cordoned, cluster.sinfo()) == ({}, before)


@pytest.mark.parametrize("host", ["ALL", "node-[0-1]", "node-0,node-1", "", "-x"])
def test_a_pattern_of_several_nodes_never_reaches_slurm_and_a_machine_without_it_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="must be the name of one node"):
        SlurmNodes(Path("/nowhere")).release(host, "")
    with pytest.raises(ServiceRefused, match="sinfo must be there; got none at /nowhere/sinfo"):
        SlurmNodes(Path("/nowhere")).marked()


def test_only_a_drain_with_our_reason_is_ours() -> None:
    ours, others = [("drained", "irregulars: cordon-1 slow"), ("draining", "irregulars: cordon-1")], [
        ("idle", "irregulars: cordon-1"), ("drained", "irregulars: "), ("drained", "irregular"), ("drained", ""),
    ]  # fmt: skip
    assert [SlurmNode("node-0", *one).action_id for one in (*ours, *others)] == ["cordon-1"] * 2 + [None] * 4


@needs_slurm
def test_a_controller_that_is_away_is_waited_for(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    away = cluster.config.with_name("away.conf")
    away.write_text(cluster.config.read_text().replace("SlurmctldPort=", "MessageTimeout=2\nSlurmctldPort=1\n#"))
    monkeypatch.setenv("SLURM_CONF", str(away))
    with pytest.raises(ServiceUnavailable, match=r"sinfo .* must succeed; got .*"):
        SlurmNodes().marked()


@needs_slurm
@pytest.mark.integration
def test_the_command_drains_the_accused_node_and_gives_it_back(
    cluster: SlurmCluster, kafka_bootstrap: str, topic_prefix: str
) -> None:
    told = Told("slurm", kafka_bootstrap, topic_prefix)
    on_node_0 = replace(VERDICT, suspects=(replace(GPU, host="node-0"),))
    told.tell(on_node_0)

    dry, would, *_ = told.act()
    assert "nothing is changed" in dry
    assert would.startswith(
        "would cordon   node-0: slow rank in llama: GPU 0 on node-0 (rank 8, NIC mlx5_1), 95% sure"
    )
    assert cluster.sinfo()["node-0"] == ("idle", "none")

    assert told.act("--do-it")[0].startswith("cordoned   node-0: ")
    assert told.act("--do-it") == []  # the same messages again change nothing
    assert (cluster.sinfo()["node-0"][0], cluster.sinfo()["node-1"][0]) == ("drained", "idle")

    on_node_1 = replace(on_node_0, revision=2, event="changed", suspects=(replace(GPU, host="node-1"),))
    told.tell(on_node_1)
    released, cordoned = told.act("--do-it")
    assert released.startswith("released   node-0: the verdict now says GPU 0 on node-1")
    assert cordoned.startswith("cordoned   node-1: ")
    assert (cluster.sinfo()["node-0"][0], cluster.sinfo()["node-1"][0]) == ("idle", "drained")

    told.tell(replace(on_node_1, revision=3, event="closed", state="closed", close_reason="recovered"))
    assert told.act("--do-it") == ["released   node-1: the verdict closed: recovered (job llama)"]
    assert cluster.sinfo()["node-1"] == ("idle", "none")


@needs_slurm
@pytest.mark.integration
def test_a_consumer_that_was_killed_is_followed_by_one_that_finishes_and_ends_when_asked(
    cluster: SlurmCluster, kafka_bootstrap: str, topic_prefix: str
) -> None:
    told = Told("slurm", kafka_bootstrap, topic_prefix)
    verdict = replace(VERDICT, suspects=(replace(GPU, host="node-0"),))
    with told.acting() as first:
        told.tell(verdict)
        cluster.wait_for("drained", "node-0")
        first.kill()
        first.wait(60)
    told.tell(replace(verdict, revision=2, event="closed", state="closed", close_reason="recovered"))
    with told.acting() as second:  # once the group has found out that the first is dead
        cluster.wait_for("idle", "node-0")
        second.terminate()
        assert second.wait(60) == 0
        assert second.stdout is not None
        assert second.stdout.read() == "released   node-0: the verdict closed: recovered (job llama)\n"


def test_a_reason_of_several_lines_is_that_of_its_node_and_ends_nothing(tmp_path: Path) -> None:
    """Operators and health checks give such reasons: a single one on the cluster ended `act` at each start."""
    told = "node-0|drained|irregulars: cordon-1-2 slow\nnode-1|drained|fan 3\nfan 4\x85 too\n\nnode-2|idle|none\n"
    (tmp_path / "told").write_text(told, encoding="utf-8")
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\ncat '{tmp_path}/told'\n")
    (tmp_path / "sinfo").chmod(0o755)
    nodes = SlurmNodes(tmp_path)
    assert nodes.marked().cordoned == {"node-0": "cordon-1-2"}
    assert nodes.obstacle("node-1") == "it is drained already (fan 3)"
    assert nodes.obstacle("node-2") is None
