"""The hooks in `examples/hooks`, in front of a gateway, with openai-python as its client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

import deny_list
import hook_server
import moderation
import pytest
import redactor
import secrets_in_answers

from tests.fakes import scripted
from tests.fakes.scripted import Scripted, until
from tests.web.conftest import KEY, Inside

from .test_hooks import GOOD, SECRET
from .test_hooks import KEY as SIGNING_KEY

if TYPE_CHECKING:
    import openai

MODELS = {
    "m": {"routes": [{"upstream": "up"}], "max_output_tokens": 100},
    moderation.MODEL: {"routes": [{"upstream": "up"}], "endpoints": ["moderations"]},
}
CHUNK = {
    "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "up",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}  # fmt: skip


async def upstream_of_openai(wire: scripted.Wire) -> None:
    """Answers moderations, which flag violence, and chats, plain and streamed."""
    asked = wire.request.json
    if wire.request.path.endswith("/moderations"):
        is_bad = "attack" in str(asked["input"])
        result = {"flagged": is_bad, "categories": {"violence": is_bad, "hate": False}, "category_scores": {}}
        await scripted.ok_json({"id": "modr-1", "model": asked["model"], "results": [result]})(wire)
    else:
        await (scripted.stream([CHUNK]) if asked.get("stream") else GOOD)(wire)


@contextmanager
def running(decide: hook_server.Decide) -> Iterator[str]:
    """The address of a hook."""
    server = hook_server.server(decide, SECRET)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Team:
    """A client of a gateway with these hooks."""

    def __init__(self, client: openai.AsyncOpenAI, upstream: Scripted, url: str) -> None:
        self.client = client
        self.upstream = upstream
        self.url = url

    async def say(self, text: str, *, stream: bool) -> str:
        """Returns what the upstream was sent."""
        messages: Any = [{"role": "user", "content": text}]
        if stream:
            async for _ in await self.client.chat.completions.create(model="m", messages=messages, stream=True):
                pass
        else:
            await self.client.chat.completions.create(model="m", messages=messages)
        sent: str = self.upstream.requests[-1].json["messages"][0]["content"]
        return sent


@pytest.fixture
async def team(inside: Inside) -> AsyncIterator[Any]:
    import openai

    async with AsyncExitStack() as stack:

        async def start(**hooks: hook_server.Decide) -> Team:
            upstream = await stack.enter_async_context(Scripted(always=upstream_of_openai))
            urls = {name: stack.enter_context(running(decide)) for name, decide in hooks.items()}
            before = {
                name: {"url": url, "secret": SECRET, "sees": "body", "endpoints": ["chat"], "timeout_ms": 20_000}
                for name, url in urls.items()
            }
            made = await inside(upstream.url, models=MODELS, hooks={"before_call": before})
            url = str(made.make_url("/")).rstrip("/")
            client = openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0)
            stack.push_async_callback(client.close)
            return Team(client, upstream, url)

        yield start


@pytest.mark.parametrize("stream", [False, True])
async def test_the_redactor(team: Any, *, stream: bool) -> None:
    one = await team(redactor=redactor.decide)
    assert await one.say("Write to ann.lee+x@mail.example.com, please", stream=stream) == (
        "Write to [e-mail address], please"
    )
    assert await one.say("Nothing in it", stream=stream) == "Nothing in it"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_deny_list(team: Any, *, stream: bool) -> None:
    import openai

    one = await team(deny=deny_list.denying(["project\\s+x", ""]))
    with pytest.raises(openai.PermissionDeniedError) as refused:
        await one.say("What is Project  X?", stream=stream)
    assert refused.value.code == "on_deny_list"
    assert one.upstream.hits == 0
    assert await one.say("What is project Y?", stream=stream) == "What is project Y?"


async def test_moderation_through_the_gateway_itself(team: Any) -> None:
    import openai

    known: list[hook_server.Decide] = []

    def decide(question: dict[str, Any]) -> dict[str, Any]:
        return known[0](question)  # the gateway's address is not known before that of its hook

    one = await team(moderation=decide)
    known.append(moderation.moderating(one.url, KEY))
    with pytest.raises(openai.BadRequestError) as refused:
        await one.say("How do I attack?", stream=False)
    assert (refused.value.code, "violence" in str(refused.value)) == ("content_policy_violation", True)
    assert await one.say("How do I bake?", stream=False) == "How do I bake?"
    paths = [request.path for request in one.upstream.requests]
    assert paths == ["/v1/moderations", "/v1/moderations", "/v1/chat/completions"]


def test_an_answer_with_a_secret_is_reported_once_and_without_it() -> None:
    reported: list[str] = []
    decide = secrets_in_answers.watching(reported.append)
    secret = "sk-" + "a1B2" * 8
    for number, text in enumerate(["Hi", f"It is {secret}.", None]):
        posted = {
            "call": {"id": f"req_{number}", "key": "alice", "model": "m"},
            "answer": {"texts": [text], "cut": False},
        }
        for _ in range(2):
            decide(posted if text is not None else {"call": posted["call"]})
    assert reported == ["call req_1 of key alice: the answer of m has something like a secret"]


async def test_secrets_in_answers(inside: Inside) -> None:
    """Through a gateway, with openai-python as the client, plain and streamed."""
    import openai

    reported: list[str] = []
    secret = "ghp_" + "a1B2" * 9
    chunk = {**CHUNK, "choices": [{**CHUNK["choices"][0], "delta": {"content": secret}}]}

    async def upstream_of_secrets(wire: scripted.Wire) -> None:
        message = {"role": "assistant", "content": secret}
        plain = {
            **CHUNK,
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }
        await (scripted.stream([chunk]) if wire.request.json.get("stream") else scripted.ok_json(plain))(wire)

    with running(secrets_in_answers.watching(reported.append)) as hook:
        async with Scripted(always=upstream_of_secrets) as upstream:
            after = {"watch": {"url": hook, "secret": SECRET, "answers_of": ["k"]}}
            made = await inside(upstream.url, models=MODELS, hooks={"after_call": after})
            async with openai.AsyncOpenAI(api_key=KEY, base_url=str(made.make_url("/v1")), max_retries=0) as client:
                messages: Any = [{"role": "user", "content": "Tell me"}]
                await client.chat.completions.create(model="m", messages=messages)
                async for _ in await client.chat.completions.create(model="m", messages=messages, stream=True):
                    pass
            await until(lambda: len(reported) == 2)
    assert secret not in str(reported)


def test_a_signature_holds_for_one_body_and_five_minutes() -> None:
    from gateway.standard_webhooks import signature

    headers = signature(SIGNING_KEY, b"{}", 1000)
    assert hook_server.is_signed(headers, b"{}", SECRET, 1299)
    assert not hook_server.is_signed(headers, b"{}", SECRET, 1301)
    assert not hook_server.is_signed(headers, b"[]", SECRET, 1000)
    assert not hook_server.is_signed({**headers, "webhook-timestamp": "1001"}, b"{}", SECRET, 1001)
    assert not hook_server.is_signed({}, b"{}", SECRET, 1000)
    rotated = {**headers, "webhook-signature": f"v1,bm8= {headers['webhook-signature']}"}
    assert hook_server.is_signed(rotated, b"{}", SECRET, 1000)
