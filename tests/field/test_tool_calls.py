"""Tool calls as upstreams of chat really send them, translated: each call comes out whole, once, and is its own.

The right value of each row is what the model called: the stream's pieces put together as openai-openapi means them (a
call's `arguments` are one JSON value; a new id is a new call), whatever the upstream makes of `index`, `id` and `name`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows.gateway_process import Gateway, secret

from .played import COUNTS, MESSAGES, chat_answer, chat_chunk, chat_stream, configuration, counted, usage_chunk

if TYPE_CHECKING:
    import anthropic
    import openai

LOOK = {"type": "object", "properties": {"at": {"type": "string"}}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]
HERE, THERE = '{"at":"here"}', '{"at":"there"}'
ONE = [("look", {"at": "here"})]
TWO = [("look", {"at": "here"}), ("look", {"at": "there"})]

Calls = list[tuple[str, dict[str, Any]]]


def piece(
    index: Any = None, call_id: Any = None, name: Any = None, arguments: Any = None, **more: Any
) -> dict[str, Any]:
    """A piece of a tool call with the members that are given."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    head = {key: value for key, value in (("index", index), ("id", call_id)) if value is not None}
    return {**head, "type": "function", "function": function, **more}


def calls(*pieces: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A chunk with these pieces."""
    return chat_chunk({"tool_calls": list(pieces), **more})


class Row(NamedTuple):
    """A stream of chat as it was reported."""

    name: str
    source: str
    chunks: list[Any]
    calls: Calls
    finish: str | None = "tool_calls"


ROWS = (
    Row("all once more at the end, with other blanks", "vllm-project/vllm#42167, vllm-project/vllm#39615", [
        calls(piece(0, "chatcmpl-tool-a", "look", "")), calls(piece(0, arguments='{"at":"')),
        calls(piece(0, arguments='here"')),
        chat_chunk({"tool_calls": [{"id": None, "type": None, "index": 0, "function":
                    {"name": None, "arguments": '{"at": "here"}'}}]}, "tool_calls", stop_reason=151338),
    ], ONE, None),
    Row("all once more at the end, behind a blank in a text", "vllm-project/vllm#42167", [
        calls(piece(0, "chatcmpl-tool-a", "look", '{"at":"over ')),
        calls(piece(0, arguments='{"at": "over here"}')),
    ], [("look", {"at": "over here"})]),
    Row("a brace, and all once more", "vllm-project/vllm#51697", [
        calls(piece(0, "chatcmpl-tool-a", "look", "{")), calls(piece(0, arguments='{"at": "here"}')),
    ], ONE),
    Row("another id in each piece", "poolsideai/pool#9", [
        calls(piece(0, "functions.look:0", "look", "")), calls(piece(0, "chatcmpl-tool-a", None, '{"at":"he')),
        calls(piece(0, "chatcmpl-tool-b", None, 're"}')),
    ], ONE),
    Row("an empty name in each piece", "watsonx-ai-java-sdk, ChatServiceTest", [
        calls(piece(0, "chatcmpl-tool-a", "look", "")), calls(piece(0, None, "", '{"at":"he')),
        calls(piece(0, None, "", 're"}')),
    ], ONE),
    Row("no index, a new id is a new call", "ollama/ollama#7881, SamSaffron/term-llm#314, AstrBotDevs/AstrBot#6692", [
        calls(piece(call_id="call_a", name="look", arguments=HERE)),
        calls(piece(call_id="call_b", name="look", arguments=THERE)),
    ], TWO),
    Row("no index, both in one chunk", "jin-bo/agentao#117", [
        calls(piece(None, "call_a", "look", HERE), piece(None, "call_b", "look", THERE)),
    ], TWO),
    Row("no index, pieces without an id continue the last call", "openai/openai-python#3246, agno-agi/agno#8880", [
        calls(piece(call_id="call_a", name="look", arguments="")), calls(piece(arguments='{"at":')),
        calls(piece(arguments='"here"}')), calls(piece(call_id="call_b", name="look", arguments="")),
        calls(piece(arguments=THERE)),
    ], TWO),
    Row("an index from the second call on", "SamSaffron/term-llm#314", [
        calls(piece(call_id="call_a", name="look", arguments=HERE)),
        calls(piece(1, "call_b", "look", '{"at":')), calls(piece(1, arguments='"there"}')),
    ], TWO),
    Row("the second call begins at index 0 and goes on at 1", "agno-agi/agno#8880", [
        calls(piece(0, "call_a", "look", HERE)), calls(piece(0, "call_b", "look", "")),
        calls(piece(1, arguments='{"at":')), calls(piece(1, arguments='"there"}')),
    ], TWO),
    Row("the index grows within a call", "dirac-run/dirac#215", [
        calls(piece(0, "call_a", "look", "")), calls(piece(1, arguments='{"at":')),
        calls(piece(2, arguments='"here"}')),
    ], ONE),
    Row("one index for all, in pieces", "apache/maka#1976", [
        calls(piece(0, "call_a", "look", '{"at":')), calls(piece(0, arguments='"here"}')),
        calls(piece(0, "call_b", "look", '{"at":')), calls(piece(0, arguments='"there"}')),
    ], TWO),
    Row("no id at all", "continuedev/continue#13235, vllm-project/vllm#18412", [
        calls(piece(0, name="look", arguments='{"at":')), calls(piece(0, arguments='"here"}')),
        calls(piece(1, name="look", arguments=THERE)),
    ], TWO),
    Row("empty ids and names in later pieces", "anomalyco/opencode#40969, symfony/ai#2220, JetBrains/koog#1900", [
        calls(piece(0, "call_a", "look", "")), calls(piece(0, "", "", '{"at":')), calls(piece(0, "", "", '"here"}')),
    ], ONE),
    Row("null ids and names in later pieces", "sgl-project/sglang#35542, Effect-TS/effect#8333", [
        calls(piece(0, "call_a", "look", "")),
        calls({"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": '{"at":'}}),
        calls({"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": '"here"}'}}),
    ], ONE),
    Row("id, type and name in every piece", "SillyTavern/SillyTavern#5948, NousResearch/hermes-agent#8259", [
        calls(piece(0, "call_a", "look", "")), calls(piece(0, "call_a", "look", '{"at":')),
        calls(piece(0, "call_a", "look", '"here"}')),
    ], ONE),
    Row("arguments so far in every piece", "NousResearch/hermes-agent#35718, langchain-ai/langgraphjs#2697", [
        calls(piece(0, "call_a", "look", "")), calls(piece(0, arguments='{"at"')),
        calls(piece(0, arguments='{"at":"he')), calls(piece(0, arguments=HERE)),
    ], ONE),
    Row("all arguments once more", "anomalyco/opencode#17339, lidge-jun/opencodex#361, elizaOS/eliza#16973", [
        calls(piece(0, "call_a", "look", "")), calls(piece(0, arguments='{"at":')),
        calls(piece(0, arguments='"here"}')), calls(piece(0, arguments=HERE)),
    ], ONE),
    Row("the finish twice", "decolua/9router#2869", [
        calls(piece(0, "call_a", "look", HERE)), chat_chunk(None, "tool_calls"),
    ], ONE),
    Row("arguments as an object", "ggml-org/llama.cpp#20198, sipeed/picoclaw#1292, mrdushidush/claudette#238", [
        calls(piece(0, "call_a", "look", {"at": "here"})),
    ], ONE),
    Row("arguments before the name", "vercel/ai#15879", [
        calls(piece(None, "call_a", None, '{"at":')), calls(piece(None, "call_a", "look", '"here"}')),
    ], ONE),
    Row("a piece with nothing in it", "deepset-ai/haystack#9565", [
        calls(piece(0, "call_a", "look", HERE)), calls({"index": 0, "function": {"name": None, "arguments": None}}),
        calls({"index": 0, "function": None}),
    ], ONE),
    Row("stop as the reason", "openvinotoolkit/model_server#3927, ENTERPILOT/GoModel#124, sgl-project/sglang#2877", [
        calls(piece(0, "call_a", "look", HERE)),
    ], ONE, "stop"),
    Row("valid JSON before the arguments are whole", "charmbracelet/fantasy#289", [
        calls(piece(0, "call_a", "look", "")), calls(piece(0, arguments=HERE)), calls(piece(0, arguments="\n")),
        calls(piece(1, "call_b", "look", THERE)),
    ], TWO),
    Row("text between two pieces", "decolua/9router#2869", [
        chat_chunk({"content": "I look."}), calls(piece(0, "call_a", "look", '{"at":')),
        chat_chunk({"content": " "}), calls(piece(0, arguments='"here"}')),
    ], ONE),
    Row("both begun before either goes on", "praxis-proxy/ai#266", [
        calls(piece(0, "call_a", "look", ""), piece(1, "call_b", "look", "")),
        calls(piece(0, arguments=HERE)), calls(piece(1, arguments=THERE)),
    ], TWO),
    Row("the name in pieces", "NVIDIA-NeMo/Switchyard#785", [
        calls(piece(0, "call_a", "lo", "")), calls(piece(0, name="ok")), calls(piece(0, arguments='{"at":')),
        calls(piece(0, arguments='"here"}')), calls(piece(1, "call_b", "loo", "")), calls(piece(1, "call_b", "k", "")),
        calls(piece(1, arguments=THERE)),
    ], TWO),
    Row("the name and no id in every piece", "weicj/vLLM-2080Ti-Definitive#127", [
        calls(piece(0, name="look", arguments='{"at":')), calls(piece(0, name="look", arguments='"here"')),
        calls(piece(0, name="look", arguments="}")), calls(piece(0, name="look", arguments="\n")),
        calls(piece(0, name="look", arguments="")),
    ], ONE),
    Row("a null function, and then its name without the id", "vllm-project/vllm#19425", [
        calls({"index": 0, "id": "call_a", "type": "function", "function": None}), calls(),
        calls({"index": 0, "id": None, "type": None, "function": {"name": "look", "arguments": '{"at":'}}),
        calls(piece(0, arguments='"here"}')),
    ], ONE),
    Row("the form before tool_calls", "can1357/oh-my-pi#1692", [
        chat_chunk({"content": None, "function_call": {"name": "look", "arguments": ""}}),
        chat_chunk({"function_call": {"arguments": '{"at":'}}), chat_chunk({"function_call": {"arguments": '"here"}'}}),
    ], ONE, "function_call"),
    Row("all arguments three times in one piece", "Soju06/codex-lb#284", [
        calls(piece(0, "call_a", "look", HERE * 3)),
    ], ONE),
    Row("the JSON of a text", "FoundationAgents/OpenManus#989, quarkiverse/quarkus-langchain4j#2642", [
        calls(piece(0, "call_a", "look", '"{\\"at\\":')), calls(piece(0, arguments='\\"here\\"}"')),
    ], ONE),
    Row("null calls beside text", "Effect-TS/effect#7269", [
        chat_chunk({"content": "I look.", "tool_calls": None}), chat_chunk({"content": "", "tool_calls": []}),
        calls(piece(0, "call_a", "look", HERE), content=None),
    ], ONE),
)  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.fixture(scope="module")
def of_openai(gateway: Gateway) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0)


@pytest.fixture(scope="module")
def of_anthropic(gateway: Gateway) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=gateway.url, api_key=secret("alice"), max_retries=0)


def chunks_of(row: Row) -> list[Any]:
    return [
        chat_chunk({"role": "assistant", "content": None}),
        *row.chunks,
        chat_chunk(None, row.finish),
        usage_chunk(),
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} [{row.source}]")
def test_each_call_is_one_of_a_message(
    row: Row, gateway: Gateway, of_anthropic: anthropic.Anthropic, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(chat_stream(*chunks_of(row)))
    with of_anthropic.messages.stream(
        model="messages-over-chat", max_tokens=1000, messages=[{"role": "user", "content": "Look."}],
        tools=[{"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}],
    ) as stream:  # fmt: skip
        message = stream.get_final_message()
    used = [block for block in message.content if block.type == "tool_use"]
    assert [(block.name, block.input) for block in used] == row.calls
    assert len({block.id for block in used} - {""}) == len(row.calls)
    assert message.stop_reason == "tool_use"
    assert (message.usage.input_tokens, message.usage.output_tokens) == COUNTS
    assert counted(gateway, gateway_answer(stream)) == (*COUNTS, "reported")


def gateway_answer(stream: Any) -> Any:
    """What `counted` reads of an answer that an SDK has."""
    from tests.flows.client import Answer

    return Answer(200, {"x-request-id": stream.response.headers["x-request-id"]}, b"")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} [{row.source}]")
def test_each_call_is_one_of_a_response(row: Row, of_openai: openai.OpenAI, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(chat_stream(*chunks_of(row)))
    with of_openai.responses.create(
        model="responses-over-chat", input="Look.", stream=True,
        tools=[{"type": "function", "name": "look", "parameters": LOOK, "strict": False}],
    ) as stream:  # fmt: skip
        events = list(stream)
    last = events[-1]
    assert last.type == "response.completed"
    used = [item for item in last.response.output if item.type == "function_call"]
    assert [(item.name, json.loads(item.arguments)) for item in used] == row.calls
    assert len({item.call_id for item in used} - {""}) == len(row.calls)
    for item in used:
        pieces = [
            event.delta for event in events
            if event.type == "response.function_call_arguments.delta" and event.item_id == item.id
        ]  # fmt: skip
        assert "".join(pieces) == item.arguments


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} [{row.source}]")
def test_a_stream_of_the_same_format_is_passed_on_as_it_came(
    row: Row, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    chunks = chunks_of(row)
    upstream.answer_with(chat_stream(*chunks))
    answer = gateway.chat(
        model="chat", stream=True, stream_options={"include_usage": True}, tools=CHAT_TOOLS, messages=MESSAGES
    )
    lines = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n\n") if line]
    assert [json.loads(line) for line in lines[:-1]] == chunks
    assert lines[-1] == b"[DONE]"
    assert counted(gateway, answer) == (*COUNTS, "reported")


PLAIN = (
    Row("arguments as an object", "ggml-org/llama.cpp#20198, sipeed/picoclaw#1379", [
        piece(call_id="call_a", name="look", arguments={"at": "here"}),
    ], ONE),
    Row("no arguments", "isair/jarvis#560", [{"id": "call_a", "type": "function", "function": {"name": "look"}}],
        [("look", {})]),
    Row("null arguments", "mrdushidush/claudette#238", [
        {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": None}},
    ], [("look", {})]),
    Row("no type, and the ids twice", "NVIDIA-NeMo/Switchyard#502", [
        {"id": "call_0", "function": {"name": "look", "arguments": HERE}},
        {"id": "call_0", "function": {"name": "look", "arguments": THERE}},
    ], TWO),
    Row("no ids", "vllm-project/vllm#18412", [
        {"type": "function", "function": {"name": "look", "arguments": HERE}},
        {"id": "", "type": "function", "function": {"name": "look", "arguments": THERE}},
    ], TWO),
    Row("stop as the reason", "Blaizzy/mlx-vlm#990", [piece(None, "call_a", "look", HERE)], ONE, "stop"),
    Row("the JSON of a text", "FoundationAgents/OpenManus#989", [piece(0, "call_a", "look", json.dumps(HERE))], ONE),
    Row("all arguments three times", "Soju06/codex-lb#284", [piece(None, "call_a", "look", HERE * 3)], ONE),
    Row("an empty text for no arguments", "NousResearch/hermes-agent#83937, brave/brave-browser#56601", [
        piece(None, "call_a", "look", ""), piece(None, "call_b", "look", " "),
    ], [("look", {}), ("look", {})]),
)  # fmt: skip


@pytest.mark.parametrize("row", PLAIN, ids=lambda row: f"{row.name} [{row.source}]")
def test_each_call_of_a_plain_answer(
    row: Row, of_anthropic: anthropic.Anthropic, of_openai: openai.OpenAI, upstream: ScriptedUpstream
) -> None:
    behaviour = chat_answer(None, str(row.finish), tool_calls=row.chunks)
    upstream.answer_with(behaviour, behaviour)
    message = of_anthropic.messages.create(
        model="messages-over-chat", max_tokens=1000, messages=[{"role": "user", "content": "Look."}],
        tools=[{"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}],
    )  # fmt: skip
    used = [block for block in message.content if block.type == "tool_use"]
    assert [(block.name, block.input) for block in used] == row.calls
    assert message.stop_reason == "tool_use"
    response = of_openai.responses.create(
        model="responses-over-chat", input="Look.",
        tools=[{"type": "function", "name": "look", "parameters": LOOK, "strict": False}],
    )  # fmt: skip
    items = [item for item in response.output if item.type == "function_call"]
    assert [(item.name, json.loads(item.arguments)) for item in items] == row.calls
    for ids in ({block.id for block in used}, {item.call_id for item in items}):
        assert len(ids - {""}) == len(row.calls)
