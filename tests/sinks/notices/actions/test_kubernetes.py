"""Cordons, conditions and their undoing, against a server that behaves as the API does for nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from irregulars.errors import InputError, ServiceError, ServiceRefused, ServiceUnavailable
from irregulars.sinks.notices.actions.actions import decode_actions, encode_actions
from irregulars.sinks.notices.actions.actor import Proposal
from irregulars.sinks.notices.actions.kubernetes import (
    CONDITION,
    CORDONED,
    LABEL,
    UNDONE,
    VERDICT,
    ApiAccess,
    KubernetesApi,
    KubernetesNodes,
    api_access,
)
from tests.integration.secured_kafka import Authority
from tests.sinks.notices.actions.kubernetes_server import READY, TOKEN, KubernetesServer
from tests.sinks.notices.actions.told import Told
from tests.sinks.notices.made_up_notices import GPU, notice_of
from tests.sinks.notices.made_up_notices import VERDICT as ACCUSING

CLEAN = {"kubernetes.io/hostname": "node-1"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(authority: Authority) -> Iterator[KubernetesServer]:
    with KubernetesServer(*authority.issue("api"), "node-1", "node-2", "node-3") as server:
        yield server


@pytest.fixture
def access(server: KubernetesServer, authority: Authority, tmp_path: Path) -> ApiAccess:
    (tmp_path / "token").write_text(TOKEN + "\n")
    return ApiAccess(server.url, tmp_path / "token", authority.certificate)


@pytest.fixture
def nodes(access: ApiAccess) -> KubernetesNodes:
    return KubernetesNodes(KubernetesApi(access))


def proposal(host: str = "node-1", kind: str = "slow_nic") -> Proposal:
    verdict = replace(ACCUSING, kind=kind, suspects=(replace(GPU, host=host),))
    message = decode_actions(encode_actions(notice_of(verdict)))
    return Proposal(message, message.actions[0])


def conditions(server: KubernetesServer, name: str = "node-1") -> dict[str, dict[str, str]]:
    return {one["type"]: one for one in server.nodes[name]["status"]["conditions"]}


def test_a_cordoned_node_is_marked_and_given_back_as_it_was(server: KubernetesServer, nodes: KubernetesNodes) -> None:
    one, before = proposal(), server.nodes["node-1"]
    assert nodes.cordon(one) is None
    node = server.nodes["node-1"]
    assert node["spec"] == {"podCIDR": "10.0.0.0/24", "unschedulable": True}
    assert node["metadata"]["annotations"] == {CORDONED: one.action.action_id, VERDICT: "llama:0:60:0"}
    assert nodes.marked().cordoned == {"node-1": one.action.action_id}
    assert nodes.release("node-1", "recovered") is None
    nodes.accuse({})
    node = server.nodes["node-1"]
    assert (node["spec"], node["metadata"]["labels"]) == (before["spec"], CLEAN)
    assert node["metadata"]["annotations"] == {}
    assert (nodes.marked().cordoned, nodes.marked().undone) == ({}, {})


def test_all_pages_of_marked_nodes_are_read_and_a_node_that_there_is_not_is_named(nodes: KubernetesNodes) -> None:
    for host in ("node-1", "node-2", "node-3"):
        nodes.cordon(proposal(host))
    assert nodes.cordon(proposal("node-77")) == "Kubernetes knows no node node-77"
    nodes.accuse({"node-77": proposal("node-77")})
    assert set(nodes.marked().cordoned) == {"node-1", "node-2", "node-3"}


def test_a_node_that_others_cordoned_is_never_touched(server: KubernetesServer, nodes: KubernetesNodes) -> None:
    server.change("node-1", {"spec": {"unschedulable": True}})
    before = server.nodes["node-1"]
    assert nodes.cordon(proposal()) == "it is cordoned already, and not by us"
    assert nodes.release("node-1", "recovered") == "the mark was taken off: it is somebody else's now"
    assert server.nodes["node-1"] == before


def test_who_takes_the_mark_off_takes_the_node_over(server: KubernetesServer, nodes: KubernetesNodes) -> None:
    nodes.cordon(proposal())
    server.change("node-1", {"metadata": {"annotations": {CORDONED: None}}})
    assert nodes.marked().cordoned == {}
    nodes.accuse({})
    assert server.nodes["node-1"]["spec"]["unschedulable"] is True


def test_who_uncordons_is_seen_and_a_later_cordon_theirs(server: KubernetesServer, nodes: KubernetesNodes) -> None:
    one = proposal()
    nodes.cordon(one)
    server.change("node-1", {"spec": {"unschedulable": None}})
    undone = {"node-1": one.action.action_id}
    assert (nodes.marked().cordoned, nodes.marked().undone) == ({}, undone)
    nodes.accuse({"node-1": one})
    marks = {UNDONE: one.action.action_id, VERDICT: "llama:0:60:0"}
    assert server.nodes["node-1"]["metadata"]["annotations"] == marks
    assert nodes.marked().undone == undone
    server.change("node-1", {"spec": {"unschedulable": True}})
    assert (nodes.marked().cordoned, nodes.marked().undone) == ({}, undone)
    nodes.release("node-1", "recovered")
    nodes.accuse({})
    assert server.nodes["node-1"]["spec"]["unschedulable"] is True
    assert server.nodes["node-1"]["metadata"]["annotations"] == {}


def test_a_write_in_between_is_not_overwritten_and_after_five_it_is_tried_later(
    server: KubernetesServer, nodes: KubernetesNodes
) -> None:
    others: list[dict[str, Any]] = [{"metadata": {"labels": {"pool": "b"}}}, {"spec": {"unschedulable": True}}]
    server.before_patch = lambda: server.change("node-1", others.pop(0)) if others else None
    assert nodes.cordon(proposal()) == "it is cordoned already, and not by us"
    node = server.nodes["node-1"]
    assert node["metadata"]["labels"] == CLEAN | {"pool": "b"}
    assert "annotations" not in node["metadata"]
    server.before_patch = lambda: server.change("node-2", {"metadata": {"labels": {"pool": "c"}}})
    with pytest.raises(ServiceUnavailable, match="node node-2 must stay as it is for a moment; got 5 changes"):
        nodes.cordon(proposal("node-2"))


def test_an_accused_node_shows_it_beside_other_conditions(server: KubernetesServer, nodes: KubernetesNodes) -> None:
    nodes.accuse({"node-1": proposal()})
    found = conditions(server)
    assert found["Ready"] == READY
    assert (found[CONDITION]["status"], found[CONDITION]["reason"]) == ("True", "SlowNic")
    assert found[CONDITION]["message"].startswith("slow NIC in llama: GPU 0 on node-1")
    assert server.nodes["node-1"]["metadata"]["labels"] == CLEAN | {LABEL: "true"}
    assert "unschedulable" not in server.nodes["node-1"]["spec"]
    nodes.accuse({})
    assert (conditions(server)[CONDITION]["status"], conditions(server)["Ready"]) == ("False", READY)
    assert server.nodes["node-1"]["metadata"]["labels"] == CLEAN


def test_a_condition_that_conflicts_is_written_later(server: KubernetesServer, nodes: KubernetesNodes) -> None:
    # The server's own retries of a patch without a version are over: much is written at the same time.
    server.fail_patches = 409
    with pytest.raises(ServiceUnavailable, match="got status 409"):
        nodes.accuse({"node-1": proposal()})
    server.fail_patches = None
    nodes.accuse({"node-1": proposal()})
    assert conditions(server)[CONDITION]["status"] == "True"


def test_a_node_that_may_not_be_changed_keeps_no_other_from_showing_that_it_is_accused(
    server: KubernetesServer, nodes: KubernetesNodes
) -> None:
    both = {host: proposal(host) for host in ("node-1", "node-2")}
    nodes.accuse({"node-3": proposal("node-3")})
    server.denied = {"node-1"}
    with pytest.raises(ServiceUnavailable, match=r"^Kubernetes must allow PATCH \S*/node-1; got status 403: denied"):
        nodes.accuse(both)
    assert [conditions(server, host).get(CONDITION, {}).get("status") for host in server.nodes] == [
        None, "True", "False",
    ]  # fmt: skip


def test_the_condition_of_a_node_that_we_hold_stays(server: KubernetesServer, nodes: KubernetesNodes) -> None:
    nodes.cordon(proposal())
    nodes.accuse({"node-1": proposal()})
    nodes.accuse({})
    assert conditions(server)[CONDITION]["status"] == "True"
    assert set(nodes.marked().cordoned) == {"node-1"}


@pytest.mark.parametrize(("status", "error", "text"), [
    (401, ServiceRefused, r"must allow GET /api/v1/nodes; got status 401.*infra/kit/kubernetes/components/actor"),
    (403, ServiceRefused, r"status 403"),
    (415, ServiceRefused, r"status 415"),
    (409, ServiceUnavailable, r"must answer now; got status 409"),
    (429, ServiceUnavailable, r"must answer now; got status 429"),
    (503, ServiceUnavailable, r"status 503"),
])  # fmt: skip
def test_a_server_that_refuses_is_told_from_one_that_is_away(
    server: KubernetesServer, nodes: KubernetesNodes, status: int, error: type[ServiceError], text: str
) -> None:
    server.fail = status
    with pytest.raises(error, match=text):
        nodes.marked()


def test_a_server_that_is_away_or_not_trusted_gets_no_token(access: ApiAccess, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", "stranger").certificate
    for change, text in (
        ({"server": "https://127.0.0.1:1"}, r"Kubernetes at https://127.0.0.1:1 must answer"),
        ({"ca_file": stranger}, "CERTIFICATE_VERIFY_FAILED"),
    ):
        with pytest.raises(ServiceUnavailable, match=text) as caught:
            KubernetesNodes(KubernetesApi(replace(access, **change))).marked()
        assert TOKEN not in str(caught.value)


def test_the_token_is_read_anew_and_waited_for_once_it_was_there(access: ApiAccess, nodes: KubernetesNodes) -> None:
    assert access.token_file is not None
    access.token_file.write_text("an old one")
    with pytest.raises(ServiceRefused, match="status 401: Unauthorized"):
        nodes.marked()
    access.token_file.write_text(TOKEN)
    assert nodes.marked().cordoned == {}
    access.token_file.unlink()
    for error, ask in ((ServiceUnavailable, nodes.marked), (InputError, lambda: KubernetesApi(access))):
        with pytest.raises(error, match="--token-file must be a readable file; got No such file"):
            ask()


def test_a_pod_s_service_account_is_the_default() -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    found = api_access(inside, None, None, None)
    assert (found.server, found.token_file and found.token_file.name) == ("https://10.0.0.1:6443", "token")
    given = api_access(inside, "https://api:6443/", Path("t"), None)
    assert given == ApiAccess("https://api:6443", Path("t"), None)


@pytest.mark.parametrize(("server", "text"), [
    (None, "--server must be given outside of a pod"),
    ("http://api:6443", "--server must be https://…, as the token goes there"),
    ("https://me:secret@api", "without credentials; got https://…"),
    ("api:6443", "--server must be https://host:port"),
])  # fmt: skip
def test_a_server_that_cannot_be_one_is_refused(server: str | None, text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
        api_access({}, server, None, None)
    assert "secret" not in str(caught.value)


# --- the whole: a notice on the broker, the command, the cluster ----------------------------------------------------


@pytest.mark.integration
def test_the_command_cordons_the_accused_node_and_gives_it_back(
    server: KubernetesServer, access: ApiAccess, kafka_bootstrap: str, topic_prefix: str
) -> None:
    told = Told("kubernetes", kafka_bootstrap, topic_prefix)
    account = ("--server", access.server, "--token-file", str(access.token_file), "--ca-file", str(access.ca_file))
    told.tell(ACCUSING)

    assert told.act(*account)[1].startswith("would cordon   node-1: slow rank in llama")
    assert server.writes == []

    assert told.act(*account, "--do-it")[0].startswith("cordoned   node-1: ")
    writes = len(server.writes)
    assert told.act(*account, "--do-it") == []
    assert len(server.writes) == writes
    assert server.nodes["node-1"]["spec"]["unschedulable"] is True
    assert conditions(server)[CONDITION]["status"] == "True"

    other = replace(ACCUSING, revision=2, event="changed", suspects=(replace(GPU, host="node-2"),))
    told.tell(other)
    released, cordoned = told.act(*account, "--do-it")
    assert released.startswith("released   node-1: the verdict now says GPU 0 on node-2")
    assert cordoned.startswith("cordoned   node-2: ")
    assert server.nodes["node-1"]["metadata"]["labels"] == CLEAN
    assert server.nodes["node-1"]["spec"] == {"podCIDR": "10.0.0.0/24"}
    assert conditions(server)[CONDITION]["status"] == "False"

    told.tell(replace(other, revision=3, event="closed", state="closed", close_reason="restarted"))
    assert told.act(*account, "--do-it") == []  # its job left it: nobody has seen it well
    assert server.nodes["node-2"]["spec"]["unschedulable"] is True
