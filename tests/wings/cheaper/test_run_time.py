"""Steps that are given while the gateway runs: to keys, teams and people, by the admin API and commands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import cli
from gateway.config import build
from gateway.quota.issued import Overlay
from gateway.wings.cheaper.policy import steps_of
from gateway.wings.cheaper.run import read_step
from gateway.wings.cheaper.settings import CheaperSettings, Step, read_steps
from tests.fakes.scripted import Scripted, ok_json, until
from tests.web.conftest import ADMIN_TOKEN
from tests.web.test_hot_reload import Inside, inside

QUOTA = "0.003 USD/month"
"""After one dear call half of it is used."""
HALF = [{"share": "50%", "use": "mini"}]
SHOWN = [{"share": 0.5, "use": "mini"}]
ANSWER = ok_json({
    "id": "x", "object": "chat.completion", "created": 1, "model": "up",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
})  # fmt: skip


def served(price: float) -> dict[str, Any]:
    return {
        "routes": [{"upstream": "up"}], "endpoints": ["chat"], "max_output_tokens": 5,
        "price": {"input": price, "output": price},
    }  # fmt: skip


SECTIONS: dict[str, Any] = {
    "admin": {"token": ADMIN_TOKEN},
    "models": {"dear": served(100), "mini": served(1), "nano": served(0.5)},
    "teams": {"red": {"quotas": [QUOTA]}, "blue": {}},
    "people": {"ann": {"quotas": [QUOTA]}},
    "keys": [
        {"id": "one", "secret": "sk-gw-key-of-the-team-red-1", "team": "red"},
        {"id": "hers", "secret": "sk-gw-key-of-ann-000000001", "owner": "ann"},
        {"id": "named", "secret": "sk-gw-key-named-in-file-01", "quotas": [QUOTA]},
    ],
    "when_above": {"at_run_time": True, "keys": {"named": HALF}},
}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Inside]:
    async with Scripted(always=ANSWER) as upstream, inside(tmp_path, upstream.url) as found:
        await found.change(**SECTIONS)
        yield found


async def admin(gateway: Inside, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    async with gateway.client.request(method, f"/admin/api/{path}", json=body, headers=headers) as answer:
        found = await answer.json()
        assert answer.status == status, found
        return found


async def model_of(gateway: Inside, secret: str) -> str:
    """The model that serves a call for the dear one."""
    body = {"model": "dear", "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"Authorization": f"Bearer {secret}"}
    async with gateway.client.post("/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers.get("x-gateway-model", "dear")


async def heard(gateway: Inside, scope: str, steps: tuple[Step, ...] | None) -> None:
    """Wait until the worker has heard of these steps."""
    overlays = lambda: gateway.worker.parts.key_cache.terms.overlays  # noqa: E731
    await until(lambda: overlays().get(scope, Overlay()).more.get("when_above") == steps, 20)


async def test_a_key_that_is_made_at_run_time(gateway: Inside) -> None:
    made = await admin(gateway, "POST", "keys", {"id": "new", "quotas": [QUOTA]}, 201)
    none = {"object": "when_above", "scope": "key:new", "steps": [], "managed_by": None}
    assert await admin(gateway, "GET", "keys/new/when_above") == none
    given = {**none, "steps": SHOWN, "managed_by": "store"}
    assert await admin(gateway, "PUT", "keys/new/when_above", {"steps": HALF}) == given
    await heard(gateway, "key:new", read_steps(HALF))
    assert [await model_of(gateway, made["secret"]) for _ in range(2)] == ["dear", "mini"]
    assert await admin(gateway, "GET", "keys/new/when_above") == given
    (entry, *_) = (await admin(gateway, "GET", "audit"))["data"]
    assert (entry["kind"], entry["name"], entry["action"]) == ("key", "new", "update")
    assert (entry["before"], entry["after"]) == ({"when_above": None}, {"when_above": SHOWN})
    assert await admin(gateway, "PUT", "keys/new/when_above", {"steps": None}) == none
    await heard(gateway, "key:new", None)
    await admin(gateway, "POST", "keys/new/reset", {})
    assert [await model_of(gateway, made["secret"]) for _ in range(2)] == ["dear", "dear"]


async def test_teams_and_people_have_them_too(gateway: Inside) -> None:
    for path, scope, secret in (
        ("teams/red", "team:red", "sk-gw-key-of-the-team-red-1"),
        ("people/Ann", "person:ann", "sk-gw-key-of-ann-000000001"),
    ):
        given = await admin(gateway, "PUT", f"{path}/when_above", {"steps": HALF})
        assert (given["scope"], given["steps"], given["managed_by"]) == (scope, SHOWN, "store")
        await heard(gateway, scope, read_steps(HALF))
        assert [await model_of(gateway, secret) for _ in range(2)] == ["dear", "mini"]


REFUSED: list[tuple[str, Any, int, str | None, str | None]] = [
    ("keys/named", HALF, 409, "managed_by_file", None),
    ("keys/none", HALF, 404, "key_not_found", None),
    ("teams/none", HALF, 404, "team_not_found", None),
    ("people/none", HALF, 404, "person_not_found", None),
    ("keys/one", [{"share": "50%", "use": "gone"}], 400, None, "steps[0].use"),
    ("keys/one", [{"share": "150%", "use": "mini"}], 400, None, "steps[0].share"),
    ("keys/one", [*HALF, {"share": 0.4, "use": "nano"}], 400, None, "steps[1].share"),
    ("keys/one", [{"share": 0.4}], 400, None, "steps[0].use"),
]


async def test_what_cannot_be_given(gateway: Inside) -> None:
    for path, steps, status, code, param in REFUSED:
        error = (await admin(gateway, "PUT", f"{path}/when_above", {"steps": steps}, status))["error"]
        assert error["param"] == param, path
        assert code in (None, error["code"]), path


async def test_they_count_only_where_the_file_lets_them(gateway: Inside) -> None:
    await admin(gateway, "PUT", "keys/one/when_above", {"steps": HALF})
    await gateway.change(when_above={"keys": {"defaults": [{"share": 0.9, "use": "nano"}]}})
    found = await admin(gateway, "GET", "keys/one/when_above")
    assert (found["steps"], found["managed_by"]) == ([{"share": 0.9, "use": "nano"}], None)
    error = (await admin(gateway, "PUT", "keys/one/when_above", {"steps": HALF}, 409))["error"]
    assert "when_above.at_run_time" in error["message"]
    assert (await admin(gateway, "PUT", "keys/one/when_above", {"steps": None}))["managed_by"] is None


def test_steps_of_another_version_do_not_count() -> None:
    assert [read_steps(values) for values in (None, 5, ["x"], [{"share": 2}], [])] == [None, None, None, None, ()]


def test_the_file_counts_before_the_store_and_the_store_before_the_rest() -> None:
    settings = CheaperSettings.model_validate(
        {"at_run_time": True, "people": {"ann": HALF, "role:lead": [], "defaults": [{"share": 0.9, "use": "nano"}]}}
    )
    mini, nano = read_steps(HALF), read_steps([{"share": 0.9, "use": "nano"}])
    given = Overlay(more={"when_above": nano})
    assert steps_of(settings, settings.people, "ann", given) == mini
    assert steps_of(settings, settings.people, "bob", given._replace(role="lead")) == nano
    assert steps_of(settings, settings.people, "bob", Overlay(more={"when_above": ()})) == ()
    assert steps_of(settings, settings.people, "bob", Overlay(role="lead")) == ()
    assert steps_of(settings, settings.people, "bob", Overlay()) == nano
    off = settings.model_copy(update={"at_run_time": False})
    assert steps_of(off, off.people, "bob", Overlay(more={"when_above": mini})) == nano


# ------------------------------------------------------------------------------------------------------------ commands


def test_the_commands_work_on_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "upstreams": {"up": {"base_url": "http://127.0.0.1:9/v1"}},
        "store": {"url": f"embedded:{tmp_path / 'data'}", "journal_dir": str(tmp_path / "journal")}, **SECTIONS,
    }  # fmt: skip
    build(values)
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(values))

    def asked(*arguments: str, code: int = 0) -> Any:
        assert cli.main(["when-above", *arguments, "--config", str(file)]) == code
        return capsys.readouterr()

    shown = asked("set", "team:blue", "--step", "80%=mini", "--step", "95%:dear=nano", "--json").out
    assert json.loads(shown)["steps"] == [
        {"share": 0.8, "use": "mini"},
        {"share": 0.95, "use": "nano", "model": "dear"},
    ]
    asked("set", "key:one", "--step", "50%=mini", "--max-prompt-tokens", "4k")
    assert json.loads(asked("show", "key:one", "--json").out)["steps"][0]["max_prompt_tokens"] == 4000
    assert json.loads(asked("set", "key:one", "--step", "none", "--json").out)["steps"] == []
    assert json.loads(asked("clear", "key:one", "--json").out)["managed_by"] is None
    assert "there is no model 'gone'" in asked("set", "key:one", "--step", "50%=gone", code=2).err
    assert "expected key:NAME, team:NAME, person:NAME" in asked("show", "gateway", code=2).err
    assert "argument --step: expected SHARE=MODEL" in asked("set", "key:one", "--step", "mini", code=2).err
    assert "Change it there and reload" in asked("clear", "key:named", code=1).err
    assert cli.main(["audit", "--config", str(file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["kind"], row["name"]) for row in rows} == {("team", "blue"), ("key", "one")}
    assert all(row["actor"].startswith("gateway when-above, user ") for row in rows)


async def test_the_commands_work_over_the_network(
    gateway: Inside, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_TOKEN", ADMIN_TOKEN)
    monkeypatch.setenv("GATEWAY_URL", str(gateway.client.make_url("")).rstrip("/"))
    scope = "person:ann"
    assert await asyncio.to_thread(cli.main, ["when-above", "set", scope, "--step", "50%=mini", "--json"]) == 0
    assert await asyncio.to_thread(cli.main, ["when-above", "show", scope, "--json"]) == 0
    first, second = capsys.readouterr().out.strip().split("}\n{")
    assert first in f"{{{second}"
    (entry, *_) = (await admin(gateway, "GET", "audit"))["data"]
    assert (entry["kind"], entry["name"], entry["after"]) == ("person", "ann", {"when_above": SHOWN})


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("80%=m", {"share": "80%", "use": "m"}), ("0.8:gpt-*=m", {"share": "0.8", "use": "m", "model": "gpt-*"}),
        ("80%", None), ("=m", None), ("80%:=m", None), ("80%=", None),
    ],
)  # fmt: skip
def test_a_step_as_an_argument(text: str, step: dict[str, Any] | None) -> None:
    if step is not None:
        assert read_step(text) == step
        return
    with pytest.raises(ValueError, match="expected SHARE=MODEL"):
        read_step(text)
