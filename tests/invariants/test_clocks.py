"""All gateways of one store go by its clock, whatever their machines show."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Quota, StoreSettings
from gateway.quota.windows import LimitTable
from gateway.records import Granted, Key
from gateway.store import Store
from gateway.store.clock import MAX_SKEW_S, ServerClock, skew_warning
from gateway.store.redis.store import RedisStore, warnings
from gateway.store.sqlite.store import SqliteStore
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, WITHOUT_TOKENS, Gateway, key, run, settings
from tests.store.changes import draw
from tests.store.worker import Worker

HOUR_S, DAY_S = 3600.0, 86_400.0
SKEWS_S = {"25 h ahead": 25 * HOUR_S, "4 h behind": -4 * HOUR_S, "72 h ahead": 72 * HOUR_S, "70 s ahead": 70.0}
PERIODS = ("day", "week", "month")
LIMIT = 4
MIDNIGHT = datetime(2027, 3, 1, tzinfo=UTC).timestamp()
"""Of a Monday and of the first of a month: a day, a week and a month end."""

OpensStore = Callable[..., Awaitable[RedisStore]]


# --------------------------------------------------------------------------------------------- windows, in one process


class Server:
    """The clock of a Redis, which a test sets; it goes on by itself."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def set(self, moment: float) -> None:
        self.ahead_s = moment - time.time()

    def offset_us(self) -> int:
        return int(self.ahead_s * 1e6)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def open_store(any_redis: RedisServer, server: Server) -> Any:
    """Opens the store of a gateway whose machine's clock is ahead of the server's by this."""
    opened: list[RedisStore] = []

    async def open_one(skew_s: float = 0.0) -> RedisStore:
        clock = ServerClock(lambda: time.time() + server.ahead_s + skew_s)
        opened.append(await RedisStore.open(StoreSettings(url=any_redis.url), server.offset_us, clock))
        return opened[-1]

    yield open_one
    await asyncio.gather(*[store.close() for store in opened])


def quota(per: str) -> Quota:
    return Quota.model_validate({"requests": LIMIT, "per": per})


async def is_admitted(worker: Worker, per: str) -> bool:
    """Whether a call that begins now is admitted, of a key with this quota."""
    (limit,) = LimitTable([], {}, {}).of(Key(f"key-{per}", quotas=(quota(per),)))
    return isinstance(await worker.draw(draw(limit.one(worker.store.clock.now()))), Granted)


async def admitted(workers: list[Worker], per: str) -> int:
    """Of twice as many calls as each worker may admit, by turns."""
    return sum([await is_admitted(worker, per) for _ in range(2 * LIMIT) for worker in workers])


@pytest.mark.parametrize("per", PERIODS)
@pytest.mark.parametrize("skew", SKEWS_S)
async def test_gateways_with_other_clocks_share_one_window(
    open_store: OpensStore, server: Server, per: str, skew: str
) -> None:
    server.set(MIDNIGHT - 35)
    workers = [Worker(await open_store()), Worker(await open_store(SKEWS_S[skew]))]
    assert await admitted(workers, per) == LIMIT
    server.set(MIDNIGHT + 35)
    for worker in workers:
        await worker.send()
    assert await admitted(workers, per) == LIMIT


@pytest.mark.parametrize("per", PERIODS)
async def test_a_clock_that_goes_back_at_a_failover_opens_no_window_again(
    open_store: OpensStore, server: Server, per: str
) -> None:
    server.set(MIDNIGHT - 35)
    worker = Worker(await open_store())
    assert await admitted([worker], per) == LIMIT
    server.set(MIDNIGHT + 2)
    await worker.send()
    assert await is_admitted(worker, per)
    server.set(MIDNIGHT - 3)
    await worker.send()
    assert worker.store.clock.now() < MIDNIGHT
    assert await admitted([worker], per) == 0
    server.set(MIDNIGHT + 2)
    await worker.send()
    assert await admitted([worker], per) == LIMIT - 1


async def test_workers_of_an_embedded_store_share_the_clock_of_their_machine(tmp_path: Path) -> None:
    stores: list[Store] = [SqliteStore(StoreSettings(url=f"embedded:{tmp_path}")) for _ in range(2)]
    before = time.time()
    now = [store.clock.now() for store in stores]
    assert before <= now[0] <= now[1] <= time.time()
    for per in PERIODS:
        assert await admitted([Worker(store) for store in stores], per) == LIMIT
    assert [store.clock.skew_s for store in stores] == [0, 0]
    for store in stores:
        await store.close()


async def test_a_look_at_the_store_warns_of_a_clock_that_differs(any_redis: RedisServer) -> None:
    store = RedisStore(StoreSettings(url=any_redis.url), clock=ServerClock(lambda: time.time() - 4 * HOUR_S))
    (warning,) = [line for line in await store.look() if "clock" in line]
    assert "the clock of this machine is 14400" in warning or "the clock of this machine is 14399" in warning
    assert "s behind the store's" in warning
    await store.close()
    assert not [line for line in await warnings(StoreSettings(url=any_redis.url)) if "clock" in line]


# ------------------------------------------------------------------------------------------------------- the clock


class Machine:
    """The clocks of a machine."""

    def __init__(self) -> None:
        self.wall, self.monotonic = MIDNIGHT, 1000.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> ServerClock:
    return ServerClock(lambda: machine.wall, lambda: machine.monotonic)


def ask(clock: ServerClock, machine: Machine, server_s: float, round_trip_s: float = 0.2) -> None:
    asked_at = machine.monotonic
    machine.pass_by(round_trip_s)
    clock.measured(server_s, asked_at)


def test_before_the_first_answer_it_is_the_machines(clock: ServerClock, machine: Machine) -> None:
    machine.pass_by(5)
    assert (clock.now(), clock.skew_s) == (machine.wall, None)


def test_it_is_the_servers_but_for_half_of_the_round_trip(clock: ServerClock, machine: Machine) -> None:
    ask(clock, machine, MIDNIGHT - DAY_S)
    assert clock.now() == pytest.approx(MIDNIGHT - DAY_S + 0.1)
    assert clock.skew_s == pytest.approx(DAY_S + 0.1)


def test_an_answer_that_permits_the_known_difference_changes_nothing(clock: ServerClock, machine: Machine) -> None:
    for round_trip_s, age_s in ((0.2, 0.0), (5.0, 4.9), (0.001, 0.0005), (3.0, 0.0)):
        read_at = machine.wall + round_trip_s - age_s
        ask(clock, machine, read_at, round_trip_s)
        assert clock.now() == pytest.approx(machine.wall, abs=1e-6)


def test_a_machines_clock_that_is_set_changes_nothing(clock: ServerClock, machine: Machine) -> None:
    ask(clock, machine, machine.wall)
    before = clock.now()
    machine.wall += 25 * HOUR_S
    assert clock.now() == before
    assert clock.skew_s == pytest.approx(25 * HOUR_S, abs=0.2)


def test_while_the_server_is_away_the_last_known_difference_holds(clock: ServerClock, machine: Machine) -> None:
    ask(clock, machine, MIDNIGHT - DAY_S)
    before = clock.now()
    machine.pass_by(2 * DAY_S)
    assert clock.now() == pytest.approx(before + 2 * DAY_S)


def test_a_server_whose_clock_is_set_is_followed(clock: ServerClock, machine: Machine) -> None:
    for server_s in (MIDNIGHT - 3, MIDNIGHT + 72 * HOUR_S, MIDNIGHT):
        ask(clock, machine, server_s)
        assert clock.now() == pytest.approx(server_s + 0.1)


@pytest.mark.parametrize("skew_s", [None, 0.0, MAX_SKEW_S, -MAX_SKEW_S])
def test_a_small_difference_is_not_reported(skew_s: float | None) -> None:
    assert skew_warning(skew_s) is None


# -------------------------------------------------------------------------------------------------- whole gateways


@pytest.fixture(scope="module")
def gateways(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Gateway]]:
    """Three on one Redis: one with the right clock, one a day ahead and one 40 days."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as redis:
        config = settings(
            shared_upstream.url,
            store={"url": redis.url},
            keys=[key(f"key-{per}", quotas=[{"requests": LIMIT, "per": per}]) for per in PERIODS] + [key("alice")],
        )
        yield [start_shared_gateway(config, env=environment(ahead_s)) for ahead_s in (0, 25 * HOUR_S, 40 * DAY_S)]


def environment(ahead_s: float) -> dict[str, str]:
    folder = Path(__file__).parent.parent / "fakes" / "other_clock"
    path = os.pathsep.join([str(folder), WITHOUT_TOKENS["PYTHONPATH"]])
    return {"PYTHONPATH": path, "CLOCK_AHEAD_S": str(ahead_s)}


def admin(gateway: Gateway, method: str, path: str, body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    answer = gateway.send(method, f"/admin/api/{path}", body, key=None, headers=headers)
    assert answer.status in (200, 201), answer
    return answer.json


@pytest.mark.rest
def test_whole_gateways_share_the_windows_of_a_quota(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    for per in PERIODS:
        answers = [gateway.complete(key=f"key-{per}").status for _ in range(LIMIT) for gateway in gateways]
        assert answers.count(200) == LIMIT, (per, answers)


@pytest.mark.rest
def test_an_expiry_and_an_overlap_end_everywhere_at_once(gateways: list[Gateway]) -> None:
    right, _, wrong = gateways
    made = admin(wrong, "POST", "keys", {"id": "brief", "expires": "2h"})
    ends = datetime.fromisoformat(admin(right, "GET", "keys/brief")["expires"])
    assert timedelta(hours=1) < ends - datetime.now(UTC) <= timedelta(hours=2)
    rotated = admin(wrong, "POST", "keys/brief/rotate", {"overlap_s": HOUR_S})
    for gateway in gateways:
        for each in (made["secret"], rotated["secret"]):
            answer = gateway.get("/v1/key", key=None, headers={"Authorization": f"Bearer {each}"})
            assert answer.status == 200, answer
    past = admin(right, "POST", "keys", {"id": "past", "expires": format(datetime.now(UTC) - timedelta(hours=1))})
    refused = [
        gateway.get("/v1/key", key=None, headers={"Authorization": f"Bearer {past['secret']}"}).status
        for gateway in gateways
    ]
    assert refused == [401] * 3


@pytest.mark.rest
def test_dates_of_records_reports_and_audit_are_the_stores(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    began = datetime.now(UTC) - timedelta(seconds=5)
    for number, gateway in enumerate(gateways):
        assert gateway.complete().status == 200
        admin(gateway, "POST", "keys", {"id": f"dated-{number}"})
    ended = datetime.now(UTC) + timedelta(seconds=5)
    called = [row["time"] for row in gateways[0].calls("alice")]
    changed = [datetime.fromisoformat(row["time"]).timestamp() for row in gateways[0].admin("audit").json["data"][:3]]
    assert (len(called), len(changed)) == (3, 3)
    assert all(began.timestamp() < each <= ended.timestamp() for each in called + changed), (called, changed)
    (day,) = {row["day"] for row in gateways[2].usage(group_by="day", since="1d")}
    assert began.date().isoformat() <= day <= ended.date().isoformat()


@pytest.mark.rest
def test_a_wrong_clock_is_a_metric_a_line_of_check_and_one_of_readyz(
    gateways: list[Gateway], upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=ok_json())
    right, ahead, _ = gateways
    assert right.metric("gateway_clock_skew_seconds") < 1
    assert ahead.metric("gateway_clock_skew_seconds") == pytest.approx(25 * HOUR_S, abs=1)
    assert right.get("/readyz", key=None).json == {"status": "ready"}
    ready = ahead.get("/readyz", key=None)
    assert ready.status == 200
    (warning,) = ready.json["warnings"]
    assert "ahead of the store's" in warning
    for arguments in (["check"], ["check", "--online"]):
        said = run(*arguments, "--config", str(ahead.file), env=environment(25 * HOUR_S)).stdout
        assert "ahead of the store's, by which quotas and expiries go" in said
    assert "clock" not in run("check", "--config", str(right.file), env=environment(0)).stdout
