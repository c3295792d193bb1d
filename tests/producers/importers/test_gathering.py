"""Folders and archives as people send them, and as nobody should."""

from __future__ import annotations

import bz2
import io
import lzma
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from irregulars.errors import InputError
from irregulars.producers.importers import gathering
from irregulars.producers.importers.gathering import gather
from tests.producers.importers.test_hostile_files import VALID, dump_bytes


def scratch(folder: Path) -> Path:
    (folder / "scratch").mkdir()
    return folder / "scratch"


def tar_of(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, value in members.items():
            one = tarfile.TarInfo(name)
            one.size = len(value)
            archive.addfile(one, io.BytesIO(value))
    return path


def test_kinds_are_told_by_content_wherever_the_files_lie(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for kind, make in VALID.items():
        (source / "deep" / kind).mkdir(parents=True)
        (source / "deep" / kind / "file_0").write_bytes(make())
    (source / "notes.md").write_text("the night of the 21st")
    (source / "empty_7").touch()
    found = gather(source, scratch(tmp_path))
    assert {kind: len(files) for kind, files in found.files.items()} == dict.fromkeys(VALID, 1)
    assert (len(found.unknown), [(one.reason, one.rank) for one in found.left_out]) == (1, [("empty", 7)])


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz", ".zip", ".data"])
def test_archives_are_unpacked_whatever_they_are_called(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"dumps{ending}"
    if ending == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("node0/rank_0", dump_bytes())
    else:
        tar_of(path, {"node0/rank_0": dump_bytes()}, "w" if ending == ".tar" else "w:gz")
    (file,) = gather(path, scratch(tmp_path)).files["flight-recorder"]
    assert file.read_bytes() == dump_bytes()


@pytest.mark.parametrize("pack", [lzma.compress, bz2.compress, partial(pa.compress, codec="zstd", asbytes=True)])
def test_packed_files_and_archives_are_unpacked(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "packed"
    for value in (dump_bytes(), tar_of(tmp_path / "a.tar", {"rank_0": dump_bytes()}, "w").read_bytes()):
        path.write_bytes(pack(value))
        (tmp_path / f"{len(value)}").mkdir()
        (file,) = gather(path, tmp_path / f"{len(value)}").files["flight-recorder"]
        assert file.read_bytes() == dump_bytes()
    # A packed log that is cut gives what came before.
    lines = b"[Rank 3] Watchdog caught collective operation timeout\n" + Random(3).randbytes(300_000).hex().encode()
    path.write_bytes(pack(lines)[:-9])
    found = gather(path, scratch(tmp_path))
    assert len(found.files["watchdog"]) == 1
    assert any("must be a complete archive" in one.reason for one in found.left_out)


def test_members_and_links_of_archives_can_not_leave_the_folder(tmp_path: Path) -> None:
    names = ["../../evil_1", "/etc/evil_2", "a/../../../evil_3", "..\\evil_4", "x" * 300]
    folder = scratch(tmp_path)
    gather(tar_of(tmp_path / "a.tar.gz", dict.fromkeys(names, dump_bytes())), folder)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "a.tar.gz"]
    assert len(written) == len(names)
    assert all(folder in path.parents for path in written)
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in (("link_0", tarfile.SYMTYPE), ("hard_1", tarfile.LNKTYPE), ("pipe_2", tarfile.FIFOTYPE)):
            one = tarfile.TarInfo(name)
            one.type, one.linkname = kind, "/etc/passwd"
            archive.addfile(one)
    assert gather(path, folder).files == {}


def test_a_packed_file_above_us_leaves_its_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / "dump_3.xz").write_bytes(lzma.compress(dump_bytes()))
    (tmp_path / "dump_3").write_bytes(b"mine")
    monkeypatch.chdir(deep)
    found = gather(Path("../../dump_3.xz"), scratch(tmp_path))
    assert (tmp_path / "dump_3").read_bytes() == b"mine"
    assert [one.is_relative_to(tmp_path / "scratch") for one in found.files["flight-recorder"]] == [True]


def test_archives_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(gathering, "MOST_FILES", 20)
    folder = scratch(tmp_path)
    with pytest.raises(InputError, match=r"a\.tar\.gz: must unpack to at most 1048576 bytes"):
        gather(tar_of(tmp_path / "a.tar.gz", {"zeros": bytes(2 << 20)}), folder)
    with pytest.raises(InputError, match=r"b\.tar: must hold at most 20 files"):
        gather(tar_of(tmp_path / "b.tar", {f"{n}": b"x" for n in range(50)}, "w"), folder)


def test_a_cut_archive_gives_what_came_before(tmp_path: Path) -> None:
    whole = tar_of(tmp_path / "whole.tar", {f"rank_{n}": dump_bytes() for n in range(40)}, "w")
    path = tmp_path / "cut.tar"
    folder = scratch(tmp_path)
    # Within a member, within the header of one, and behind one
    with tarfile.open(whole) as archive:
        offsets = [one.offset for one in archive]
    for size in (offsets[9] + 700, offsets[9] + 100, offsets[9]):
        path.write_bytes(whole.read_bytes()[:size])
        found = gather(path, folder)
        assert len(found.files["flight-recorder"]) >= 9
        assert any("must be a complete archive" in one.reason for one in found.left_out)


def test_of_a_packed_archive_that_is_cut_the_begin_of_the_last_member_is_read(tmp_path: Path) -> None:
    lines = b"[Rank 3] Watchdog caught collective operation timeout\n" + Random(3).randbytes(300_000).hex().encode()
    whole = tar_of(tmp_path / "whole.tar.gz", {"train.log": lines}, "w:gz")
    path = tmp_path / "cut.tar.gz"
    path.write_bytes(whole.read_bytes()[:100_000])
    found = gather(path, scratch(tmp_path))
    (log,) = found.files["watchdog"]
    assert 100_000 < log.stat().st_size < len(lines)
    assert ["must be a complete archive" in one.reason for one in found.left_out] == [True]


@pytest.mark.parametrize(("mode", "ending"), [("w:xz", ".tar.xz"), ("w:bz2", ".tar.bz2"), ("w:gz", ".tar.gz")])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_damaged_archive_is_left_out_with_its_reason(tmp_path: Path, mode: str, ending: str, share: float) -> None:
    random = Random(3)
    path = tar_of(tmp_path / f"dumps{ending}", {f"noise_{n}": random.randbytes(9_000) for n in range(40)}, mode)
    value = bytearray(path.read_bytes())
    at = int(share * len(value))
    value[at : at + 64] = bytes(64)
    path.write_bytes(value)
    found = gather(path, scratch(tmp_path))
    assert found.left_out or found.unknown


def test_of_starts_that_torchrun_logs_apart_the_newest_counts(tmp_path: Path) -> None:
    run = tmp_path / "in" / "none_k2"
    for attempt in (2, 10):
        (run / f"attempt_{attempt}" / "0").mkdir(parents=True)
        (run / f"attempt_{attempt}" / "0" / "stderr.log").write_text("[Rank 0] Watchdog caught collective operation")
    found = gather(tmp_path / "in", scratch(tmp_path))
    assert found.files["watchdog"] == [run / "attempt_10" / "0" / "stderr.log"]
    assert [(one.name, one.reason) for one in found.left_out] == [
        (str(run / "attempt_2"), "of an earlier start of the job")
    ]


def test_a_link_to_a_folder_is_not_entered(folder: Path, tmp_path: Path) -> None:
    (folder / "again").symlink_to(folder)
    found = gather(folder, scratch(tmp_path))
    assert [one.reason for one in found.left_out] == ["a link to a folder"]


def test_a_log_with_answers_of_ras_is_of_both_kinds_and_utf_16_is_text(folder: Path, tmp_path: Path) -> None:
    answer = "NCCL version 2.26.2\nJob summary\nCommunicators... (0.01s)\n"
    (folder / "a.txt").write_text(answer + "[Rank 3] Watchdog caught collective operation timeout")
    (folder / "b.txt").write_text("[Rank 3] Watchdog caught collective operation timeout", encoding="utf-16")
    found = gather(folder, scratch(tmp_path)).files
    assert {kind: [path.name for path in files] for kind, files in found.items()} == {
        "nccl-ras": ["a.txt"], "watchdog": ["a.txt", "b.txt"],
    }  # fmt: skip


def test_a_python_without_lzma_reads_the_other_archives(folder: Path, tmp_path: Path) -> None:
    """Python is built without it where the headers of liblzma were not there."""
    tar_of(folder / "good.tar.gz", {"dump_3": dump_bytes()})
    tar_of(folder / "packed.tar.xz", {"dump_4": dump_bytes()}, "w:xz")
    code = (
        "import sys; sys.modules['_lzma'] = None\n"
        "from pathlib import Path; from irregulars.producers.importers.gathering import gather\n"
        "print([p.name for p in gather(Path(sys.argv[1]), Path(sys.argv[2])).files['flight-recorder']])"
    )
    command = [sys.executable, "-c", code, str(folder), str(scratch(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "['dump_3']", done.stderr
