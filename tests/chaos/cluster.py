"""Three brokers of Apache Kafka that hold copies of one another's partitions; all reach each through gates."""

from __future__ import annotations

import base64
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from irregulars.infra.services.loopback import HOST, free_port
from tests.apache_kafka.broker import KafkaBroker
from tests.chaos.network import Gate, Gates

_CLUSTER_ID: Final = base64.urlsafe_b64encode(uuid.UUID(int=7).bytes).decode().rstrip("=")


class Node(KafkaBroker):
    """One broker of a cluster, and controller as well."""

    def __init__(self, number: int, directory: Path) -> None:
        super().__init__(directory / f"kafka-{number}", start_timeout_s=90.0)
        self.number: Final = number
        self.controller_port: Final = free_port()
        self.internal_port: Final = free_port()
        self.port: Final = self._port
        self._cluster_id = _CLUSTER_ID
        self.extra: dict[str, str] = {}

    def _own_properties(self) -> dict[str, str]:
        return self.extra


class KafkaCluster:
    """Brokers that start together.

    Attributes
    ----------
    bootstrap
        For the system under test: through the gates.
    direct
        For those who watch it: no fault of the network reaches them.
    gates
        Where clients reach each broker.
    inner_gates
        Where other brokers reach each, for copies of partitions and as a controller.
    """

    def __init__(self, count: int, directory: Path, gates: Gates) -> None:
        self.nodes: Final = [Node(number, directory) for number in range(1, count + 1)]
        self.gates: Final[list[Gate]] = [gates.open(node.port) for node in self.nodes]
        self.inner_gates: Final = [
            (gates.open(node.internal_port), gates.open(node.controller_port)) for node in self.nodes
        ]
        voters = [
            f"{node.number}@{HOST}:{own.port}" for node, (_, own) in zip(self.nodes, self.inner_gates, strict=True)
        ]
        copies = str(min(count, 3))
        for node, gate, (inner, _) in zip(self.nodes, self.gates, self.inner_gates, strict=True):
            watched = f"{HOST}:{free_port()}"
            node.extra = {
                "node.id": str(node.number),
                "listeners": f"PLAINTEXT://{node.bootstrap},INTERNAL://{HOST}:{node.internal_port},WATCH://{watched},"
                f"CONTROLLER://{HOST}:{node.controller_port}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{gate.port},INTERNAL://{HOST}:{inner.port},"
                f"WATCH://{watched}",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,"
                "WATCH:PLAINTEXT",
                "inter.broker.listener.name": "INTERNAL",
                "controller.quorum.voters": ",".join(voters),
                "offsets.topic.replication.factor": copies,
                "default.replication.factor": copies,
                "min.insync.replicas": "2" if count > 2 else "1",
                "unclean.leader.election.enable": "false",
            }
        self.bootstrap: Final = ",".join(f"{HOST}:{gate.port}" for gate in self.gates)
        watched_at = [node.extra["listeners"].split("WATCH://")[1].split(",")[0] for node in self.nodes]
        self.direct: Final = ",".join(watched_at)

    def __enter__(self) -> KafkaCluster:
        with ThreadPoolExecutor(len(self.nodes)) as together:  # one alone has no quorum, and never answers
            for started in [together.submit(node.start) for node in self.nodes]:
                started.result()
        return self

    def __exit__(self, *error: object) -> None:
        for node in self.nodes:
            node.close()
