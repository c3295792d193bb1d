"""Run checks, all of them even when one fails, and close with one summary: the body of ``make test``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from tests.services import shared_services

ROOT = Path(__file__).resolve().parent.parent
LINT = {
    "ruff check": ("ruff", "check", "--quiet", "."),
    "ruff format": ("ruff", "format", "--check", "--quiet", "."),
    "mypy --strict": ("mypy", "--no-error-summary"),
}
SIDE_BY_SIDE = ("--numprocesses=4", "--dist=loadfile", "--no-loadscope-reorder")
PLUGINS = ("-p", "tests.failures", "-p", "tests.time_limit")
PYTEST = ("pytest", "--quiet", "--durations=15", *SIDE_BY_SIDE, *PLUGINS)
# Compiled modules are kept, also where the environment forbids it: four processes of pytest and each command that a
# test starts would compile the whole product anew, which is half of the time that collecting the tests takes.
COMPILED = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache")}
# Processes of tests already fill the cores: threads of a library's sums would wait for each other.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Beside the tests of faults, as few changes need them and each takes long: pages in a browser, guides that are typed
# as they stand, installations, types that are fetched, and all that measures or breaks the product instead of being
# part of it.
FAULTY = (
    "tests/faults", "tests/benchmarks", "tests/chaos", "tests/fuzz",
    "tests/infra/console/heat_map/test_in_browser.py", "tests/infra/console/test_browser.py",
    "tests/infra/console/test_hostile_names.py",
    "tests/infra/console/test_live_job.py", "tests/infra/docs/test_detector_guide.py",
    "tests/infra/grafana/test_schema.py", "tests/infra/kit/test_installations.py",
    "tests/infra/kit/test_locked_install.py", "tests/integration/test_guides.py",
    "tests/integration/test_kit_units.py",
)  # fmt: skip
SINGLE = (
    "tests/infra/console/test_database_away.py::test_pages_say_that_the_database_is_away_and_are_back_with_it",
    "tests/infra/docs_site/test_hooks.py::test_links_between_pages_and_to_headings_are_those_of_the_repository",
    "tests/infra/docs_site/test_hooks.py::test_links_to_nowhere_end_the_build_and_each_is_named",
    "tests/infra/docs_site/test_hooks.py::test_the_site_has_every_page_and_fetches_nothing_from_outside",
    "tests/integration/test_agent.py::test_a_broker_that_comes_back_gets_everything_once",
    "tests/integration/test_agent.py::test_a_broker_that_stays_away_ends_the_agent_within_bounds",
    "tests/integration/test_command_line.py::test_ctrl_c_ends_the_demo_cleanly",
    "tests/integration/test_command_line.py::test_up_names_no_log_where_the_message_is_all_of_it",
    "tests/integration/test_command_line.py::test_up_tells_that_its_worker_has_ended_and_ends",
    "tests/integration/test_demo_database.py::test_no_server_is_left_behind_when_the_parent_goes",
    "tests/integration/test_demo_database.py::test_rows_and_password_survive_a_restart",
    "tests/integration/test_end_to_end.py::test_a_killed_worker_changes_nothing_in_the_result",
    "tests/integration/test_end_to_end.py::test_a_replay_with_other_batch_borders_changes_no_row",
    "tests/integration/test_end_to_end.py::test_what_was_told_before_the_kill_is_not_told_again",
    "tests/integration/test_node_agent.py::test_without_kafka_at_the_start_all_waits",
    "tests/integration/test_notify_many.py::test_a_thousand_alerts_are_a_few_notices_and_a_page",
    "tests/integration/test_secured_kafka.py::test_one_configuration_lets_every_client_in",
    "tests/integration/test_torch_exits.py::test_training_goes_on_without_a_broker_and_rows_come_later",
    "tests/sinks/notices/actions/test_action_feed.py::test_a_consumer_outlasts_a_broker_that_is_away_for_a_while",
    "tests/test_architecture.py::test_folders_of_a_training_repository_are_in_nobodys_way",
    "tests/test_architecture.py::test_of_an_installed_wheel_the_whole_kit_can_be_had",
    "tests/test_architecture.py::test_the_wheel_holds_every_source_and_data_file",
    "tests/test_architecture.py::test_the_wheel_holds_one_package_and_nothing_else",
)
"""Single ones, which stand beside what they share with others: what kills or installs, and the site."""
LEFT_OUT = (*(f"--ignore={path}" for path in FAULTY), *(f"--deselect={test}" for test in SINGLE))
# Tests with a service mostly wait, and answers have deadlines: four processes of them come first. What needs nothing
# but a core fills what they leave, with a lower priority. In one run for all, cores idle while all processes wait.
UNSERVED = "not integration"
SERVED_FOLDERS = ("tests/integration", "tests/infra", "tests/sinks")
SERVED = ("--numprocesses=4", *LEFT_OUT, *SERVED_FOLDERS, "-m", "integration and not torch")
FILLING = ("--numprocesses=2", *LEFT_OUT, "-m")
YIELDING = ("nice", "-n", "5")
BESIDE = {"TESTS_BESIDE": "4"}
"""How many processes of tests the run beside has: each process has ports of its own (`tests.conftest`)."""
TESTS = {"pytest services": (*PYTEST, *SERVED)}
FAST = (*PYTEST, *FILLING, f"{UNSERVED} and not slow and not torch")
TESTS_BESIDE, TESTS_FAST = {"pytest others": FAST}, {"pytest fast": FAST}
TRAINING = ("tests/producers/torch_hook", "tests/integration/test_live_demo.py")
TORCH = {"pytest torch": (*PYTEST, "-m", "torch", *TRAINING)}
FAULTS = {
    "pytest slow": (*PYTEST, *FILLING, f"{UNSERVED} and slow and not torch"),
    "pytest faults": (*PYTEST, *FAULTY, *SINGLE),
}
Results = list[tuple[bool, str]]


def run(name: str, arguments: tuple[str, ...]) -> tuple[bool, str]:
    """Run one check; show each line of pytest when it comes, and those of other checks if they fail."""
    is_pytest, started_s = "pytest" in arguments, time.monotonic()
    is_served = is_pytest and not arguments[-1].startswith(UNSERVED)
    lines = [f"--- {name}\n"]
    with shared_services() if is_served else nullcontext(BESIDE) as own:
        # Services of their own that somebody names are those to be tested
        environment = {**own, **ONE_THREAD, **os.environ, **COMPILED}
        command = [*(() if is_served else YIELDING), sys.executable, "-m", *arguments]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if is_pytest:
                    print("".join(lines), end="", flush=True)
                    lines.clear()
    if process.returncode and not is_pytest:
        print("".join(lines), flush=True)
    verdict = "ok" if process.returncode == 0 else f"FAILED (status {process.returncode})"
    return process.returncode == 0, f"  {name:<15} {time.monotonic() - started_s:7.1f} s  {verdict}"


def run_in_turn(checks: Mapping[str, tuple[str, ...]]) -> Results:
    return [run(*check) for check in checks.items()]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run_checks", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--lint", action="store_true", help="lint and types alone")
    which.add_argument("--fast", action="store_true", help="the tests alone that need no service, and are quick")
    which.add_argument("--torch", action="store_true", help="the tests alone that train with torch")
    which.add_argument("--faults", action="store_true", help="the tests of faults alone")
    parser.add_argument("--within-s", type=float, metavar="S", help="begin no test of faults after S seconds")
    chosen = parser.parse_args(arguments)
    faults = FAULTS
    if chosen.within_s is not None:
        faults = {
            name: (pytest, f"--within-s={chosen.within_s}", *others) for name, (pytest, *others) in FAULTS.items()
        }
    suites = ((chosen.lint, LINT), (chosen.fast, TESTS_FAST), (chosen.torch, TORCH), (chosen.faults, faults))
    first = next((suite for is_chosen, suite in suites if is_chosen), TESTS)
    with ThreadPoolExecutor() as beside:
        others = [beside.submit(run_in_turn, one) for one in (LINT, TESTS_BESIDE) if first is TESTS]
        results = run_in_turn(first)
        results = [*(result for one in others for result in one.result()), *results]
    passed = sum(is_ok for is_ok, _ in results)
    print("\n".join(["", f"{passed} of {len(results)} checks passed", *(line for _, line in results)]), flush=True)
    return 0 if passed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
