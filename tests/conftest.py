"""What tests stand on: recordings, a real broker, a real database. Services start with the first test that asks."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import hypothesis
import pytest

from irregulars.errors import IrregularsError
from irregulars.infra.runs import child_process as loopback
from irregulars.infra.runs.demo_database import DemoDatabase
from tests.apache_kafka.broker import KafkaBroker
from tests.run_checks import FAULTY, SERVED_FOLDERS
from tests.services import SCRATCH, SharedBroker

# An example, and drawing it, may be slow where much else runs. Each run draws others: ten of them keep `make test`
# within its time, .ci/run tries 25 (usual), and `HYPOTHESIS_PROFILE=thorough make test` 200.
PROFILES = {"quick": 10, "usual": 25, "thorough": 200}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
for name, count in PROFILES.items():
    hypothesis.settings.register_profile(
        name, deadline=None, max_examples=count, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile(PROFILE)


def examples(usual: int) -> int:
    """How many examples a test tries for which the usual 25 are too many or too few: `usual` in the profile usual."""
    return max(1, round(usual * PROFILES[PROFILE] / PROFILES["usual"]))


# A shell lets what it starts in the background ignore Ctrl-C, and children inherit it: tests of Ctrl-C need it back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "tests" / "recordings"

SERVICES = {"kafka_bootstrap", "restarted_broker", "clickhouse"}

# A port that a test chooses is bound a while later: meanwhile no other process of tests, and nothing that chooses one
# from the range of the product, may take it.
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) + int(
    os.environ.get("TESTS_BESIDE", 0)
)
loopback._PORTS = range(10_000 + _PROCESS % 8 * 1_200, 11_200 + _PROCESS % 8 * 1_200)  # type: ignore[misc]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that asks for a service; refuse one in a folder where no run with services looks for it."""
    for item in items:
        if not SERVICES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("integration")
        if item.get_closest_marker("integration") and not item.nodeid.startswith((*SERVED_FOLDERS, *FAULTY)):
            places = ", ".join(SERVED_FOLDERS)
            raise pytest.UsageError(f"a test with a service must be in {places}; got {item.nodeid}")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let collections of garbage leave alone the modules and tests that are there until the end."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class ClickHouseAddress:
    """Where the tests' database is, and who we are there; `url` is ``http://host:port``, without credentials."""

    url: str
    user: str
    password: str = field(repr=False)
    database: str


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """Address of a broker that all tests share and none may stop: ``KAFKA_BOOTSTRAP``, else our own."""
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        yield given
        return
    with failing_in_one_line(), SharedBroker() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def restarted_broker() -> Iterator[KafkaBroker]:
    """The broker of `kafka_broker`; tests take that one."""
    with failing_in_one_line(), KafkaBroker() as broker:
        yield broker


@pytest.fixture
def kafka_broker(restarted_broker: KafkaBroker) -> KafkaBroker:
    """A running broker that the test may stop, kill and start; the next test finds it running, topics and all."""
    with failing_in_one_line():
        restarted_broker.start()
    return restarted_broker


@pytest.fixture(scope="session")
def clickhouse() -> Iterator[ClickHouseAddress]:
    """The tests' database: ``CLICKHOUSE_URL`` (http://user:password@host:port/database), else our own server."""
    given = os.environ.get("CLICKHOUSE_URL")
    if given:
        yield clickhouse_address(given)
        return
    with failing_in_one_line(), DemoDatabase(scratch=SCRATCH) as own:
        yield ClickHouseAddress(own.url, own.user, own.password, own.database)


@pytest.fixture
def topic_prefix() -> str:
    """A prefix of topics for this test alone."""
    return f"test-{uuid.uuid4().hex[:12]}."


@pytest.fixture(scope="session")
def recordings() -> Path:
    return RECORDINGS


@pytest.fixture(scope="session")
def shared_trace() -> Callable[[str], Path]:
    """Find a trace directory of other origin by name; skip where there is none, and with ``CI=true`` fail."""
    return find_shared_trace


@contextmanager
def failing_in_one_line() -> Iterator[None]:
    """Turn our errors (no Java, no Maven, a service that does not come up) into a failure of one line."""
    try:
        yield
    except IrregularsError as error:
        pytest.fail(str(error), pytrace=False)


def clickhouse_address(text: str) -> ClickHouseAddress:
    """Take ``http://user:password@host:port/database`` apart; a wrong one fails the test without showing it."""
    parts = urlsplit(text)
    database = parts.path.strip("/")
    if parts.scheme not in ("http", "https") or not (parts.hostname and parts.username and database):
        pytest.fail("CLICKHOUSE_URL must be http://user:password@host:port/database; it is not", pytrace=False)
    url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return ClickHouseAddress(url, unquote(parts.username), unquote(parts.password or ""), database)


def find_shared_trace(name: str) -> Path:
    """Return the directory of a trace that is not ours to copy."""
    folder = Path(os.environ.get("SHARED_TRACES") or ROOT.parent / "shared" / "traces")
    if (folder / name).is_dir():
        return folder / name
    reason = f"shared trace {name} must be in SHARED_TRACES or ../shared/traces; it is not"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
