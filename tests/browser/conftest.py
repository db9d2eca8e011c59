"""One browser for all of it, and one gateway with something to show."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from gateway.records import Usage
from tests.conftest import Stage, StartsGateways
from tests.conftest import _starter as starter
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import error_json, ok_json
from tests.flows.house import ADMIN_TOKEN, CHAT, COMPLETIONS, Gateway, eventually, key, model, settings
from tests.flows.planted import plant, record

from .chromium import Page, start

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


SLOWEST_S = 240
"""For one test: what it waits for has bounds of its own, and a busy machine takes its time to start a browser."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.timeout(SLOWEST_S))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """The browser."""
    browser = start(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.quit()


@pytest.fixture(scope="session")
def theatre() -> Iterator[Stage]:
    """The scripted upstream of the one gateway."""
    with Stage() as stage:
        yield stage


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartsGateways]:
    """Starts gateways for all of these tests."""
    yield from starter(tmp_path_factory.mktemp("gateways"))


@pytest.fixture(scope="session")
def embedded_house(gateways: StartsGateways, theatre: Stage) -> Gateway:
    """A gateway with calls of today and of other days, good ones and bad ones, on the embedded store."""
    return _house(gateways, theatre, {})


@pytest.fixture(scope="session")
def house_on_redis(
    gateways: StartsGateways, theatre: Stage, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """The same gateway on a Redis."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield _house(gateways, theatre, {"store": {"url": server.url}})


@pytest.fixture(scope="session")
def house(embedded_house: Gateway) -> Gateway:
    """The gateway of most tests. A file whose tests compare numbers overrides it with `either`."""
    return embedded_house


@pytest.fixture(scope="session", params=["embedded_house", "house_on_redis"], ids=["embedded", "redis"])
def either(request: pytest.FixtureRequest) -> Gateway:
    """The same gateway on each of the stores."""
    made: Gateway = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def operator(driver: webdriver.Chrome, either: Gateway) -> Iterator[Page]:
    """Signed in at a gateway on each of the stores as who may change things."""
    for made in _visit(driver, either):
        made.open(token=ADMIN_TOKEN)
        yield made


def _house(gateways: StartsGateways, theatre: Stage, more: dict[str, Any]) -> Gateway:
    models = {
        COMPLETIONS: model("completions", price=PRICE),
        CHAT: model("chat", unpriced="allow"),
        "*": model("chat", unpriced="allow"),
    }
    config = settings(
        theatre.url, models=models, keys=KEYS, teams=TEAMS, quotas=[{"requests": 100_000, "per": "month"}],
        admin={"viewer_token": VIEWER_TOKEN}, server={"workers": 2, "reload_on_change": False},
        upstreams={"main": {"limits": {"requests": "6000/minute"}}}, aliases={"nick": COMPLETIONS}, **more,
    )  # fmt: skip
    made = gateways(config)
    _give_a_past(made)
    _call(made, theatre)
    return made


def ago(days: int) -> str:
    """The UTC day so many days before today."""
    return (datetime.now(UTC) - timedelta(days=days)).strftime("%Y-%m-%d")


def _give_a_past(house: Gateway) -> None:
    plant(
        house.config["store"]["url"],
        [
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
            record(ago(30), "alice", team="crew", usage=Usage(5555, 5, source="reported")),
        ],
    )


def _call(house: Gateway, theatre: Stage) -> None:
    """Every kind of end, once or more."""
    usage = {"prompt_tokens": 100, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 20}}
    good = ok_json({"model": "told", "choices": [], "usage": usage})
    theatre.play(good, good, error_json(500), good, good, good, good)
    ids = [house.complete("alice").id, house.complete("alice").id]
    failed = house.complete("carol")
    assert failed.status == 502
    ids += [failed.id, house.complete("bob").id]
    assert [house.complete("bob").status for _ in range(3)] == [429] * 3
    assert house.complete("alice", n=1000).status == 400
    body = {"model": ATTACK, "messages": [{"role": "user", "content": "Hi"}]}
    ids.append(house.post("/v1/chat/completions", body, key="carol", headers={"X-Client-Request-Id": ATTACK}).id)
    ids += [house.complete("shadow").id, house.complete("shadow").id]
    eventually(lambda: set(ids) <= {call["id"] for call in house.calls(limit=1000)})
    theatre.check()


def _visit(driver: webdriver.Chrome, house: Gateway) -> Iterator[Page]:
    made = Page(driver, house.url)
    made.forget()
    yield made
    check_manners(made)


@pytest.fixture
def page(driver: webdriver.Chrome, house: Gateway) -> Iterator[Page]:
    """The browser, which has never been here; afterwards, whether the page kept to the gateway and to its policy."""
    yield from _visit(driver, house)


def check_manners(page: Page) -> None:
    """No request to anybody else, no token in an address, nothing refused by the policy, no script that failed."""
    for request in page.requested():
        assert request["url"].startswith((page.address + "/", "data:", "about:")), request["url"]
        assert ADMIN_TOKEN not in request["url"].partition("#")[0]
        assert VIEWER_TOKEN not in request["url"].partition("#")[0]
    # What is no 200 is told as an error, too, and not of the page's making.
    said = [line for line in page.logged() if "Failed to load resource" not in line]
    assert not said, said


@pytest.fixture
def admin(page: Page) -> Page:
    """Signed in as who may change things."""
    page.open(token=ADMIN_TOKEN)
    return page
