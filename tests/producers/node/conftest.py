"""Fixtures of the node's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.producers.node.nvml_stub import NvmlStub, load_stub
from tests.producers.node.sysfs_trees import Sysfs


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [text for text in caplog.messages if f"event={event} " in text]


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


@pytest.fixture(scope="session")
def loaded_stub(tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    return load_stub(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(loaded_stub: NvmlStub) -> Iterator[NvmlStub]:
    """Two GPUs that answer nothing yet but that they are there; NVML is initialised."""
    loaded_stub.reset(gpus=2)
    from irregulars.producers.node.gpu import pynvml

    pynvml.nvmlInit()
    yield loaded_stub
    pynvml.nvmlShutdown()
