from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs import data_directory
from irregulars.infra.runs.data_directory import DataDirectory, lock_directory


def test_a_directory_that_was_given_is_made_locked_and_kept(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / "a" / "b", "unused-")
    data.take()
    assert (data.path, data.is_temporary) == (tmp_path / "a" / "b", False)
    assert data.path.stat().st_mode & 0o777 == 0o700
    assert len(data.inherited) == 1
    (data.path / "kept").touch()
    data.remove()
    assert data.inherited == ()
    assert (data.path / "kept").exists()


def test_a_second_service_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    one, other = DataDirectory(tmp_path, ""), DataDirectory(tmp_path, "")
    one.take()
    with pytest.raises(InputError, match=rf"^data directory must not be in use; got .* \({tmp_path}\)\. Stop"):
        other.take()
    one.release()
    other.take()
    other.remove()


def test_a_temporary_one_lasts_until_it_is_removed() -> None:
    data = DataDirectory(None, "irregulars-test-")
    data.take()
    first = data.path
    assert first.name.startswith("irregulars-test-")
    data.release()
    data.take()
    assert data.path == first
    data.remove()
    data.remove()
    assert not first.exists()
    assert data.choose() != first
    data.remove()


def test_a_lock_lasts_while_a_child_holds_it_and_who_lets_go_in_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_directory(tmp_path)
    with subprocess.Popen(["sleep", "60"], pass_fds=(lock,)) as child:
        os.close(lock)
        with pytest.raises(InputError):
            lock_directory(tmp_path)
        child.kill()
    os.close(lock_directory(tmp_path))
    monkeypatch.setattr(data_directory, "_LETTING_GO_S", 60.0)  # on a busy machine a moment may be long
    threading.Timer(0.3, os.close, (lock_directory(tmp_path),)).start()
    os.close(lock_directory(tmp_path))
