"""Fixtures for whole gateways. Nothing leaves this machine: every server is on 127.0.0.1, on a port that was free."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from gateway.api import tokenizer
from tests import reaper
from tests.amounts import FEW_EXAMPLES
from tests.fakes.redis_servers import SERVERS_VARIABLE, MissingServer, RedisServer, name_of, servers_to_test
from tests.fakes.scripted import Behaviour, Scripted
from tests.flows.forked import FORKS
from tests.flows.gateway_process import SIMULATOR, WITHOUT_TOKENS, Gateway, Process, keep_bytecode
from tests.processes import Processes

# How long examples take depends on the machine: no deadline, neither of one nor of finding them.
FULL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", FULL)
settings.register_profile("fast", FULL, max_examples=FEW_EXAMPLES)

TIERS = ("fast", "slow", "alone", "all")
FORKED_TIERS = ("fast", "slow")
"""Their commands are forks (tests/flows/forked.py), but for those of `INTERPRETERS`."""

LONGEST = tuple(
    f"tests/{name}.py"
    for name in (
        "flows/slow/test_schemathesis", "wings/slow/test_cut_off", "browser/slow/test_accessibility",
        "flows/slow/test_kills", "flows/slow/test_redis_away", "browser/slow/test_sign_in",
        "store/slow/test_torn_append_only",
        "slow/test_package", "flows/slow/test_sdk_suites", "snippets/slow/test_run", "browser/slow/test_numbers",
        "browser/slow/test_steering", "browser/slow/test_shown", "store/slow/test_schedules", "slow/test_interrupted",
        "browser/slow/test_overview", "browser/slow/test_page", "browser/slow/test_questions",
        "flows/slow/test_stranger", "flows/slow/test_upstreams_under_load", "flows/slow/test_frameworks",
        "flows/slow/test_cli", "flows/slow/test_batch_kills", "wings/tasks/slow/test_task_kills",
        "flows/slow/test_backup", "slow/test_stack", "flows/slow/test_background_kills",
        # Of the fast tier.
        "flows/test_routing", "upstream/test_connection", "flows/test_background_responses",
        "flows/test_background_streams", "wings/alerts/test_watcher", "flows/test_stream", "wings/people/test_roles",
        "wings/tasks/test_passthrough", "flows/test_refusals", "flows/test_message_batches",
        "store/test_contract_reports", "store/test_contract_keys", "flows/test_charges", "flows/test_faults",
        "store/test_sqlite",
    )
)  # fmt: skip
"""Files that take 40 s and more, and in the fast tier seven seconds, the longest first. They begin first: at the end of
the tier one process would run such a file while the others have none left."""

INTERPRETERS = tuple(
    f"tests/{name}.py"
    for name in (
        "wings/alerts/slow/test_alerts", "flows/slow/test_cli", "flows/slow/test_hard_limits", "flows/slow/test_proxy",
        "flows/slow/test_secrets", "process/slow/test_worker_start",
    )
)  # fmt: skip
"""Files of the slow tier whose commands are new interpreters: they judge starts and arguments, or limit descriptors."""

TWINS: dict[object, object] = {
    "redis": "embedded", "written behind": "embedded", asyncio.new_event_loop: uvloop.new_event_loop,
}  # fmt: skip
"""Parameters of tests that are there with another, too: whole gateways on Redis; the embedded store of a lone worker,
which has a file of its own in the fast tier, and is the store of its gateways; and what does not run on uvloop, as a
worker does."""

USED_REDIS, SKIPPED = "tiers/redis", "tiers/skipped"
"""In the cache of pytest: the server of the last run of the fast tier on one server, or None; what that run skipped."""

AT_ONCE = 2 * (os.cpu_count() or 1)
"""Two processes a core, because many tests wait, for time limits or for gateways that start."""

LARGE_PACKAGES = ("anthropic", "joserfc.jws", "openai")
"""What several files of the fast tier import inside their tests, for those who run one of the others alone."""

DAY_S, HOUR_S = 86_400, 3600

FAST_S = 30.0
"""More than a test of the fast tier takes, on the slowest of machines."""

CLOCKS_DIFFER_S = 1.0
"""Waited beyond the end of a day: other programs may read the clock with less precision."""

StartsGateways = Callable[..., Gateway]
StartsProcesses = Callable[..., Process]


def import_what_many_use() -> None:
    """Once, and not in each process that is forked then; as the tables of the tokenizer."""
    for name in LARGE_PACKAGES:
        import_module(name)
    tokenizer.load({})


def tier_of(path: Path) -> str:
    """The tier of a test file: `alone` below a folder of that name, else `slow` below a folder `slow`, else `fast`."""
    return next((tier for tier in ("alone", "slow") if tier in path.parts), "fast")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=TIERS,
        default="all",
        help="fast: no root, no installed servers but one Redis if there is one; slow: files in folders named slow; "
        "alone: files in folders named alone, which judge timing or memory",
    )
    parser.addoption(
        "--processes", help="run so many test files at a time (tests/processes.py); auto: two for each core"
    )
    parser.addoption(
        "--all-redis", action="store_true", help="in the fast tier, use every installed Redis and Valkey, not only one"
    )
    parser.addoption(
        "--rest", action="store_true", help="with --all-redis: only what the last run without it left out or shortened"
    )


def pytest_configure(config: pytest.Config) -> None:
    """The tier decides the number of Hypothesis examples and the Redis servers (`servers_to_test`)."""
    if not hasattr(config, "workerinput"):
        reaper.begin()
    keep_bytecode()
    config.addinivalue_line("markers", "within_an_hour: ends in the UTC hour in which it begins")
    config.addinivalue_line("markers", "shortened: `make test` runs a part of it (tests/amounts.py)")
    config.addinivalue_line("markers", "rest: `make test` leaves it out, `make test-rest` runs it")
    is_fast = config.getoption("tier") == "fast" and not config.getoption("all_redis")
    settings.load_profile("fast" if is_fast else "full")
    os.environ[SERVERS_VARIABLE] = "first" if is_fast else "all"
    if processes := config.getoption("processes"):
        prepares = import_what_many_use if config.getoption("tier") == "fast" else None
        count = AT_ONCE if processes == "auto" else int(processes)
        config.pluginmanager.register(Processes(count, prepares, FORKS))
    if config.getoption("tier") in FORKED_TIERS:
        FORKS.begin("", WITHOUT_TOKENS["PYTHONPATH"])
        config.add_cleanup(FORKS.end)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("rest"):
        _keep_the_rest(config, items)
    elif os.environ[SERVERS_VARIABLE] == "first":
        rest = left_to_the_rest(items)
        _select(config, items, lambda item: item not in rest)
    ranks = {config.rootpath / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def _keep_the_rest(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All tests if `make test` has not been run. If it found no Redis, it skipped those that need one."""
    cache = getattr(config, "cache", None)
    skipped = cache.get(SKIPPED, None) if cache is not None else None
    if cache is None or skipped is None:
        return
    others = {name_of(binary) for binary in servers_to_test()} - {cache.get(USED_REDIS, None)}
    rest, again = left_to_the_rest(items), set(skipped)
    _select(config, items, lambda item: item in rest or item.nodeid in again or is_run_again(item, others))


def _select(config: pytest.Config, items: list[pytest.Item], is_selected: Callable[[pytest.Item], bool]) -> None:
    found = [(item, is_selected(item)) for item in items]
    config.hook.pytest_deselected(items=[item for item, is_kept in found if not is_kept])
    items[:] = [item for item, is_kept in found if is_kept]


def left_to_the_rest(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """What `make test` leaves out, though it has a server for it: tests marked `rest`, and twins."""
    items = list(items)
    return twins(items) | {item for item in items if item.get_closest_marker("rest")}


def twins(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The tests with a parameter of `TWINS` that are there with the other: `make test` runs only the latter. Tests of a
    server itself, which name its version, are not among them."""
    of: dict[object, dict[pytest.Item, str]] = {value: {} for value in (*TWINS, *TWINS.values())}
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        for value in of.keys() & {value for value in values if isinstance(value, str) or callable(value)}:
            of[value][item] = item.nodeid.partition("[")[0]
    kept = {value: set(of[other].values()) for value, other in TWINS.items()}
    return {item for value in TWINS for item, function in of[value].items() if function in kept[value]}


def is_run_again(item: pytest.Item, others: Iterable[str]) -> bool:
    """Whether `make test-rest` runs what `make test` ran a part of, or what is for one of the `others`, its servers."""
    has_examples = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return has_examples or bool(item.get_closest_marker("shortened")) or any(name in item.name for name in others)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep how the tier ended: .ci/repeatable.py distinguishes failed tests from an interrupted run."""
    config = session.config
    cache = getattr(config, "cache", None)
    if cache is None or hasattr(config, "workerinput"):
        return
    cache.set(f"tiers/{config.getoption('tier')}", int(exitstatus))
    if os.environ[SERVERS_VARIABLE] == "first":
        cache.set(USED_REDIS, next((name_of(binary) for binary in servers_to_test() if shutil.which(binary)), None))
        printed = config.pluginmanager.get_plugin("terminalreporter")
        cache.set(SKIPPED, [report.nodeid for report in printed.stats.get("skipped", [])] if printed else [])


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return AT_ONCE


def pytest_report_header(config: pytest.Config) -> list[str]:
    if os.environ[SERVERS_VARIABLE] == "all":
        return []
    found = [name_of(binary) for binary in servers_to_test() if shutil.which(binary)]
    without = "no redis-server is installed: the tests that need one are skipped; make test-all installs it"
    return [f"tier: fast; Redis: {found[0] if found else without}"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    tier = config.getoption("tier")
    if tier == "fast" and tier_of(collection_path.relative_to(config.rootpath)) != "fast":
        return True  # not even a look into the folder
    if tier == "all" or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return True if tier_of(collection_path.relative_to(config.rootpath)) != tier else None


def _without_redis(item: pytest.Item) -> Generator[None, object, object]:
    """In the fast tier a test that needs a Redis is skipped where none is installed; the header says so."""
    try:
        return (yield)
    except MissingServer as missing:
        if os.environ[SERVERS_VARIABLE] == "all":
            raise
        pytest.skip(str(missing))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """A test ends in the UTC day in which it begins, and in the same hour if it is marked `within_an_hour`.

    Sums and quotas begin anew at midnight, so a test that could still run then waits past it. The wait is no part of
    the test: its time limit runs from behind it.

    Commands raise the level of the gateway's log; a test that runs one must not silence those behind it.
    """
    period = HOUR_S if item.get_closest_marker("within_an_hour") else DAY_S
    if pause_s := wait_s(time.time(), period, limit_s(item)):  # without one the processor is not yielded
        time.sleep(pause_s)
    FORKS.is_paused = item.nodeid.partition("::")[0] in INTERPRETERS
    log = logging.getLogger("gateway")
    level = log.level
    try:
        return (yield)
    finally:
        log.setLevel(level)


def limit_s(item: pytest.Item) -> float:
    """How long a test may take."""
    if tier_of(item.path) == "fast":
        return FAST_S
    own = item.get_closest_marker("timeout")
    return float(own.args[0] if own else item.config.getini("timeout"))


def wait_s(now: float, period: int, limit_s: float) -> float:
    """How long to wait from `now`, in seconds since 1970, until `limit_s` seconds fit into one period."""
    left = period - now % period
    return left + CLOCKS_DIFFER_S if left <= limit_s else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _without_redis(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _without_redis(item))


@pytest.fixture(scope="session", autouse=True)
def no_proxies() -> Iterator[None]:
    """The proxies of the machine are no business of the tests, nor of the processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            patch.delenv(name)
        yield


class ScriptedUpstream(Scripted):
    """A scripted upstream for many tests: each has its own script."""

    def answer_with(self, *script: Behaviour, always: Behaviour | None = None) -> None:
        """From now on: these answers in this order, and nothing else."""
        self.requests.clear()
        self._script = list(script)
        self._always = always

    @contextmanager
    def answering(self, *script: Behaviour) -> Iterator[None]:
        """Another script for a while; afterwards the one before begins anew."""
        before = self._script, self._always
        self.answer_with(*script)
        yield
        self.check()
        self.answer_with(*before[0], always=before[1])

    def check(self) -> None:
        """Raises `AssertionError` if the requests were not those of the script."""
        troubles, self.troubles = self.troubles, []
        assert not troubles, f"unexpected at {self!r}: {troubles}"


def _starter(folder: Path) -> Iterator[StartsGateways]:
    """Starts gateways, and stops them at the end, looking whether they have behaved."""
    numbers = itertools.count()
    started: list[Gateway] = []

    def start(config: dict[str, Any], *arguments: str, **more: Any) -> Gateway:
        is_awaited = more.pop("is_awaited", True)
        made = Gateway(folder / f"gateway-{next(numbers)}", config, *arguments, is_awaited=False, **more)
        started.append(made)  # whatever becomes of its start, it is ended
        if is_awaited:
            made.wait_until_ready()
        return made

    yield start
    try:
        for made in reversed(started):
            made.stop()
    finally:
        for made in started:
            made.end()


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[StartsGateways]:
    """Starts gateways for one test."""
    yield from _starter(tmp_path)


@pytest.fixture(scope="module")
def start_shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartsGateways]:
    """Starts gateways for the tests of one file."""
    yield from _starter(tmp_path_factory.mktemp("gateways"))


def start_pair(start: StartsGateways, config: dict[str, Any], store_url: str) -> list[Gateway]:
    """Two gateways on one Redis, or twice the one that an embedded store permits."""
    first = start(config)
    return [first, first if store_url.startswith("embedded") else start(config)]


@pytest.fixture(scope="module")
def simulated_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a simulated upstream for the tests of one file."""
    simulated = Process(tmp_path_factory.mktemp("simulated"), SIMULATOR, "--port", "0")
    yield int(simulated.wait_for(r"serves http://127\.0\.0\.1:(\d+)/v1\n")[1])
    simulated.end()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[StartsProcesses]:
    """Starts other commands that go on until they are stopped."""
    numbers = itertools.count()
    started: list[Process] = []

    def start(*arguments: str, **more: Any) -> Process:
        made = Process(tmp_path / f"process-{next(numbers)}", *arguments, **more)
        started.append(made)
        return made

    yield start
    for made in started:
        made.end()


@pytest.fixture(scope="module")
def shared_upstream() -> Iterator[ScriptedUpstream]:
    """The scripted upstream of one file; tests ask for `upstream` instead."""
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture
def upstream(shared_upstream: ScriptedUpstream) -> Iterator[ScriptedUpstream]:
    """The file's scripted upstream, with an empty script."""
    shared_upstream.answer_with()
    yield shared_upstream
    shared_upstream.check()


@pytest.fixture(scope="module", params=["embedded", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An empty store for the tests of one file, once embedded and once on Redis: its `store.url`."""
    folder = tmp_path_factory.mktemp("store")
    if request.param == "embedded":
        yield f"embedded:{folder / 'data'}"
        return
    with RedisServer(folder) as server:
        yield server.url


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis for one test, which may do with it as it likes."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture(scope="module", params=servers_to_test(), ids=name_of)
def shared_redis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The Redis of one file, once of each kind; tests ask for `any_redis` instead."""
    with RedisServer(tmp_path_factory.mktemp("redis"), binary=request.param) as server:
        yield server


@pytest.fixture
def any_redis(shared_redis: RedisServer) -> RedisServer:
    """Each kind of server in turn, shared by the tests of a file and empty; it has to be left running."""
    shared_redis.call("FLUSHALL")
    shared_redis.call("SCRIPT", "FLUSH")
    return shared_redis
