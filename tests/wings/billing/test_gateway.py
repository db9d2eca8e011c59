"""Bills in a gateway: read by one worker, posted for all, shown as an answer and as metrics; and by the commands."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.config.probable_mistakes import warnings_of
from gateway.config.source import Source
from gateway.wings.billing.check import describe
from gateway.wings.billing.online import ask
from gateway.wings.billing.statement import COLUMNS
from tests.fakes.scripted import Scripted, ok_json
from tests.web.conftest import ADMIN_TOKEN, AUTH, Inside

from .vendors import ADMIN, DAY_S, Call, Vendor

CHAT: dict[str, Any] = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
}  # fmt: skip

TODAY = int(time.time() // DAY_S * DAY_S)
CALLS = [Call(TODAY - day * DAY_S, "gpt-4o-mini", 1000, 0, 100) for day in range(3, 6)]


@pytest.fixture
async def vendor() -> AsyncIterator[str]:
    server = await Vendor(CALLS).start()
    yield f"{server.make_url('/')}v1"
    await server.close()


def billing(address: str, **more: Any) -> dict[str, Any]:
    return {"upstreams": {"up": {"provider": "openai", "api_key": ADMIN, "base_url": address, **more}}}


async def bills(client: Any, query: str = "") -> Any:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    async with client.get(f"/admin/api/bills{query}", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return await (answer.text() if "csv" in query else answer.json())


async def read(client: Any) -> Any:
    """The bills, when the worker has tried to read them."""
    while True:
        found = await bills(client)
        if all(each["read_at"] or each["failed"] for each in found["upstreams"]):
            return found
        await asyncio.sleep(0.01)


async def problems(client: Any) -> Any:
    """Those of bills, once the worker has posted its findings."""
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    while True:
        async with client.get("/admin/api/problems", headers=headers) as answer:
            found = [each for each in (await answer.json())["data"] if each["kind"] in ("bill", "reading", "account")]
        if found:
            return found
        await asyncio.sleep(0.1)


async def test_a_worker_reads_and_every_worker_shows(inside: Inside, vendor: str) -> None:
    client = await inside("http://127.0.0.1:9/v1", billing=billing(vendor))
    found = await read(client)
    (upstream,) = found["upstreams"]
    usd = float(sum(sum(call.usd) for call in CALLS))
    assert upstream["bill_usd"] == pytest.approx(usd)
    assert (upstream["recorded_usd"], upstream["failed"]) == (0, None)
    assert upstream["causes"] == {"other_users": pytest.approx(usd)}
    assert [(row["model"], row["models"]) for row in found["data"]] == [("gpt-4o-mini", [])] * 3
    day = datetime.fromtimestamp(TODAY - 4 * DAY_S, UTC).date().isoformat()
    assert len((await bills(client, f"?since={day}"))["data"]) == 2
    lines = list(csv.DictReader(io.StringIO(await bills(client, "?format=csv"))))
    assert (len(lines), tuple(lines[0])) == (3, COLUMNS)
    async with client.get("/metrics") as answer:
        text = await answer.text()
    assert f'gateway_bill_difference_usd{{cause="other_users",upstream="up"}} {upstream["bill_usd"]}' in text
    assert 'gateway_bill_difference_usd{cause="unexplained",upstream="up"} 0.0' in text
    assert 'gateway_bill_readings_total{outcome="read",upstream="up"} 1.0' in text


async def test_a_wrong_key_harms_nothing_but_the_bill(
    inside: Inside, vendor: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = billing(vendor) | {"upstreams": {"up": billing(vendor)["upstreams"]["up"] | {"api_key": "sk-wrong-key"}}}
    client = await inside("http://127.0.0.1:9/v1", billing=settings)
    (upstream,) = (await read(client))["upstreams"]
    assert "answers 401: expected an admin key" in upstream["failed"]
    (told,) = [each for each in caplog.messages if "bill of up" in each]
    assert "sk-wrong" not in told
    (problem,) = await problems(client)
    assert (problem["kind"], problem["subject"]) == ("reading", "up")
    assert problem["text"].startswith("the bill cannot be read: ")
    assert "answers 401" in problem["text"]
    async with client.get("/readyz") as answer:
        assert answer.status == 200


async def test_an_upstream_that_there_is_not_harms_no_other_bill(inside: Inside, vendor: str) -> None:
    both = {"nobody": billing(vendor)["upstreams"]["up"]} | billing(vendor)["upstreams"]
    client = await inside("http://127.0.0.1:9/v1", billing={"upstreams": both})
    while True:
        found = {each["upstream"]: each for each in (await bills(client))["upstreams"]}
        if found["up"]["read_at"]:
            break
        await asyncio.sleep(0.01)
    assert found["nobody"]["read_at"] is None


async def test_without_billing_there_is_nothing(inside: Inside) -> None:
    assert await bills(await inside("http://127.0.0.1:9/v1")) == {
        "object": "bills", "causes": (await bills(await inside("http://127.0.0.1:9/v1")))["causes"], "upstreams": [],
        "data": [],
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ commands


def file(folder: Path, address: str, secret: str = ADMIN) -> str:
    path = folder / "gateway.yaml"
    path.write_text(f"""
store: {{url: "embedded:{folder}/data", journal_dir: "{folder}/journal"}}
upstreams: {{up: {{base_url: "http://127.0.0.1:9/v1", api_key: "sk-upstream-key"}}}}
models: {{gpt-4o-mini: {{routes: [{{upstream: up}}]}}}}
billing: {{upstreams: {{up: {{provider: openai, api_key: "{secret}", base_url: "{address}"}}}}}}
""")
    return str(path)


async def run(*arguments: str) -> int:
    """The command in a thread, for it has a loop of its own."""
    return await asyncio.to_thread(main, list(arguments))


async def test_the_commands_compare_with_the_bill(
    tmp_path: Path, vendor: str, capsys: pytest.CaptureFixture[str], inside: Inside
) -> None:
    await inside("http://127.0.0.1:9/v1", store={"url": f"embedded:{tmp_path}/data"})  # makes the store
    config = file(tmp_path, vendor)
    assert await run("bill", "--config", config) == 0
    printed = capsys.readouterr().out
    assert "gpt-4o-mini" in printed
    assert "other_users: keys of the account that are not this gateway's" in printed
    assert await run("usage", "--config", config, "--compare", "live", "--csv") == 0
    live = capsys.readouterr().out
    assert live.splitlines()[0] == ",".join(COLUMNS)
    assert await run("bill", "--config", config, "--csv") == 0
    assert capsys.readouterr().out == live
    assert await run("bill", "--config", config, "--upstream", "down") == 2
    assert "'down' is not in billing.upstreams; there are: up" in capsys.readouterr().err


async def test_a_wrong_key_is_one_line(tmp_path: Path, vendor: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run("bill", "--config", file(tmp_path, vendor, "sk-wrong-key")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gateway: billing.upstreams.up: /organization/usage/completions answers 401: expected an")


async def test_check_says_what_is_read_and_asks_for_it(tmp_path: Path, vendor: str) -> None:
    config = Source(file(tmp_path, vendor), {}).read().config
    assert describe(config) == "the bill of up (openai) is read every 3600 s, 35 days back"
    (asked,) = await ask(config)
    assert asked.is_good
    assert asked.came.startswith("read, with 0 models since ")
    wrong = Source(file(tmp_path, vendor, "sk-wrong-key"), {}).read().config
    (asked,) = await ask(wrong)
    assert not asked.is_good


async def test_check_online_says_what_is_wrong_with_a_key(
    tmp_path: Path, vendor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("check", "--online", "--config", file(tmp_path, vendor, "sk-wrong-key")) == 1
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if "billing.upstreams.up" in line]
    assert line.split()[0] == "FAILED"
    assert f"the bill at {vendor}: /organization/usage/completions answers 401: expected an admin key" in line
    assert "sk-wrong" not in printed


@pytest.mark.parametrize(("key", "words"), [("", "is empty"), ("${ADMIN_KEY_THAT_IS_NOT_SET}", "IS_NOT_SET")])
async def test_an_absent_key_is_a_fault_of_the_file(
    tmp_path: Path, vendor: str, key: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run("check", "--online", "--config", file(tmp_path, vendor, key)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "billing.upstreams.up.api_key" in line
    assert words in line


async def test_a_wrong_key_harms_no_call(inside: Inside, vendor: str) -> None:
    async with Scripted(always=ok_json(CHAT)) as upstream:
        settings = {"upstreams": {"up": billing(vendor)["upstreams"]["up"] | {"api_key": "sk-wrong-key"}}}
        client = await inside(upstream.url, billing=settings)
        (summary,) = (await read(client))["upstreams"]
        assert "answers 401" in summary["failed"]
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
        for _ in range(3):
            async with client.post("/v1/chat/completions", json=body, headers=AUTH) as answer:
                assert (answer.status, (await answer.json())["id"]) == (200, CHAT["id"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{nobody: {provider: openai, api_key: sk-admin-1}}", "there is no upstream 'nobody'"),
        ("{up: {provider: openai, api_key: sk-upstream-key}}", "is the key that calls use"),
        ("{up: {provider: openai, api_key: k, base_url: 'http://bill.example.com'}}", "sends the key in clear text"),
    ],
)
def test_warnings(tmp_path: Path, text: str, words: str) -> None:
    path = Path(file(tmp_path, "http://127.0.0.1:9"))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], f"billing: {{upstreams: {text}}}"]))
    assert any(words in str(each) for each in warnings_of(Source(str(path), {}).read().config, datetime.now(UTC)))
