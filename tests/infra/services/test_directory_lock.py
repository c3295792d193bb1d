from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.services.directory_lock import lock_directory


def test_a_directory_has_one_holder(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path)
    with pytest.raises(InputError, match=rf"^data directory must not be in use; got .* \({tmp_path}\)\. Stop"):
        lock_directory(tmp_path)
    os.close(lock)
    os.close(lock_directory(tmp_path))


def test_a_child_that_inherited_the_lock_holds_it_when_the_parent_lets_go(tmp_path: Path) -> None:
    lock = lock_directory(tmp_path)
    with subprocess.Popen(["sleep", "60"], pass_fds=(lock,)) as child:
        os.close(lock)
        with pytest.raises(InputError):
            lock_directory(tmp_path)
        child.kill()
    os.close(lock_directory(tmp_path))


def test_a_holder_that_lets_go_in_a_moment_is_waited_for(tmp_path: Path) -> None:
    threading.Timer(0.3, os.close, (lock_directory(tmp_path),)).start()
    os.close(lock_directory(tmp_path))
