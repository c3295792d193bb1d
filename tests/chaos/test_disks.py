"""A disk of our own fills up, and has room again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.chaos.disks import can_mount, disks

ROOM = bytes(1_000_000)


@pytest.mark.skipif(not can_mount(), reason="needs root, who may mount a disk")
def test_a_full_disk_takes_no_more_until_it_is_mended(tmp_path: Path) -> None:
    with disks(tmp_path, "database") as found:
        disk = found["database"]
        (disk.path / "before").write_bytes(ROOM)
        disk.fill()
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (disk.path / "meanwhile").write_bytes(ROOM)
        assert (disk.path / "before").read_bytes() == ROOM
        disk.mend()
        (disk.path / "after").write_bytes(ROOM)
    assert list((tmp_path / "database").iterdir()) == []
