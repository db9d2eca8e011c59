"""One browser for all tests, and gateways with data.

A test gets a gateway with exactly the calls, refusals and keys that `_house` made, in any order of tests. A test that
makes calls or changes keys, teams or the configuration is marked `changes`; these tests share another gateway, so they
see data of each other, and each uses its own names of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from gateway.records import Usage
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.conftest import _starter as starter
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import error_json, ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, CHAT, COMPLETIONS, Gateway, eventually, key, model, settings
from tests.flows.planted import plant, record

from .bills import vendor
from .chromium import NOTHING, Page, start

VIEWER_TOKEN = "viewer-token-that-nobody-may-see"
ATTACK = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
PRICE = {"input": 2, "output": 4, "cached_input": 1}
TEAMS = {"crew": {"quotas": [{"tokens": 5000, "per": "month"}]}}
KEYS = [
    key("alice", team="crew", quotas=[{"requests": 50, "per": "day"}, {"usd": 0.1, "per": "month"}]),
    key("bob", quotas=[{"requests": 1, "per": "day"}]),
    key("carol", max_parallel=2),
    key("shadow", quotas=[{"requests": 1, "per": "day"}], on_exceeded="shadow"),
]
STORES = ("embedded", "redis")

SLOWEST_S = 240
"""Seconds per test; its waits have their own limits, and a browser starts slowly on a busy machine."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "changes: makes calls or changes keys, teams or the configuration")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.timeout(SLOWEST_S))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """One for all tests of a process."""
    started = start(tmp_path_factory.mktemp("chromium"))
    yield started
    started.quit()


@pytest.fixture
def driver(browser: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """The browser, which shows nothing afterwards: an open dashboard asks for numbers and draws them at all times."""
    yield browser
    browser.get(NOTHING)


@pytest.fixture(scope="session")
def shared_upstream() -> Iterator[ScriptedUpstream]:
    """The scripted upstream of the one gateway."""
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture(scope="session")
def start_shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartsGateways]:
    """Starts gateways for all of these tests."""
    yield from starter(tmp_path_factory.mktemp("gateways"))


@pytest.fixture(scope="session")
def billing() -> Iterator[dict[str, Any]]:
    """The section `billing`, with a vendor that bills what the gateway knows nothing of, and by other prices."""
    with vendor() as section:
        yield section


@pytest.fixture(scope="session")
def gateway_on(
    start_shared_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    billing: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Gateway]]:
    """A gateway on one of `STORES`, with calls of several days, served and failed.

    Each UTC day has its own gateway: after midnight no quota is used and no call is of today.
    """
    with ExitStack() as servers:

        @cache
        def of_day(store: str, is_changed: bool, day: str) -> Gateway:
            if store == "embedded":
                return _gateway(start_shared_gateway, shared_upstream, {"billing": billing})
            server = servers.enter_context(RedisServer(tmp_path_factory.mktemp("redis")))
            more = {"billing": billing, "store": {"url": server.url}}
            return _gateway(start_shared_gateway, shared_upstream, more)

        yield lambda store, *, is_changed=False: of_day(store, is_changed, ago(0))


@pytest.fixture
def gateway(request: pytest.FixtureRequest, gateway_on: Callable[..., Gateway]) -> Gateway:
    """The gateway of most tests, on the embedded store. Files whose tests compare numbers override it with `either`."""
    return _of(request, gateway_on, "embedded")


@pytest.fixture(params=STORES)
def either(request: pytest.FixtureRequest, gateway_on: Callable[..., Gateway]) -> Gateway:
    """The same gateway on each of the stores."""
    return _of(request, gateway_on, request.param)


def _of(request: pytest.FixtureRequest, gateway_on: Callable[..., Gateway], store: str) -> Gateway:
    return gateway_on(store, is_changed=request.node.get_closest_marker("changes") is not None)


@pytest.fixture
def operator(request: pytest.FixtureRequest, driver: webdriver.Chrome, either: Gateway) -> Iterator[Page]:
    """Signed in with the admin token, on each of the stores."""
    for made in _visit(request, driver, either):
        made.open(token=ADMIN_TOKEN)
        yield made


def _gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, more: dict[str, Any]) -> Gateway:
    models = {
        COMPLETIONS: model("completions", price=PRICE),
        CHAT: model("chat", unpriced="allow"),
        "*": model("chat", unpriced="allow"),
    }
    config = settings(
        shared_upstream.url, models=models, keys=KEYS, teams=TEAMS, quotas=[{"requests": 100_000, "per": "month"}],
        admin={"viewer_token": VIEWER_TOKEN}, server={"workers": 2, "reload_on_change": False},
        upstreams={"main": {"limits": {"requests": "6000/minute"}}}, aliases={"nick": COMPLETIONS},
        content={"files": {"folder": "kept"}, "keep": [{"keys": ["alice"], "models": ["none-*"], "share": 0.125}]},
        **more,
    )  # fmt: skip
    made = start_shared_gateway(config)
    _give_a_past(made)
    _call(made, shared_upstream)
    eventually(lambda: "bill" in {row["kind"] for row in made.admin("problems").json["data"]})
    return made


def ago(days: int) -> str:
    """The UTC day this many days before today."""
    return (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%d")


def _give_a_past(gateway: Gateway) -> None:
    plant(
        gateway.config["store"]["url"],
        [
            record(ago(40), "alice", team="crew", usage=Usage(80, 0, source="estimated"), status=502, ended="error"),
            record(
                ago(1),
                "alice",
                team="crew",
                cost_nusd=12_345_678,
                usage=Usage(1200, 340, 100, 40, "reported"),
                stream=True,
                first_byte_s=0.4,
                duration_s=2.5,
            ),
            record(ago(1), "bob", usage=Usage(300, 60, 0, 0, "estimated"), status=502, ended="error"),
            record(
                ago(12), "gone", upstream="former", cost_nusd=2_000_000_000, usage=Usage(9000, 1000, source="reported")
            ),
            record(ago(29), "alice", team="crew", usage=Usage(70, 7, source="reported")),
            *[
                record(
                    ago(back),
                    "alice",
                    team="crew",
                    model=COMPLETIONS,
                    label_model=COMPLETIONS,
                    routed_model=COMPLETIONS,
                    returned_model=COMPLETIONS,
                    cost_nusd=4_000_000,
                    usage=Usage(1000, 500, source="reported"),
                )
                for back in (4, 5, 6)
            ],
            record(ago(30), "alice", team="crew", usage=Usage(5555, 5, source="reported")),
        ],
    )


def _call(gateway: Gateway, shared_upstream: ScriptedUpstream) -> None:
    """Makes calls with every kind of end."""
    usage = {"prompt_tokens": 100, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 20}}
    good = ok_json({"model": "told", "choices": [], "usage": usage})
    with shared_upstream.answering(good, good, error_json(500), good, good, good, good):
        assert [gateway.complete("alice").status for _ in range(2)] == [200, 200]
        assert gateway.complete("carol").status == 502
        assert [gateway.complete("bob").status for _ in range(4)] == [200, *[429] * 3]
        assert gateway.complete("alice", n=1000).status == 400
        body = {"model": ATTACK, "messages": [{"role": "user", "content": "Hi"}]}
        gateway.post("/v1/chat/completions", body, key="carol", headers={"X-Client-Request-Id": ATTACK})
        assert [gateway.complete("shadow").status for _ in range(2)] == [200, 200]
        eventually(lambda: len(_changes(gateway)) == MADE)
        rest(gateway)


COMPARES = "/admin/api/invoice"
"""Changes nothing."""
MADE = 11
"""Calls and refusals of `_call`."""


def _changes(gateway: Gateway) -> set[str]:
    """Ids of the calls, refused ones among them, and of the changes that an operator made."""
    lines = gateway.lines()
    return {
        line["id"]
        for line in lines
        if _is_call(line) or (line["method"] != "GET" and line["status"] < 300 and line["path"] != COMPARES)
    }


def _is_call(line: Mapping[str, Any]) -> bool:
    return "endpoint" in line or (line["path"].startswith("/v1/") and line["status"] >= 400)


def rest(gateway: Gateway) -> None:
    """Waits until no call runs and each logged call is stored. Refusals are written once per second."""
    calls = {line["id"] for line in gateway.lines() if _is_call(line)}

    def is_at_rest() -> bool:
        stored = {row["id"] for path in ("calls", "refusals") for row in gateway.admin(path, limit="1000").json["data"]}
        return calls <= stored and gateway.admin("live").json["in_flight"] == 0

    eventually(is_at_rest)


def _visit(request: pytest.FixtureRequest, driver: webdriver.Chrome, gateway: Gateway) -> Iterator[Page]:
    is_changed = request.node.get_closest_marker("changes") is not None
    if is_changed:
        rest(gateway)
    made = Page(driver, gateway.url)
    made.forget()
    yield made
    check_requests(made)
    if not is_changed:
        assert len(_changes(gateway)) == MADE, "a test changed the gateway of all, and is not marked `changes`"


@pytest.fixture
def page(request: pytest.FixtureRequest, driver: webdriver.Chrome, gateway: Gateway) -> Iterator[Page]:
    """The browser without stored data; afterwards checks the requests of the page and its policy."""
    yield from _visit(request, driver, gateway)


def check_requests(page: Page) -> None:
    """No request to another server, no token in an address, no violation of the policy, no failed script."""
    for request in page.requested():
        assert request["url"].startswith((page.address + "/", "data:", "about:")), request["url"]
        assert ADMIN_TOKEN not in request["url"].partition("#")[0]
        assert VIEWER_TOKEN not in request["url"].partition("#")[0]
    # Chromium logs other statuses than 200 as errors, too; they are not errors of the page.
    said = [line for line in page.logged() if "Failed to load resource" not in line]
    assert not said, said


@pytest.fixture
def admin(page: Page) -> Page:
    """Signed in with the admin token."""
    page.open(token=ADMIN_TOKEN)
    return page
