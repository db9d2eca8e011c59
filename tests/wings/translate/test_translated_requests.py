"""Requests that agents send, translated: the target's API takes what it gets, and nothing of the client's is lost.

What the targets take: openai-openapi (`ChatCompletionRequestToolMessage`: text alone; each `tool_call_id` is answered
before any other message; names of at most 64 characters), and of Anthropic the sentences of its own 400s in the
reports: texts are not empty, ids are unique, results stand in the next message and before anything else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import pytest

from gateway.wings.translate import responses_request
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.field.played import MESSAGES, ask, chat_answer, configuration
from tests.flows.gateway_process import Gateway

PIXEL = "iVBORw0KGgo="
LOOK = {"type": "object", "properties": {"at": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "parameters": LOOK}}
TOOL = {"name": "look", "input_schema": LOOK}
RESPONSES_TOOL = {"type": "function", "name": "look", "parameters": LOOK, "strict": False}
USER = {"role": "user", "content": "Look."}


def call(call_id: str, at: str = "here") -> dict[str, Any]:
    """One of `tool_calls`."""
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": json.dumps({"at": at})}}


def result(call_id: str, content: Any = "seen") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def used(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {"at": "here"}}


def answered(call_id: str, content: Any = "seen") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
DATA_URL = f"data:image/png;base64,{PIXEL}"


# ------------------------------------------------------------------------------------------------ what the targets take


def blocks(body: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each block of a Messages body with the number of its message."""
    for number, message in enumerate(body["messages"]):
        content = message["content"]
        yield from (
            (number, each) for each in ([{"type": "text", "text": content}] if isinstance(content, str) else content)
        )


def fits_messages(body: dict[str, Any]) -> None:
    """What Anthropic refuses is not in it."""
    texts = [each["text"] for _, each in blocks(body) if each["type"] == "text"]
    system = body.get("system") or []
    texts += [system] if isinstance(system, str) and system else [each["text"] for each in system if system != ""]
    assert all(text.strip() for text in texts), "text content blocks must be non-empty"
    assert all(message["content"] for message in body["messages"]), "messages must have non-empty content"
    ids = [each["id"] for _, each in blocks(body) if each["type"] == "tool_use"]
    assert len(ids) == len(set(ids)), "`tool_use` ids must be unique"
    for number, message in enumerate(body["messages"]):
        content = message["content"] if isinstance(message["content"], list) else []
        uses = [each["id"] for each in content if each["type"] == "tool_use"]
        if uses:
            following = body["messages"][number + 1]["content"]
            head = following[: len(uses)]
            assert [each["type"] for each in head] == ["tool_result"] * len(uses), "results stand first"
            assert {each["tool_use_id"] for each in head} == set(uses)
    roles = [message["role"] for message in body["messages"]]
    assert set(roles) <= {"user", "assistant"}


def fits_chat(body: dict[str, Any]) -> None:
    """What OpenAI's chat refuses is not in it."""
    assert body.get("tools") != []
    assert "tool_choice" not in body or body["tools"]
    for tool in body.get("tools") or ():
        assert 1 <= len(tool["function"]["name"]) <= 64
    open_ids: list[str] = []
    for message in body["messages"]:
        role, content = message["role"], message.get("content")
        if role == "tool":
            assert message["tool_call_id"] in open_ids
            open_ids.remove(message["tool_call_id"])
            assert isinstance(content, str) or {part["type"] for part in content} == {"text"}
            continue
        assert not open_ids, "each call is answered before any other message"
        assert role in ("system", "developer", "user", "assistant")
        assert content is not None or message.get("tool_calls")
        open_ids = [each["id"] for each in message.get("tool_calls") or ()]
        assert len(open_ids) == len(set(open_ids))


class Row(NamedTuple):
    """A request, and what else its translation has to be."""

    name: str
    source: str
    model: str
    members: dict[str, Any]
    check: Callable[[dict[str, Any]], object] = lambda body: True


def has(*texts: str) -> Callable[[dict[str, Any]], object]:
    """Whether these texts have come."""
    return lambda body: all(text in json.dumps(body) for text in texts)


def chat(name: str, source: str, *messages: dict[str, Any], check: Any = lambda body: True, **more: Any) -> Row:
    return Row(name, source, "chat-over-messages", {"messages": list(messages), **more}, check)


def messages(name: str, source: str, *given: dict[str, Any], check: Any = lambda body: True, **more: Any) -> Row:
    return Row(name, source, "messages-over-chat", {"messages": list(given), **more}, check)


def responses(name: str, source: str, *given: dict[str, Any], check: Any = lambda body: True, **more: Any) -> Row:
    return Row(name, source, "responses-over-chat", {"input": list(given), **more}, check)


ROWS = (
    chat("empty texts", "BiFangKNT/mtga#68, maximhq/bifrost#1189",
         {"role": "system", "content": ""},
         {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "Hi"}]}),
    chat("an empty text beside calls", "NousResearch/hermes-agent#11929, aliasrobotics/cai#182", USER,
         {"role": "assistant", "content": "", "tool_calls": [call("call_a")]}, result("call_a"), tools=[CHAT_TOOL]),
    chat("a text of whitespace", "NousResearch/hermes-agent#11929, coasys/ad4m#996", USER,
         {"role": "assistant", "content": "\n", "tool_calls": [call("call_a")]}, result("call_a"), tools=[CHAT_TOOL]),
    chat("an empty message between two", "microsoft/autogen#6083", USER, {"role": "assistant", "content": ""},
         {"role": "user", "content": "Go on."}, check=has("Look.", "Go on.")),
    chat("ids that come again in each turn", "BerriAI/litellm#23510, NVIDIA-NeMo/Switchyard#502, trycua/cua#524", USER,
         {"role": "assistant", "content": None, "tool_calls": [call("call_0", "here")]}, result("call_0", "one"),
         {"role": "assistant", "content": None, "tool_calls": [call("call_0", "there")]}, result("call_0", "two"),
         tools=[CHAT_TOOL], check=has("one", "two")),
    chat("results of parallel calls", "browseros-ai/BrowserOS-agent#106", USER,
         {"role": "assistant", "content": "I look.", "tool_calls": [call("call_a"), call("call_b", "there")]},
         result("call_a"), result("call_b"), {"role": "user", "content": "And?"}, tools=[CHAT_TOOL]),
    chat("a picture between two results", "agentscope-ai/agentscope#2612", USER,
         {"role": "assistant", "content": None, "tool_calls": [call("call_a"), call("call_b", "there")]},
         result("call_a"),
         {"role": "user", "content": [{"type": "image_url", "image_url": {"url": DATA_URL}}]}, result("call_b"),
         tools=[CHAT_TOOL], check=has(PIXEL)),
    chat("calls of one turn in two messages", "exoharness/exo#256, BerriAI/litellm#21154", USER,
         {"role": "assistant", "content": "I look."},
         {"role": "assistant", "content": None, "tool_calls": [call("call_a")]},
         {"role": "assistant", "content": None, "tool_calls": [call("call_b", "there")]},
         result("call_a"), result("call_b"), tools=[CHAT_TOOL]),
    chat("a picture as a result", "router-for-me/CLIProxyAPI#1670", USER,
         {"role": "assistant", "content": None, "tool_calls": [call("call_a")]},
         result("call_a", [{"type": "text", "text": "seen"}, {"type": "image_url", "image_url": {"url": DATA_URL}}]),
         tools=[CHAT_TOOL], check=has(PIXEL)),
    chat("system messages in the middle and at the end", "raullenchai/Rapid-MLX#1543, ericc-ch/copilot-api#273",
         {"role": "system", "content": "First."}, USER, {"role": "assistant", "content": "Yes."},
         {"role": "system", "content": "Second."}, {"role": "user", "content": "Go on."},
         {"role": "developer", "content": "Third."}, check=has("First.", "Second.", "Third.")),
    chat("a reasoning text without a signature", "NousResearch/hermes-agent#34182", USER,
         {"role": "assistant", "content": "Yes.", "reasoning_content": "hm", "reasoning": "hm"},
         {"role": "user", "content": "Go on."}),
    chat("no tools, and a choice of none", "BerriAI/litellm#6228, plmbr/notebook-intelligence#55", USER, tools=None,
         tool_choice=None, check=lambda body: "tools" not in body and "tool_choice" not in body),
    messages("a system message in the middle", "ollama/ollama#17774, Alishahryar1/free-claude-code#1125",
             USER, {"role": "assistant", "content": "Yes."}, {"role": "system", "content": "Types of agents: one."},
             {"role": "user", "content": "Go on."}, check=has("Types of agents: one.")),
    messages("a system message at the end", "ericc-ch/copilot-api#273", USER, {"role": "system", "content": "do x"},
             check=lambda body: "do x" in json.dumps(body) and body["messages"][-1]["role"] != "assistant"),
    messages("a picture as a result", "router-for-me/CLIProxyAPI#4737, CommandCodeAI/command-code#850",
             USER, {"role": "assistant", "content": [used("toolu_1")]},
             {"role": "user", "content": [answered("toolu_1", [{"type": "text", "text": "seen"}, IMAGE])]},
             tools=[TOOL],
             check=has(PIXEL, "seen")),
    messages("a picture as the first of two results", "agentscope-ai/agentscope#2612, pydantic/pydantic-ai#2360", USER,
             {"role": "assistant", "content": [used("toolu_1"), used("toolu_2")]},
             {"role": "user", "content": [answered("toolu_1", [IMAGE]), answered("toolu_2", "two")]}, tools=[TOOL],
             check=has(PIXEL, "two")),
    messages("a text before a result", "browseros-ai/BrowserOS-agent#106", USER,
             {"role": "assistant", "content": [used("toolu_1")]},
             {"role": "user", "content": [answered("toolu_1"), {"type": "text", "text": "And?"}]}, tools=[TOOL],
             check=has("And?")),
    messages("the id of a call", "vllm-project/vllm#34745", USER, {"role": "assistant", "content": [used("toolu_1")]},
             {"role": "user", "content": [answered("toolu_1")]}, tools=[TOOL],
             check=lambda body: body["messages"][-1]["tool_call_id"] == "toolu_1"),
    messages("a result without content", "vllm-project/vllm#34745", USER,
             {"role": "assistant", "content": [used("toolu_1")]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]}, tools=[TOOL]),
    messages("a document", "Oaklight/llm-rosetta#159", {"role": "user", "content": [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
        {"type": "text", "text": "What is it?"}]}, check=has("JVBERi0=")),
    messages("thoughts of the history", "openai/openai-agents-python#1704, caozhiyuan/copilot-api#118", USER,
             {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                                               {"type": "text", "text": "Yes."}]},
             {"role": "user", "content": "Go on."}, check=lambda body: "c2ln" not in json.dumps(body)),
    messages("cache marks and a billing header", "caozhiyuan/copilot-api#118",
             {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
             system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
             check=lambda body: "cache_control" not in json.dumps(body)),
    messages("a picture alone", "anthropics/claude-code#55645, anthropics/claude-code#57245",
             {"role": "user", "content": [IMAGE]}, check=has(PIXEL)),
    responses("a choice without tools", "NVIDIA-NeMo/Gym#1925", USER, tools=[], tool_choice="auto",
              parallel_tool_calls=True),
    responses("parallel calls as items", "BerriAI/litellm#21154, BerriAI/litellm#22599, looplj/axonhub#2220", USER,
              {"type": "function_call", "call_id": "call_a", "name": "look", "arguments": "{}"},
              {"type": "function_call", "call_id": "call_b", "name": "look", "arguments": "{}"},
              {"type": "function_call_output", "call_id": "call_a", "output": "one"},
              {"type": "function_call_output", "call_id": "call_b", "output": "two"}, tools=[RESPONSES_TOOL],
              check=has("one", "two")),
    responses("a text and a call of one turn", "microsoft/agent-framework#694", USER,
              {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
              {"type": "function_call", "call_id": "call_a", "name": "look", "arguments": "{}"},
              {"type": "function_call_output", "call_id": "call_a", "output": "one"}, tools=[RESPONSES_TOOL],
              check=has("I look.", "one")),
    responses("a text between two calls of one turn", "looplj/axonhub#2220", USER,
              {"type": "function_call", "call_id": "call_a", "name": "look", "arguments": "{}"},
              {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "And there."}]},
              {"type": "function_call", "call_id": "call_b", "name": "look", "arguments": "{}"},
              {"type": "function_call_output", "call_id": "call_a", "output": "one"},
              {"type": "function_call_output", "call_id": "call_b", "output": "two"}, tools=[RESPONSES_TOOL],
              check=has("And there.", "one", "two")),
    responses("a developer message", "farion1231/cc-switch#7451, tashfeenahmed/freellmapi#144",
              {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]}, USER,
              check=has("Be kind.")),
    responses("a picture as a result", "raine/claude-code-proxy#59", USER,
              {"type": "function_call", "call_id": "call_a", "name": "look", "arguments": "{}"},
              {"type": "function_call_output", "call_id": "call_a", "output": [
                  {"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": DATA_URL}]},
              tools=[RESPONSES_TOOL], check=has(PIXEL, "seen")),
    responses("tools of Codex", "coder/aibridge#285, CommandCodeAI/command-code#885, coder/coder#28656", USER, tools=[
        RESPONSES_TOOL, {"type": "custom", "name": "apply_patch", "description": "Patches."}, {"type": "web_search"},
        {"type": "namespace", "name": "multi_agent_v1", "description": "", "tools": [
            {"type": "function", "name": "spawn", "parameters": LOOK, "strict": False}]},
    ], check=has("look")),
    responses("tools as an item", "farion1231/cc-switch#7451",
              {"type": "additional_tools", "role": "developer", "tools": [
                  {"type": "namespace", "name": "functions", "description": "", "tools": [
                      {"type": "custom", "name": "exec", "description": "Runs."}]}]},
              USER, check=has("exec")),
)  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "up", "content": [{"type": "text", "text": "Hi"}],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 30, "output_tokens": 25},
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.model} {row.name} [{row.source}]")
def test_the_target_takes_it(row: Row, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    is_messages = row.model == "chat-over-messages"
    upstream.answer_with(ok_json(MESSAGE) if is_messages else chat_answer())
    answer = ask(gateway, row.model, **row.members)
    assert answer.status == 200, answer.body
    body = upstream.requests[0].json
    (fits_messages if is_messages else fits_chat)(body)
    assert row.check(body), body


def test_a_user_who_says_nothing(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """microsoft/autogen#6083, anthropics/claude-code#59812: refused before it is sent, or sent as something good."""
    upstream.answer_with(ok_json(MESSAGE))
    answer = ask(gateway, "chat-over-messages", messages=[{"role": "user", "content": ""}])
    if answer.status == 200:
        fits_messages(upstream.requests[0].json)
    else:
        assert (answer.status, upstream.hits) == (400, 0)
        upstream.answer_with()


@pytest.mark.parametrize("length", [64, 65, 80, 128])
def test_a_long_name_of_a_tool(length: int, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """cline/cline#11885, anthropics/claude-code#21136, ChromeDevTools/chrome-devtools-mcp#1169: OpenAI takes 64."""
    name = "mcp__plugin__" + "x" * (length - 13)

    async def same_name(wire: Any) -> None:
        given = json.loads(wire.request.body)["tools"][0]["function"]["name"]
        called = [{"id": "call_a", "type": "function", "function": {"name": given, "arguments": "{}"}}]
        await chat_answer(None, "tool_calls", tool_calls=called)(wire)

    upstream.answer_with(same_name)
    answer = ask(gateway, "messages-over-chat", tools=[{**TOOL, "name": name}])
    assert len(upstream.requests[0].json["tools"][0]["function"]["name"]) <= 64
    assert [each["name"] for each in answer.json["content"]] == [name]


def test_a_short_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """The gateway's own calls fit, too."""
    upstream.answer_with(chat_answer(), ok_json(MESSAGE))
    assert ask(gateway, "messages-over-chat").status == 200
    assert ask(gateway, "chat-over-messages", messages=MESSAGES).status == 200
    fits_chat(upstream.requests[0].json)
    fits_messages(upstream.requests[1].json)


OF_RESPONSES: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "results": lambda number: [{"type": "function_call_output", "call_id": "c", "output": "x"}] * number,
    "results of calls": lambda number: [
        {"type": "function_call", "call_id": f"c{place}", "name": "look", "arguments": "{}"} for place in range(number)
    ] + [{"type": "function_call_output", "call_id": f"c{place}", "output": "x"} for place in range(number)],
    "texts": lambda number: [{"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}]
    + [{"role": "assistant", "content": "x"}] * number,
}  # fmt: skip


@pytest.mark.parametrize("kind", OF_RESPONSES)
def test_the_work_for_many_items_grows_with_their_number(kind: str) -> None:
    """A look at all messages before for each result took 146 ms for 1,100 of them, in each of two or three steps."""

    def entered(number: int) -> int:
        found, members = 0, {"model": "m", "input": OF_RESPONSES[kind](number)}

        def count(frame: FrameType, event: str, value: object) -> None:
            nonlocal found
            found += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            responses_request.translate(members, limit_field="max_tokens")
        finally:
            sys.setprofile(None)
        return found

    assert entered(800) < 3 * entered(400)


def test_results_follow_their_calls_and_texts_are_joined() -> None:
    asked = [
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"},
        {"role": "user", "content": "And?"},
        {"type": "function_call_output", "call_id": "a", "output": "late"},
        {"type": "function_call_output", "call_id": "b", "output": "of none"},
        {"type": "function_call_output", "call_id": "a", "output": "again"},
    ]  # fmt: skip
    sent = responses_request.translate({"model": "m", "input": asked}, limit_field="max_tokens").body["messages"]
    shown = [(each["role"], each["content"]) for each in sent]
    assert shown == [
        ("assistant", "one\n\ntwo"), ("tool", "late"), ("tool", "again"), ("user", "And?"), ("tool", "of none"),
    ]  # fmt: skip
