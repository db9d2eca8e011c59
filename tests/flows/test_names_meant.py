"""An error about a model names the one that was probably meant, of those that the key may use."""

from __future__ import annotations

import pytest

from gateway.spelling import nearest
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows.gateway_process import key, model, settings

NAMES = ["gpt-4o", "gpt-4o-mini", "openai/o4-mini", "claude-sonnet-4-5"]


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("GPT-4o-mini", "gpt-4o-mini"), ("openai/gpt-4o-mini", "gpt-4o-mini"), (" gpt-4o-mini ", "gpt-4o-mini"),
        ("gpt-4o_mini", "gpt-4o-mini"), ("o4-mini", "openai/o4-mini"), ("claude-sonet-4-5", "claude-sonnet-4-5"),
        ("claude-sonnet-4.5", "claude-sonnet-4-5"), ("gpt-5", None), ("", None), ("x" * 10_000, None), ("/", None),
    ],
)  # fmt: skip
def test_the_nearest_name(asked: str, meant: str | None) -> None:
    assert nearest(asked, NAMES) == meant


def test_a_key_sees_only_names_that_it_may_use(upstream: ScriptedUpstream, start_gateway: StartsGateways) -> None:
    config = settings(
        upstream.url,
        models={"gpt-4o-mini": model("chat"), "secret-project": model("chat")},
        keys=[key("alice", models=["gpt-4o*"]), key("bob")],
    )
    gateway = start_gateway(config)
    assert "Did you mean `gpt-4o-mini`?" in gateway.chat(model="GPT-4o-mini").json["error"]["message"]
    assert "Did you mean" not in gateway.chat(model="Secret-Project").json["error"]["message"]
    assert "Did you mean `secret-project`?" in gateway.chat("bob", model="Secret-Project").json["error"]["message"]
    assert upstream.hits == 0
