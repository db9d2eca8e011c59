"""A file of LiteLLM's proxy and rows of its database become a gateway that serves its users up to its budget."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.wings.litellm.database import add_rows, read_rows
from gateway.wings.litellm.run import convert
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import settings

FILE = Path(__file__).parent / "files" / "team.yaml"
SECRET = "sk-a-key-that-litellm-made-0001"
ENVIRONMENT = {
    "OPENAI_KEY_1": "sk-one", "OPENAI_KEY_2": "sk-two", "DEEPSEEK_API_KEY": "sk-three", "BRIA_API_KEY": "sk-four",
    "LITELLM_MASTER_KEY": "admin-token-that-nobody-may-see", "JWT_ISSUER": "https://login.example.org",
    "JWT_AUDIENCE": "gateway", "JWT_PUBLIC_KEY_URL": "https://login.example.org/keys",
}  # fmt: skip
USAGE = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
ANSWER = {
    "id": "c-1", "object": "chat.completion", "created": 1, "model": "gpt-4o-mini-2024-07-18",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}],
    "usage": USAGE,
}  # fmt: skip


def imported(upstream: str) -> dict[str, Any]:
    """The result for a budget of $0.0015, with every provider at one address."""
    now = datetime(2026, 11, 28, tzinfo=UTC)
    done = convert(FILE.read_text().replace("max_budget: 1500", "max_budget: 0.0015"), str(FILE), now)
    token = hashlib.sha256(SECRET.encode()).hexdigest()
    rows = {"LiteLLM_VerificationToken": [{"token": token, "key_alias": "alice", "models": ["gpt-4o-mini"]}]}
    add_rows(done, read_rows(json.dumps(rows), "rows.json"), now)
    for name, each in done.values["upstreams"].items():
        each |= {"base_url": upstream, "provider": "deepseek" if name == "deepseek" else "openai"}
    plain = settings(upstream)
    return {**done.values, "server": plain["server"]}


def test_a_key_of_litellm_is_served_up_to_the_budget(upstream: ScriptedUpstream, start_gateway: StartsGateways) -> None:
    upstream.answer_with(always=ok_json(ANSWER))
    gateway = start_gateway(imported(upstream.url), env=ENVIRONMENT)
    body = {"model": "gpt-4o-mini", "max_tokens": 100, "messages": [{"role": "user", "content": "x" * 400}]}
    headers = {"Authorization": f"Bearer {SECRET}"}
    answers = [gateway.post("/v1/chat/completions", body, headers=headers) for _ in range(24)]
    # A call costs 100 x $0.15 and 100 x $0.60 per million tokens: 20 of them are the budget.
    served = [answer for answer in answers if answer.status == 200]
    assert 18 <= len(served) <= 20
    refused = answers[-1]
    assert refused.status == 429
    assert refused.json["error"]["code"] == "insufficient_quota"
    (sums,) = gateway.admin("usage", group_by="key").json["data"]
    assert (sums["unpriced"], sums["cost_usd"]) == (0, round(len(served) * 0.000075, 9))
