from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.infra.conftest import Run, refused
from tests.producers.importers.inspector_lines import collective, context, lines
from tests.producers.importers.test_kineto_trace import NAMED, kernel, launch, step, trace_file


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of two processes; the second one is always last."""
    folder = tmp_path / "job-7"
    folder.mkdir()
    for rank in (0, 1):
        whole = [{**context(rank), **collective(n, 90 - 40 * rank, 1000 * n + 40 * rank)} for n in range(4)]
        (folder / f"host-pid{rank}.log").write_bytes(lines(*whole))
    return folder


def test_it_writes_a_trace_that_can_be_analysed_and_says_who_was_last(run: Run, logs: Path) -> None:
    status, out, err = run("import", "nccl-inspector", str(logs), "out")
    assert (status, err) == (0, "")
    assert "out: 2 of 2 ranks, 8 operators on 1 communicator, no iterations marked, clock shared" in out
    assert "Iterations: they are inferred from the operators when it is read." in out
    assert "rank 1 was last in all 4 of the all_reduces on 0xab, and was waited for 160 µs" in out
    assert "Next: irregulars analyze out" in out
    status, out, _ = run("analyze", "out", "--json")
    assert status == 0
    assert json.loads(out)["job"] == "job-7"


def test_its_result_is_json_if_wanted_and_nothing_else(run: Run, logs: Path) -> None:
    status, out, _ = run("import", "nccl-inspector", str(logs), "out", "--job", "mine", "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["job"], found["operators"], len(found["collectives"])) == ("mine", 8, 4)
    assert (found["iterations"], found["iterations_marked"]) == (0, False)
    assert {one["last_rank"] for one in found["collectives"]} == {1}
    assert {one["ends_apart_ns"] for one in found["collectives"]} == {0}


def test_nobody_is_late_where_nobody_was_waited_for(run: Run, tmp_path: Path) -> None:
    for rank in (0, 1):
        whole = [{**context(rank), **collective(n, 90, 1000 * n)} for n in range(4)]
        (tmp_path / f"host-pid{rank}.log").write_bytes(lines(*whole))
    found = json.loads(run("import", "nccl-inspector", ".", "out", "--json")[1])
    assert (found["late_ranks"], len(found["collectives"])) == ([], 4)


def test_metrics_tell_a_rank_whose_cpu_does_not_run_ahead(run: Run, tmp_path: Path) -> None:
    """Of 4 ranks the CPU of rank 2 waits for each kernel before it launches the next one, 90 µs later."""
    for rank in range(4):
        events = [step(n, 10_000 * n, 10_000) for n in (1, 2)]
        for at in range(90):
            begin = 10_000 * (1 + at // 45) + 190 * (at % 45) + 1_009
            ahead = 9 if rank == 2 else 500 + 80 * at % 400 + 20 * rank
            length = 100 if rank == 2 else 185 + rank
            events += [launch(begin - ahead, at), kernel(begin, length, at, **NAMED)]
            if at % 45:
                events[-1] |= {"name": "gemm"}
                del events[-1]["args"]["Collective name"]
        trace_file(tmp_path / "in", rank, events, distributedInfo={"rank": rank, "world_size": 4})
    status, out, err = run("import", "kineto", "in", "out", "--metrics")
    assert (status, err) == (0, "")
    assert "issue latency of rank 2 is 9 µs, that of its peers " in out
    assert "its CPU does not run ahead of its GPU" in out
    assert "void within steps of rank 2 is 4" in out
    found = json.loads(run("import", "kineto", "in", "out", "--metrics", "--json")[1])["metrics"]
    assert {one["rank"] for one in found["differences"]} == {2}
    assert [one["issue_latency_ns"]["count"] for one in found["ranks"]] == [90] * 4
    (bandwidth,) = found["bandwidths"]
    assert (bandwidth["operator"], bandwidth["collectives"], bandwidth["ranks_seen"]) == ("all_reduce", 2, 4)


@pytest.mark.parametrize(("arguments", "message"), [
    (("nsight", "."),
     "kind must be one of kineto, flight-recorder, nccl-inspector, nccl-ras, watchdog; got 'nsight'"),
    (("kineto", "/nowhere"), "/nowhere: must be a file or a directory of files; got nothing"),
    (("kineto", "."), "must hold files to import; got an empty directory"),
    (("kineto", "/proc/self/mem"), "/proc/self/mem: must be complete and readable; got: "),
    (("nccl-inspector", "/etc/hostname"), "/etc/hostname: logs must hold coll_perf or p2p_perf records"),
    (("kinto", "."), "nccl-ras, watchdog; got 'kinto'; did you mean kineto?"),
    (("flight-recorder", "/etc/hostname"), "/etc/hostname: must be a complete pickle of plain data"),
])  # fmt: skip
def test_what_can_not_be_imported_is_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(run, "import", *arguments, "out")


def test_a_directory_that_can_not_be_written_is_one_line(run: Run, logs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file: must be a directory that can be written" in refused(
        run, "import", "nccl-inspector", str(logs), "file"
    )


def test_hosts_and_a_fabric_may_be_told(run: Run, logs: Path, tmp_path: Path) -> None:
    assert run("import", "nccl-inspector", str(logs), "out", "--host", "node-3=0", "--host", "node-4=1-7")[0] == 0
    ranks = json.loads((tmp_path / "out" / "job.json").read_text())["ranks"]
    assert [ranks[rank]["host"] for rank in ("0", "1")] == ["node-3", "node-4"]
    (tmp_path / "topology.conf").write_text(
        "SwitchName=leaf-1 Nodes=node-[0-9]\nSwitchName=spine-1 Switches=leaf-1\n"
    )
    told = ("--host", "node-7=1", "--fabric", str(tmp_path / "topology.conf"))
    assert run("import", "nccl-inspector", str(logs), "out", *told)[0] == 0
    job = json.loads((tmp_path / "out" / "job.json").read_text())
    assert job["ranks"]["1"]["switch"] == "leaf-1"
    assert job["fabric"] == {"leaf-1": ["spine-1"]}


@pytest.mark.parametrize(
    ("told", "message"),
    [(("node-3",), "host must be HOST=RANKS, as node-1=8-15"), (("a=0-3", "b=3"), "host of rank 3 must be one")],
)
def test_hosts_that_can_not_be_are_one_line(run: Run, logs: Path, told: tuple[str, ...], message: str) -> None:
    options = [part for one in told for part in ("--host", one)]
    assert message in refused(run, "import", "nccl-inspector", str(logs), "out", *options)
