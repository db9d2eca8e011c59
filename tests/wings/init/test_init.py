"""`gateway init`: what it finds at upstreams of several makes, and the file that it writes."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.commands.common import UsageError
from gateway.config import build, resolve
from gateway.wings.init.run import Found, find_models, name_of, text_of
from tests.fakes.proxy import ConnectProxy, tunnel
from tests.fakes.scripted import Scripted, Wire, answer, error_json, ok_json

KEY = "sk-upstream-key-that-nobody-may-see"
LISTS: dict[str, Any] = {
    "openai": {"object": "list", "data": [{"id": "gpt-4o", "object": "model", "owned_by": "system"}]},
    "openrouter": {"data": [{"id": "openai/gpt-4o", "pricing": {"prompt": "0.0000025"}, "context_length": 128000}]},
    "vllm": {"object": "list", "data": [{"id": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 8192}]},
    "ollama": {"object": "list", "data": [{"id": "llama3.2:latest", "object": "model", "owned_by": "library"}]},
}


@pytest.mark.parametrize("make", sorted(LISTS))
async def test_models_are_found(make: str) -> None:
    async with Scripted(always=ok_json(LISTS[make])) as upstream:
        found = await find_models(upstream.url, KEY)
        assert found == (upstream.url, [LISTS[make]["data"][0]["id"]], ())
        assert upstream.requests[0].headers["authorization"] == f"Bearer {KEY}"


def under(path: str) -> Any:
    """An upstream whose API is below this path only."""

    async def behaviour(wire: Wire) -> None:
        await (ok_json(LISTS["openai"]) if wire.request.path == f"{path}/models" else error_json(404))(wire)

    return behaviour


@pytest.mark.parametrize("path", ["/v1", "/api/v1", "/openai/v1"])
async def test_the_path_of_the_api_is_found(path: str) -> None:
    async with Scripted(always=under(path)) as upstream:
        bare = upstream.url.removesuffix("/v1")
        assert (await find_models(bare, None)).base_url == bare + path


@pytest.mark.parametrize(
    ("behaviour", "key", "says"),
    [
        (error_json(401), KEY, "answered 401: the key was refused"),
        (error_json(401), None, "it wants a key: name its variable with --key-variable"),
        (error_json(404), KEY, "it answered 404"),
        (error_json(503), KEY, "it answered 503"),
        (ok_json({"detail": "hello"}), KEY, "it answered 200, and not with a list of models"),
        (answer(b"<html>"), KEY, "not with a list of models"),
        (answer(b"", 302, [("Location", "https://elsewhere.example/")]), KEY, "which leads to https://elsewhere.ex"),
    ],
)
async def test_what_was_tried_is_said(behaviour: Any, key: str | None, says: str) -> None:
    async with Scripted(always=behaviour) as upstream:
        found = await find_models(upstream.url, key)
        assert (found.base_url, found.models) == (upstream.url, ())
        (said,) = found.problems
        assert said.startswith(f"GET {upstream.url}/models: ")
        assert says in said
        assert KEY not in said


async def test_an_upstream_that_is_away() -> None:
    found = await find_models("http://127.0.0.1:9", None)
    assert found.base_url == "http://127.0.0.1:9/v1"
    assert "cannot connect to 127.0.0.1:9" in found.problems[0]
    assert len(found.problems) == 1  # another path is at the same address


async def test_a_key_that_no_header_can_hold() -> None:
    (said,) = (await find_models("http://127.0.0.1:9/v1", "two words")).problems
    assert said == "the address or the key holds characters that cannot be sent"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://api.yescale.io/v1", "yescale"),
        ("https://eu.llm.example.com/v1", "example"),
        ("http://localhost:11434/v1", "ollama"),
        ("http://127.0.0.1:8000/v1", "vllm"),
        ("http://127.0.0.1:1234/v1", "local"),
        ("http://10.0.0.7:8000/v1", "upstream"),
    ],
)
def test_names(url: str, name: str) -> None:
    assert name_of(url) == name


@pytest.mark.parametrize("variable", ["OPENAI_API_KEY", None])
async def test_the_file_is_a_good_one(variable: str | None) -> None:
    async with Scripted(always=ok_json(LISTS["openai"])) as upstream:
        found = await find_models(upstream.url, None)
    text = text_of("openai", found, variable)
    by_pattern = build(resolve(text_of("openai", Found(upstream.url, (), ["away"]), None), {}).values)
    assert by_pattern.models["*"].max_output_tokens  # whose upstream could not be asked
    config = build(resolve(text, {"OPENAI_API_KEY": KEY}).values)
    assert len([line for line in text.splitlines() if line and not line.startswith("#")]) <= 6
    assert config.upstreams["openai"].base_url == upstream.url
    assert (config.upstreams["openai"].api_key is None) == (variable is None)
    assert config.upstreams["openai"].discover is not None
    assert config.defaults.models.max_output_tokens
    timeouts = config.upstreams["openai"].timeouts
    assert (timeouts.head_s, timeouts.idle_s, timeouts.total_s) == (300, 300, 1800)  # of a model that reasons
    assert by_pattern.upstreams["openai"].timeouts == timeouts
    assert KEY not in text


async def test_the_proxy_of_the_environment_is_used_as_when_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ok_json({"data": [{"id": "gpt-4o"}]})
    async with Scripted(models) as upstream, ConnectProxy(always=tunnel(upstream.port)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        found = await find_models("http://api.example.com/v1", KEY)
        assert list(found.models) == ["gpt-4o"]
        assert proxy.targets == ["api.example.com:80"]


async def test_an_unusable_proxy_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:9")
    with pytest.raises(UsageError, match="the environment variable http_proxy names no usable proxy"):
        await find_models("http://api.example.com/v1", KEY)
