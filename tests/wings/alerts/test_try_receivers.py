"""`gateway alerts test`: one message to each receiver, and an exit code that scripts can use."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import cli
from tests.fakes import scripted
from tests.fakes.scripted import Scripted, dead_port
from tests.wings.alerts.test_mail import Starts, start

__all__ = ["start"]

TOKEN = "T0KEN-that-nobody-may-see"


class Hooks:
    """Runs the command with these alerts."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file = folder / "gateway.yaml"
        self._capsys = capsys

    def run(self, alerts: dict[str, Any], *words: str) -> tuple[int, str]:
        values = {
            "upstreams": {"up": {"base_url": "https://api.example.com/v1"}},
            "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 100}},
            "store": {"namespace": "acme"},
            "alerts": alerts,
        }
        self._file.write_text(yaml.safe_dump(values, sort_keys=False))
        code = cli.main(["alerts", "test", "--config", str(self._file), *words])
        shown = "".join(self._capsys.readouterr())
        assert TOKEN not in shown
        return code, shown


@pytest.fixture
def hooks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Hooks:
    return Hooks(tmp_path, capsys)


def test_each_receiver_gets_its_form(hooks: Hooks, start: Starts) -> None:
    box, port = start()
    with Scripted(always=scripted.answer(b"ok", 202)) as hook:
        address = {"webhook": f"{hook.url}/{TOKEN}"}
        receivers = {
            **{form: {**address, "form": form} for form in ("slack", "mattermost", "teams")},
            "pager": {**address, "form": "pagerduty", "routing_key": TOKEN},
            "people": {"email": ["owner", "ops@example.org"]},
        }
        smtp = {"host": "127.0.0.1", "port": port, "security": "none", "sender": "gateway@example.org"}
        code, shown = hooks.run({**address, "smtp": smtp, "receivers": receivers}, "--owner", "ann@example.org")
        bodies = [request.json for request in hook.requests]
    assert code == 0, shown
    assert [line.split()[:2] for line in shown.splitlines()] == [
        ["sent", f"{name},"] for name in ("webhook", "slack", "mattermost", "teams", "pager", "people")
    ]
    assert bodies[0]["type"] == "test"
    assert [set(body) for body in bodies[1:4]] == [{"text", "blocks"}, {"text"}, {"type", "attachments"}]
    assert [body["event_action"] for body in bodies[4:]] == ["trigger", "resolve"]
    assert [to for to, _ in box.taken] == [["ann@example.org", "ops@example.org"]]


def test_those_that_are_named(hooks: Hooks) -> None:
    with Scripted(always=scripted.answer(b"ok")) as hook:
        receivers = {"a": {"webhook": f"{hook.url}/a"}, "b": {"webhook": f"{hook.url}/b"}}
        assert hooks.run({"receivers": receivers}, "b")[0] == 0
        assert [request.path for request in hook.requests] == ["/v1/b"]


def test_a_failure_is_named_and_is_the_exit_code(hooks: Hooks) -> None:
    with Scripted(always=scripted.answer(b"", 403)) as hook:
        receivers = {"a": {"webhook": f"{hook.url}/{TOKEN}"}, "mail": {"email": ["a@example.org"]}}
        smtp = {"host": "127.0.0.1", "port": dead_port(), "sender": "gateway@example.org"}
        code, shown = hooks.run({"receivers": receivers, "smtp": smtp})
    assert code == 1
    assert f"FAILED  a, {hook.url.removesuffix('/v1')} (json): it answers 403" in shown
    assert "FAILED  mail, e-mail to a@example.org: it cannot be reached" in shown


@pytest.mark.parametrize(
    ("alerts", "words", "error"),
    [
        ({}, [], "has no receiver of alerts: see alerts.webhook and alerts.receivers"),
        ({"webhook": "http://127.0.0.1:9"}, ["slack"], "no receiver is called 'slack'; known are webhook"),
    ],
)
def test_mistakes(alerts: dict[str, Any], words: list[str], error: str, hooks: Hooks) -> None:
    code, shown = hooks.run(alerts, *words)
    assert code == 2
    assert error in shown


def test_what_is_posted_is_signed_as_standard_webhooks_wants(hooks: Hooks) -> None:
    key = hashlib.sha256(b"a key").digest()
    secret = f"whsec_{base64.b64encode(key).decode()}"
    with Scripted(always=scripted.answer(b"ok")) as hook:
        assert hooks.run({"receivers": {"a": {"webhook": hook.url, "secret": secret}}})[0] == 0
        (request,) = hook.requests
    name, at = request.headers["webhook-id"], request.headers["webhook-timestamp"]
    expected = hmac.digest(key, f"{name}.{at}.".encode() + request.body, "sha256")
    assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(expected).decode()}"
    assert json.loads(request.body)["type"] == "test"


async def test_online_asks_the_mail_server_and_every_address(start: Starts) -> None:
    from tests.commands.test_online import AWAY, MODELS, asked, values

    box, port = start()
    async with Scripted(always=MODELS) as hook:
        smtp = {"host": "127.0.0.1", "port": port, "security": "none", "sender": "gateway@example.org"}
        receivers = {"chat": {"webhook": f"{hook.url}/{TOKEN}"}, "people": {"email": ["a@example.org"]}}
        found = (await asked(values(AWAY, alerts={"smtp": smtp, "receivers": receivers})))[-2:]
        assert [(each.what.partition(",")[0], each.came) for each in found] == [
            ("alerts.receivers.chat", "connected; no event was sent"),
            ("alerts.smtp", "connected; no mail was sent"),
        ]
        assert (hook.hits, box.taken) == (0, [])
