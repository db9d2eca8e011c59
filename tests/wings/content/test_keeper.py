"""What happens to kept calls where a store hangs, refuses or is away, where too much waits, and where a pattern takes
forever."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.observe.metrics import Telemetry
from gateway.wings.content.digest import KeptBody, KeptCall
from gateway.wings.content.digester import Digest, Digester
from gateway.wings.content.keeper import ContentStores, Keeper
from gateway.wings.content.metrics import CONTENT
from gateway.wings.content.sender import OtlpSender
from gateway.wings.content.settings import ContentSettings, OtlpStore
from tests.fakes.scripted import Scripted, answer, dead_port, silent, until

from .kept_lines import lines

FACTS: dict[str, Any] = {
    "call": "req_1", "name": "chat m", "trace_id": "0" * 31 + "1", "span_id": "0" * 15 + "1", "began": 1.0,
    "duration_s": 0.5, "is_error": False, "attributes": {"gateway.key": "k"},
}  # fmt: skip


def call(prompt: str = "Hello") -> KeptCall:
    body = json.dumps({"messages": [{"role": "user", "content": prompt}]}).encode()
    return KeptCall(FACTS, KeptBody("chat", body))


class Noted:
    """What a store says of the calls that it was given."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.lost: list[int] = []

    def __call__(self, sizes: Any, is_taken: bool) -> None:
        (self.taken if is_taken else self.lost).extend(sizes)


def sender(endpoint: str, noted: Noted, **more: Any) -> OtlpSender:
    return OtlpSender(OtlpStore(endpoint=endpoint), noted, **{"pauses_s": (0.0,), **more})


async def test_what_waits_is_sent_together(caplog: pytest.LogCaptureFixture) -> None:
    noted = Noted()
    async with Scripted(always=answer(b"{}"), prefix="") as store:
        made = sender(store.url, noted)
        for body in (b"a", b"bb", b"c" * 2_000_000, b"d"):
            made.put(body)
        await until(lambda: len(noted.taken) == 4)
        await made.close(5)
        assert [request.body[:3] for request in store.requests] == [b"abb", b"ccc", b"d"]


@pytest.mark.parametrize(("status", "hits"), [(503, 2), (400, 1), (302, 1)])
async def test_what_the_store_refuses_is_dropped(status: int, hits: int, caplog: pytest.LogCaptureFixture) -> None:
    """After a further attempt, where that may help."""
    noted = Noted()
    script = [answer(b"", status)] * 3 * hits
    async with Scripted(*script, always=answer(b"{}"), prefix="") as store:
        made = sender(store.url, noted)
        for number in range(3):
            made.put(b"x")
            await until(lambda number=number: len(noted.lost) == number + 1)
        assert store.hits == 3 * hits
        made.put(b"y")
        await until(lambda: noted.taken == [1])
        await made.close(5)
    found = [each for each in caplog.messages if "the store" in each]
    assert [f"answers {status}" in each for each in found] == [True, False]


async def test_a_store_that_hangs_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    noted = Noted()
    async with Scripted(always=silent, prefix="") as store:
        made = sender(store.url, noted, within_s=0.05)
        made.put(b"x")
        await until(lambda: noted.lost == [1])
        await made.close(0.01)
    assert [each for each in caplog.messages if "does not answer within" in each]


async def test_an_end_gives_up_what_waits() -> None:
    noted = Noted()
    async with Scripted(always=silent, prefix="") as store:
        made = sender(store.url, noted)
        made.put(b"xx")
        await until(lambda: store.hits == 1)
        made.put(b"y")
        await made.close(0.01)
    assert sorted(noted.lost) == [1, 2]


async def test_a_store_that_is_away() -> None:
    noted = Noted()
    made = sender(f"http://127.0.0.1:{dead_port()}", noted)
    made.put(b"x")
    await until(lambda: noted.lost == [1])
    await made.close(1)


def settings(**content: Any) -> ContentSettings:
    return ContentSettings.model_validate({"keep": [{}], **content})


def counted(telemetry: Telemetry, store: str, outcome: str) -> float:
    name = CONTENT.name.removesuffix("_total")
    families = {family.name: family for family in telemetry.registry.collect()}
    wanted = {"store": store, "outcome": outcome}
    return sum(s.value for s in families[name].samples if s.name == CONTENT.name and s.labels == wanted)


async def test_there_is_room_for_so_many_bytes(tmp_path: Path) -> None:
    keeper, telemetry = Keeper(), Telemetry([], 0)
    assert not keeper.hold(1, "k")  # nothing is kept
    keeper.stores = ContentStores(settings(files={"folder": str(tmp_path)}, max_waiting_bytes=300), keeper, telemetry)
    assert (keeper.hold(60, "k"), keeper.hold(60, "k"), keeper.hold(40, "k")) == (True, False, True)
    keeper.release(100, "k")
    keeper.dropped()
    await keeper.stores.close()
    telemetry.write()
    assert (keeper.held, counted(telemetry, "files", "dropped")) == (0, 1)


async def test_a_store_that_hangs_takes_no_room_from_the_other(tmp_path: Path) -> None:
    async with Scripted(always=silent, prefix="") as store:
        keeper, telemetry = Keeper(), Telemetry([], 0)
        made = settings(files={"folder": str(tmp_path)}, otlp={"endpoint": store.url}, max_waiting_bytes=3000)
        keeper.stores = ContentStores(made, keeper, telemetry)
        for number in range(5):
            await until(lambda: keeper.hold(call().size, "k"))
            keeper.put(call(), "k")
            await until(lambda number=number: len(lines(tmp_path)) == number + 1)
        await keeper.stores.close()
        telemetry.write()
    assert (counted(telemetry, "files", "stored"), counted(telemetry, "otlp", "stored")) == (5, 0)
    assert counted(telemetry, "otlp", "dropped") + counted(telemetry, "otlp", "failed") == 5
    assert counted(telemetry, "otlp", "dropped") > 0


async def test_a_call_that_ends_after_its_stores_is_dropped_and_counted(tmp_path: Path) -> None:
    """A reload closes them, and begins others."""
    keeper, telemetry = Keeper(), Telemetry([], 0)
    keeper.stores = ContentStores(settings(files={"folder": str(tmp_path)}), keeper, telemetry)
    kept = call()
    assert keeper.hold(kept.size, "k")
    await keeper.stores.close()
    keeper.put(kept, "k")
    telemetry.write()
    assert (keeper.held, counted(telemetry, "files", "dropped"), lines(tmp_path)) == (0, 1, [])


class Hanging(Digester):
    async def digest(self, call: KeptCall) -> Digest | None:
        await asyncio.Event().wait()
        return None


async def test_an_end_counts_what_it_drops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.wings.content.keeper.CLOSE_WITHIN_S", 0.01)
    keeper, telemetry = Keeper(), Telemetry([], 0)
    made = settings(files={"folder": str(tmp_path)})
    keeper.stores = ContentStores(made, keeper, telemetry, Hanging(made))
    for _ in range(3):
        assert keeper.hold(call().size, "k")
        keeper.put(call(), "k")
    await keeper.stores.close()
    telemetry.write()
    assert (keeper.held, counted(telemetry, "files", "dropped")) == (0, 3)


async def test_a_call_comes_into_a_file(tmp_path: Path) -> None:
    keeper, telemetry = Keeper(), Telemetry([], 0)
    keeper.stores = stores = ContentStores(settings(files={"folder": str(tmp_path)}), keeper, telemetry)
    kept = call()
    assert keeper.hold(kept.size, "k")
    keeper.put(kept, "k")
    await until(lambda: keeper.held == 0)
    await stores.close()
    (line,) = lines(tmp_path)
    assert line["attributes"]["gen_ai.input.messages"][0]["parts"] == [{"type": "text", "content": "Hello"}]


async def test_a_key_that_is_never_kept_from_now_on(tmp_path: Path) -> None:
    """Its calls under way are not kept either."""
    keeper, telemetry = Keeper(), Telemetry([], 0)
    keeper.stores = stores = ContentStores(settings(files={"folder": str(tmp_path)}, never=["k"]), keeper, telemetry)
    kept = call()
    keeper.hold(kept.size, "k")
    keeper.put(kept, "k")
    assert keeper.held == 0
    await stores.close()
    assert lines(tmp_path) == []


async def test_a_pattern_that_takes_forever_ends_its_process() -> None:
    """The call is lost; the next one is read."""
    digester = Digester(settings(files={"folder": "/nowhere"}, redact={"patterns": ["(a+)+b"]}))
    digester.within_s = 1.0
    assert await digester.digest(call("a" * 60 + "c")) is None
    digester.within_s = 60.0
    found = await digester.digest(call())
    await digester.close()
    assert found is not None
    assert b'"content":"Hello"' in found.line


class Slow(Digester):
    async def digest(self, call: KeptCall) -> Digest | None:
        return None


async def test_what_takes_too_long_is_dropped_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = settings(files={"folder": str(tmp_path)})
    keeper, telemetry = Keeper(), Telemetry([], 0)
    keeper.stores = stores = ContentStores(made, keeper, telemetry, Slow(made))
    for _ in range(3):
        assert keeper.hold(call().size, "k")
        keeper.put(call(), "k")
    await until(lambda: keeper.held == 0)
    await stores.close()
    telemetry.write()
    assert (counted(telemetry, "files", "dropped"), lines(tmp_path)) == (3, [])
    assert len([each for each in caplog.messages if "is a pattern of content.redact slow?" in each]) == 1


async def test_a_body_that_cannot_be_read_fails_no_other(tmp_path: Path) -> None:
    made = settings(files={"folder": str(tmp_path)})
    digester = Digester(made)
    broken = call()._replace(facts={"call": "req_1"})  # a fault of the gateway: facts are missing
    assert await digester.digest(broken) is None
    deep = KeptCall(FACTS, KeptBody("chat", b'{"messages": ' + b"[" * 100_000))
    assert await digester.digest(deep) is not None
    found = await digester.digest(call())
    await digester.close()
    assert found is not None
