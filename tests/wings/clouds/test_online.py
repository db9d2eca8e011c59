"""What `gateway check --online` asks clouds, and what it says of each answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.commands.online import Asked, ask_all, lines_of
from gateway.config import build
from gateway.wings.clouds.amazon import OF_CREDENTIALS
from tests.fakes.scripted import Behaviour, Scripted, answer, ok_json

from .fakes import ACCESS, SECRET, SESSION, signature_of

SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
LIST = ok_json({"modelSummaries": [{"modelId": SONNET}, {"modelId": "amazon.nova-pro-v1:0"}]})
RUNTIME = "https://bedrock-runtime.us-west-2.amazonaws.com"


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    """Bedrock's own API, for which botocore reads the same variable."""
    with Scripted(prefix="") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK", server.url)
        yield server


def refusal(status: int, kind: str) -> Behaviour:
    body = json.dumps({"message": f"a text with {SECRET}"}).encode()
    return answer(body, status, [("x-amzn-errortype", f"{kind}:http://internal.amazon.com/coral/")])


async def asked(auth: Any = None, model: str = f"us.{SONNET}", base_url: str = RUNTIME, **more: Any) -> list[Asked]:
    own = {"access_key_id": ACCESS, "secret_access_key": SECRET, "session_token": SESSION}
    settings = {"base_url": base_url, "auth": {"type": "aws", **own} if auth is None else auth, **more}
    found = await ask_all(
        build({"upstreams": {"up": settings}, "models": {"m": {"routes": [{"upstream": "up", "model": model}]}}}),
        spends=False,
    )
    assert SECRET not in "".join(lines_of(found))
    return found


async def test_the_list_of_the_region_is_asked_with_the_signatures_of_calls(control: Scripted) -> None:
    control._always = LIST
    grant, listed = await asked()
    assert (grant.came, grant.is_good) == ("obtained; it names no end", True)
    assert listed == Asked(f"upstream up, GET {control.url}/foundation-models", "2 models")
    (request,) = control.requests
    assert (request.method, request.path) == ("GET", "/foundation-models")
    assert request.headers["authorization"] == signature_of(request, SECRET, "bedrock", "us-west-2")


@pytest.mark.parametrize("path", ["", "/openai/v1", "/anthropic/v1"])
async def test_each_api_of_the_runtime_has_it(control: Scripted, path: str) -> None:
    control._always = LIST
    assert len(await asked(base_url=f"{RUNTIME}{path}")) == 2


async def test_an_api_key_of_bedrock_is_asked_too(control: Scripted) -> None:
    control._always = LIST
    for path in ("", "/openai/v1"):
        (listed,) = await asked("key", base_url=f"{RUNTIME}{path}", api_key="a-key-of-bedrock")
        assert listed.is_good
    assert control.requests[0].headers["authorization"] == "Bearer a-key-of-bedrock"


@pytest.mark.parametrize("kind", OF_CREDENTIALS)
async def test_a_refusal_of_credentials_is_said_with_its_cause(control: Scripted, kind: str) -> None:
    control._always = refusal(403, kind)
    _, listed = await asked()
    assert (listed.came, listed.is_good) == (f"{kind}: {OF_CREDENTIALS[kind]}", False)


@pytest.mark.parametrize(
    ("behaviour", "says", "is_good", "is_doubtful"),
    [
        (refusal(403, "AccessDeniedException"), "may not list models (bedrock:ListFoundationModels)", True, True),
        (answer(b"<html>", 403), "it answered 403: the credentials are good", True, True),
        (refusal(429, "ThrottlingException"), "it answered 429 (ThrottlingException)", False, False),
        (refusal(500, "InternalServerException"), "it answered 500 (InternalServerException)", False, False),
        (answer(b"[]"), "it answered 200", False, False),
    ],
)
async def test_other_answers(
    control: Scripted, behaviour: Behaviour, says: str, is_good: bool, is_doubtful: bool
) -> None:
    control._always = behaviour
    _, listed = await asked()
    assert says in listed.came
    assert (listed.is_good, listed.is_doubtful) == (is_good, is_doubtful)


@pytest.mark.parametrize(
    ("model", "is_doubtful"),
    [
        (SONNET, False), (f"global.{SONNET}", False), (f"us-gov.{SONNET}", False),
        ("arn:aws:bedrock:us-west-2:1:application-inference-profile/x", False), ("us.anthropic.claude-misspelt", True),
    ],
)  # fmt: skip
async def test_a_model_that_the_region_does_not_list_is_doubtful(
    control: Scripted, model: str, is_doubtful: bool
) -> None:
    control._always = LIST
    _, listed = await asked(model=model)
    assert listed.is_doubtful == is_doubtful
    assert listed.came == (f"not in the list of this region: {model}" if is_doubtful else "2 models")


async def test_without_credentials_nothing_is_asked(control: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nowhere")
    (grant,) = await asked("aws")
    assert not grant.is_good
    assert control.hits == 0


def test_an_address_without_a_list_is_not_discovered() -> None:
    with pytest.raises(Exception, match="this address has no list of models"):
        build({"upstreams": {"up": {"base_url": RUNTIME, "auth": "aws", "discover": True}}, "models": {}})
