from __future__ import annotations

from pathlib import Path

import pytest

from irregulars.producers.torch_hook.identity import machine_has_gpus


@pytest.mark.parametrize(
    ("names", "has_gpus"),
    [
        ((), False),
        (("null", "nvidiactl", "nvidia-caps"), False),
        (("nvidia0",), True),
        (("kfd",), True),
        (("dxg",), True),
    ],
)
def test_gpus_are_seen_by_their_device_files(tmp_path: Path, names: tuple[str, ...], has_gpus: bool) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert machine_has_gpus(tmp_path) is has_gpus
