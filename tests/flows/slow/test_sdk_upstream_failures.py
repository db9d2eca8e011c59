"""How often the official SDKs, with their default two retries, send a call that an upstream failed: once where no
repetition can succeed or a repetition may be billed again, and three times otherwise. Counted at the upstream."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, error_json, silent
from tests.flows.gateway_process import CHAT, UPSTREAM_KEY, Gateway, model, secret, settings
from tests.flows.sdks import Call, ask_with

HEAD_S = 0.2

UNAUTHORIZED = error_json(401, code="invalid_api_key")
SPENT = error_json(403, code="insufficient_user_quota")
BROKEN = error_json(500)

ROWS: dict[str, tuple[str, Behaviour, int, str, int]] = {
    # Kind of model, answer of the upstream, and then: status, code, requests at the upstream.
    "refused key": ("once", UNAUTHORIZED, 502, "upstream_auth_failed", 1),
    "spent balance": ("once", SPENT, 502, "upstream_quota_exceeded", 1),
    "timeout": ("once", silent, 504, "upstream_timeout", 1),
    "timeout, repeated by the gateway": ("again", silent, 504, "upstream_timeout", 3),
    "broken": ("once", BROKEN, 502, "upstream_error", 3),
}


def name_of(row: str, sdk: str) -> str:
    return f"{row} {sdk}"


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """One upstream for each call, so that no failure changes the health that another call finds."""
    upstreams: dict[str, Any] = {}
    models: dict[str, Any] = {CHAT: model("chat")}
    for row, (kind, *_) in ROWS.items():
        for sdk in ask_with:
            name = name_of(row, sdk).replace(" ", "-").replace(",", "")
            upstreams[name] = {"base_url": shared_upstream.url, "api_key": UPSTREAM_KEY, "timeouts": {"head_s": HEAD_S}}
            more = {"repeat_when_waiting": True, "max_attempts": 1} if kind == "again" else {}
            models[name_of(row, sdk)] = model("chat", name, **more)
    return start_shared_gateway(settings(shared_upstream.url, upstreams=upstreams, models=models))


@pytest.mark.parametrize("sdk", ask_with)
@pytest.mark.parametrize("row", ROWS)
def test_requests_of_an_sdk(gateway: Gateway, upstream: ScriptedUpstream, row: str, sdk: str) -> None:
    _, behaviour, status, code, requests = ROWS[row]
    upstream.answer_with(always=behaviour)
    call = Call("chat.completions", {"model": name_of(row, sdk), "messages": [{"role": "user", "content": "Hi"}]})
    (received,) = ask_with[sdk](f"{gateway.url}/v1", secret("alice"), [call])
    assert (received["error"]["status"], received["error"]["code"], upstream.hits) == (status, code, requests)
