"""Translations between chat, Responses and Messages: what is sent, what is shown, what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.events import Unfit
from gateway.formats.openai.reader import ChatReader
from gateway.wings.translate import chat_request, messages_request, responses_request, tool_names
from gateway.wings.translate.responses_answer import ResponseWriter
from tests.amounts import amount

from .translated import GOLDEN, asked, data_of, plain, sent, shown, streamed, writer

DOCS = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
WAYS: dict[str, dict[str, Any]] = {
    "responses": {"model": "m", "input": "x"},
    "messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]},
    "anthropic": {"model": "m", "messages": [{"role": "user", "content": "x"}]},
}
RULES: dict[str, Any] = {
    "responses": responses_request.RULES, "messages": messages_request.RULES, "anthropic": chat_request.RULES,
}  # fmt: skip
TITLES = {
    "responses": "Responses through chat", "messages": "Messages through chat", "anthropic": "Chat through Messages",
}  # fmt: skip
KINDS = {
    "same": "unchanged", "translated": "translated", "kept": "no effect",
    "only": "refused, but for values that change nothing",
}  # fmt: skip
STREAMS = [name for name, golden in GOLDEN.items() if "chunks" in golden]


def way_of(name: str) -> str:
    return name.partition("/")[0]


# -------------------------------------------------------------------------------------------------------- golden files


@pytest.mark.parametrize("name", GOLDEN)
def test_the_upstream_is_asked(name: str) -> None:
    before = copy.deepcopy(GOLDEN[name]["request"])
    assert sent(way_of(name), GOLDEN[name]) == GOLDEN[name]["sent"]
    assert GOLDEN[name]["request"] == before  # the client's own members are not changed


@pytest.mark.parametrize("name", GOLDEN)
def test_the_client_is_shown(name: str) -> None:
    assert shown(way_of(name), GOLDEN[name]) == GOLDEN[name]["shown"]


def test_the_tools_that_stay_out_are_named() -> None:
    codex = asked("responses", GOLDEN["responses/plain-state-of-codex"]["request"])
    assert codex.left_out == ("tools[2].web_search",)
    assert [each["type"] for each in codex.tools.offered] == ["function", "custom", "local_shell", "namespace"]


def test_the_output_limit_goes_where_the_upstream_reads_it() -> None:
    translated = responses_request.translate({**WAYS["responses"], "max_output_tokens": 20}, limit_field="max_tokens")
    assert translated.body["max_tokens"] == 20
    translated_message = messages_request.translate(WAYS["messages"], limit_field="max_tokens")
    assert translated_message.body["max_tokens"] == 9


# ------------------------------------------------------------------------------------------------------------ refusals


def rows(kind: str) -> Iterator[tuple[str, str]]:
    for way, rules in RULES.items():
        for name, rule in rules.items():
            if rule.kind == kind:
                yield way, name


@pytest.mark.parametrize(("way", "name"), list(rows("only")))
def test_what_has_no_equivalent_is_refused_by_name(way: str, name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(way, {**WAYS[way], name: "something else"})
    assert refused.value.param == name
    assert name in refused.value.message
    assert asked(way, {**WAYS[way], name: None}).body == asked(way, WAYS[way]).body


@pytest.mark.parametrize(("way", "name"), list(rows("kept")))
def test_what_has_no_effect_is_not_sent(way: str, name: str) -> None:
    assert asked(way, {**WAYS[way], name: {"a": 1}}).body == asked(way, WAYS[way]).body


@pytest.mark.parametrize("way", WAYS)
def test_unknown_members_are_passed_on(way: str) -> None:
    body = asked(way, {**WAYS[way], "repetition_penalty": 1.1}).body
    assert body["repetition_penalty"] == 1.1


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("responses", "n"), ("responses", "messages"), ("responses", "Messages"), ("responses", "max_tokens"),
        ("responses", "INPUT"), ("responses", "response_format"), ("messages", "n"), ("messages", "functions"),
        ("messages", "Stream"), ("messages", "response_format"), ("anthropic", "system"), ("anthropic", "mcp_servers"),
        ("anthropic", "Container"),
    ],
)  # fmt: skip
def test_a_parameter_of_the_other_format_is_refused(way: str, name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(way, {**WAYS[way], name: 2})
    assert refused.value.param == name


def user(*content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content), **more}


@pytest.mark.parametrize(
    ("way", "members", "param"),
    [
        ("responses", {"store": True}, "store"),
        ("responses", {"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ("responses", {"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ("responses", {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ("responses", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ("responses", {"tools": [{"type": "function", "name": "a"}] * 2}, "tools[1]"),
        ("responses", {"tools": {}}, "tools"),
        ("responses", {"tools": [{"type": "function", "name": "a", "async": True}]}, "tools[0].async"),
        (
            "responses",
            {"tools": [{"type": "function", "name": "a", "allowed_callers": ["programmatic"]}]},
            "tools[0].allowed_callers",
        ),
        ("responses", {"tool_choice": {"type": "function", "name": "a"}}, "tool_choice"),
        ("responses", {"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ("responses", {"text": {"x": 1}}, "text.x"),
        ("responses", {"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ("responses", {"reasoning": {"x": 1}}, "reasoning.x"),
        ("responses", {"include": ["x"]}, "include[0]"),
        ("responses", {"input": []}, "input"),
        ("responses", {"input": 3}, "input"),
        ("responses", {"input": ["x"]}, "input[0]"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ("responses", {"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ("responses", {"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
        ("responses", {"input": [user({"type": "input_image", "file_id": "f"})]}, "input[0].content[0].file_id"),
        ("responses", {"input": [user({"type": "input_file", "file_url": "u"})]}, "input[0].content[0].file_url"),
        ("responses", {"input": [user({"type": "input_video"})]}, "input[0].content[0].type"),
        ("responses", {"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ("messages", {"max_tokens": 0}, "max_tokens"),
        ("messages", {"messages": [user(), {"role": "assistant", "content": "{"}]}, "messages[1]"),
        ("messages", {"messages": []}, "messages"),
        ("messages", {"messages": [{"role": "tool"}, user()]}, "messages[0].role"),
        (
            "messages",
            {"messages": [user({"type": "image", "source": {"type": "file"}})]},
            "messages[0].content[0].source.type",
        ),
        (
            "messages",
            {"messages": [user({"type": "document", "source": {"type": "url"}})]},
            "messages[0].content[0].source.type",
        ),
        (
            "messages",
            {
                "messages": [
                    user({"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": True}})
                ]
            },
            "messages[0].content[0].citations",
        ),
        ("messages", {"messages": [user({"type": "search_result"})]}, "messages[0].content[0].type"),
        (
            "messages",
            {"messages": [user({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference"}]})]},
            "messages[0].content[0].content[0].type",
        ),
        ("messages", {"system": [{"type": "image"}]}, "system[0].type"),
        ("messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ("messages", {"tool_choice": {"type": "any"}}, "tool_choice"),
        ("messages", {"stop_sequences": ["1", "2", "3", "4", "5"]}, "stop_sequences"),
        ("messages", {"metadata": {"x": 1}}, "metadata.x"),
        ("messages", {"thinking": {"type": "x"}}, "thinking.type"),
        ("messages", {"output_config": {"task_budget": 1}}, "output_config.task_budget"),
        ("messages", {"output_config": {"format": {"type": "x"}}}, "output_config.format.type"),
        (
            "messages",
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits[0]",
        ),
        ("anthropic", {"n": 2}, "n"),
        ("anthropic", {"n": True}, "n"),
        ("anthropic", {"temperature": 1.5}, "temperature"),
        ("anthropic", {"reasoning_effort": "minimal"}, "reasoning_effort"),
        ("anthropic", {"service_tier": "flex"}, "service_tier"),
        ("anthropic", {"response_format": {"type": "json_object"}}, "response_format.type"),
        ("anthropic", {"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ("anthropic", {"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        ("anthropic", {"messages": [user({"type": "input_audio"})]}, "messages[0].content[0].type"),
        (
            "anthropic",
            {"messages": [user({"type": "image_url", "image_url": {"url": "ftp://x"}})]},
            "messages[0].content[0].image_url.url",
        ),
        (
            "anthropic",
            {"messages": [user({"type": "file", "file": {"file_id": "f"}})]},
            "messages[0].content[0].file.file_id",
        ),
        (
            "anthropic",
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "["}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        ("anthropic", {"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0].type"),
        ("anthropic", {"tool_choice": "required"}, "tool_choice"),
        ("anthropic", {"tool_choice": "sometimes"}, "tool_choice"),
    ],
)
def test_refusals_name_the_place(way: str, members: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(way, {**WAYS[way], **members})
    assert refused.value.param == param


@pytest.mark.parametrize("way", RULES)
def test_the_page_names_every_parameter(way: str) -> None:
    section = DOCS.partition(f"### {TITLES[way]}\n")[2].partition("\n#")[0]
    rows_of = {line.split("|")[1].strip(): line for line in section.splitlines() if line.startswith("| ")}
    for kind, title in KINDS.items():
        assert set(rows_of[title].split("`")[1::2]) == {name for name, rule in RULES[way].items() if rule.kind == kind}


# --------------------------------------------------------------------------------------------------------------- tools


def test_a_long_name_in_a_namespace_is_shortened_and_found_again() -> None:
    tools = tool_names.read([{"type": "namespace", "name": "n" * 60, "tools": [
        {"type": "function", "name": "first"}, {"type": "custom", "name": "second"}]}])  # fmt: skip
    names = [each["function"]["name"] for each in tools.functions]
    assert all(len(name) == 64 for name in names)
    assert [tools.tool(name).name for name in names] == ["first", "second"]
    assert tools.chat_name("custom", "second", "n" * 60) == names[1]


def test_allowed_tools_are_those_that_are_offered() -> None:
    functions = [{"type": "function", "name": name, "parameters": {}} for name in "abc"]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "b"}]}
    body = asked("responses", {**WAYS["responses"], "tools": functions, "tool_choice": allowed}).body
    assert [each["function"]["name"] for each in body["tools"]] == ["b"]
    assert body["tool_choice"] == "required"
    chat = [{"type": "function", "function": {"name": name}} for name in "abc"]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [chat[1]]}}
    message = asked("anthropic", {**WAYS["anthropic"], "tools": chat, "tool_choice": choice}).body
    assert [each["name"] for each in message["tools"]] == ["b"]
    assert message["tool_choice"] == {"type": "any"}


@pytest.mark.parametrize("name", ["parallel_tool_calls", "tool_choice"])
def test_without_tools_chat_gets_no_parameters_of_tools(name: str) -> None:
    value = {"parallel_tool_calls": True, "tool_choice": "auto"}[name]
    assert name not in asked("responses", {**WAYS["responses"], name: value}).body


def pieces(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(ends)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


def whole(arguments: str) -> str:
    reader = tool_names.CustomInput()
    return reader.feed(arguments) + reader.finish()


@given(st.text(), CUTS, st.booleans())
def test_the_input_of_a_custom_tool_comes_out_wherever_its_arguments_were_cut(
    text: str, cuts: list[int], is_ascii: bool
) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii)
    reader = tool_names.CustomInput()
    assert "".join([*(reader.feed(piece) for piece in pieces(arguments, cuts)), reader.finish()]) == text


@given(st.text(alphabet='{}"\\inputu0d8:, a') | st.text(), CUTS)
def test_arguments_of_another_shape_do_not_depend_on_the_cuts(arguments: str, cuts: list[int]) -> None:
    reader = tool_names.CustomInput()
    cut = "".join([*(reader.feed(piece) for piece in pieces(arguments, cuts)), reader.finish()])
    assert cut == whole(arguments)


def test_arguments_that_are_no_object_are_the_input() -> None:
    assert whole("*** Begin Patch") == "*** Begin Patch"
    assert whole('{"patch": "x"}') == '{"patch": "x"}'
    assert whole('{"input": "cut of') == "cut of"
    assert whole('{ "input" :"\\q\\ud83d\\ude00"}') == "\\q\U0001f600"


# --------------------------------------------------------------------------------------------- streams and their pieces


def chunk(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"model": "up", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


TOOLS = {
    "responses": [{"type": "function", "name": "f", "parameters": {}}, {"type": "custom", "name": "c"}],
    "messages": [{"name": "f", "input_schema": {}}, {"name": "c", "input_schema": {}}],
}
SAID = st.tuples(
    st.text(max_size=30), st.text(max_size=30),
    st.lists(st.tuples(st.sampled_from("fc"), st.text(max_size=20)), max_size=3),
)  # fmt: skip


def chunks_of(said: Any, cuts: list[int]) -> list[dict[str, Any]]:
    """An answer as chunks, its texts and arguments cut at these places."""
    reasoning, text, calls = said
    found = [chunk(reasoning_content=piece) for piece in pieces(reasoning, cuts)]
    found += [chunk(content=piece) for piece in pieces(text, cuts)]
    for index, (name, value) in enumerate(calls):
        call = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        found.append(chunk(tool_calls=[call]))
        for piece in pieces(json.dumps({"input": value}), cuts):
            found.append(chunk(tool_calls=[{"index": index, "function": {"arguments": piece}}]))
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
    return [*found, chunk("tool_calls" if calls else "stop"), usage]


def request(way: str) -> dict[str, Any]:
    more = {"thinking": {"type": "adaptive"}} if way == "messages" else {}
    return {**WAYS[way], "tools": TOOLS[way], "stream": True, **more}


@pytest.mark.shortened
@settings(deadline=None, max_examples=amount(30, 10))
@given(SAID, CUTS)
def test_a_response_is_the_same_however_the_chunks_were_cut(said: Any, cuts: list[int]) -> None:
    events = data_of(streamed("responses", request("responses"), chunks_of(said, cuts)))
    whole = data_of(streamed("responses", request("responses"), chunks_of(said, [])))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"] == whole[-1]["response"]
    seen = sdk_response(b"".join(as_event(event) for event in events))
    assert output_of(seen) == events[-1]["response"]["output"]
    for index, item in enumerate(events[-1]["response"]["output"]):
        deltas = "".join(each["delta"] for each in events if "delta" in each and each["output_index"] == index)
        texts = [item.get("arguments"), item.get("input"), *(part["text"] for part in item.get("content", []))]
        assert deltas == "".join(text for text in texts if text)


@pytest.mark.shortened
@settings(deadline=None, max_examples=amount(30, 10))
@given(SAID, CUTS)
def test_a_message_is_the_same_however_the_chunks_were_cut(said: Any, cuts: list[int]) -> None:
    cut = sdk_message(streamed("messages", request("messages"), chunks_of(said, cuts)))
    whole = sdk_message(streamed("messages", request("messages"), chunks_of(said, [])))
    assert cut == whole
    reasoning, text, calls = said
    kinds = ["thinking"] * bool(reasoning) + ["text"] * bool(text) + ["tool_use"] * len(calls)
    assert [block.type for block in cut.content] == kinds
    assert [block.input for block in cut.content if block.type == "tool_use"] == [{"input": each[1]} for each in calls]
    assert cut.usage.output_tokens == 3


@pytest.mark.shortened
@settings(deadline=None, max_examples=amount(30, 10))
@given(SAID, CUTS)
def test_a_message_translated_there_and_back_is_the_same(said: Any, cuts: list[int]) -> None:
    """Chat chunks become events of a Message, and these become chunks again, which say the same."""
    events = data_of(streamed("messages", request("messages"), chunks_of(said, cuts)))
    back = data_of(streamed("anthropic", {**WAYS["anthropic"], "stream_options": {"include_usage": True}}, events))
    deltas = [each["choices"][0]["delta"] for each in back if each["choices"]]
    reasoning, text, calls = said
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == reasoning
    assert "".join(delta.get("content", "") for delta in deltas) == text
    made: dict[int, str] = {}
    for delta in deltas:
        for call in delta.get("tool_calls", []):
            made[call["index"]] = made.get(call["index"], "") + call["function"]["arguments"]
    assert [json.loads(made[index])["input"] for index in sorted(made)] == [value for _, value in calls]
    assert back[-1]["usage"]["completion_tokens"] == 3


def as_event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


@pytest.mark.parametrize("name", [name for name in STREAMS if way_of(name) != "anthropic"])
def test_a_plain_answer_says_what_the_stream_says(name: str) -> None:
    """The chunks put together as one answer; only what they leave out of an answer may differ."""
    golden = GOLDEN[name]
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    reason, usage = None, None
    for each in golden["chunks"]:
        usage = each.get("usage") or usage
        for choice in each["choices"]:
            reason = choice["finish_reason"] or reason
            for member, value in choice["delta"].items():
                if member == "tool_calls":
                    for call in value:
                        if call["index"] == len(message["tool_calls"]):
                            message["tool_calls"].append({**call, "function": dict(call["function"])})
                        else:
                            target = message["tool_calls"][call["index"]]["function"]
                            target["arguments"] += call["function"]["arguments"]
                else:
                    message[member] = (message.get(member) or "") + value
    answer = {"model": "up-1", "choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}
    answered = plain(way_of(name), golden["request"], answer)
    if way_of(name) == "responses":
        assert answered == golden["shown"][-1]["response"]
    else:
        seen = sdk_message(b"".join(as_event(event) for event in golden["shown"])).to_dict()
        assert {**answered, "usage": None, "stop_details": None} == {**seen, "usage": None}


# ------------------------------------------------------------------------------------------------------ official SDKs


class Server:
    """Gives one body to every request of the official SDKs, whose clients are dear to make."""

    def __init__(self) -> None:
        import anthropic  # here: importing the SDKs costs every collecting process 1 s
        import httpx2
        import openai

        self.body = b""
        transport = httpx2.MockTransport(
            lambda _: httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=self.body)
        )
        self.openai = openai.OpenAI(api_key="k", http_client=openai.DefaultHttpxClient(transport=transport))
        client = anthropic.DefaultHttpxClient(transport=transport)
        self.anthropic = anthropic.Anthropic(api_key="k", http_client=client)


@cache
def server() -> Server:
    return Server()


def sdk_response(events: bytes) -> Any:
    """What openai-python makes of a stream, with its own accumulator."""
    server().body = events
    with server().openai.responses.stream(model="m", input="x") as stream_:
        return stream_.get_final_response()


def output_of(response: Any) -> list[dict[str, Any]]:
    """Its items, without what the SDK adds."""
    items = [item.to_dict() for item in response.output]
    for item in items:
        item.pop("parsed_arguments", None)
        for part in item.get("content", []):
            part.pop("parsed", None)
    return items


def sdk_message(events: bytes) -> Any:
    """What the `anthropic` package makes of a stream, with its own accumulator."""
    server().body = events
    message: Any = {"role": "user", "content": "x"}
    with server().anthropic.messages.stream(model="m", max_tokens=9, messages=[message]) as stream_:
        return stream_.get_final_message()


@pytest.mark.parametrize("name", [name for name in STREAMS if way_of(name) == "responses" and "cut" not in name])
def test_openai_python_accepts_every_stream_of_a_response(name: str) -> None:
    final = GOLDEN[name]["shown"][-1]["response"]
    seen = sdk_response(streamed("responses", GOLDEN[name]["request"], GOLDEN[name]["chunks"]))
    assert seen.id == final["id"]
    assert output_of(seen) == final["output"]


@pytest.mark.parametrize("name", [name for name in STREAMS if way_of(name) == "messages"])
def test_the_anthropic_package_accepts_every_stream_of_a_message(name: str) -> None:
    seen = sdk_message(streamed("messages", GOLDEN[name]["request"], GOLDEN[name]["chunks"]))
    assert seen.stop_reason == GOLDEN[name]["shown"][-2]["delta"]["stop_reason"]
    assert seen.usage.output_tokens == GOLDEN[name]["shown"][-2]["usage"]["output_tokens"]


@pytest.mark.parametrize("name", [name for name in STREAMS if way_of(name) == "anthropic"])
def test_openai_python_accepts_every_chat_stream(name: str) -> None:
    events = streamed("anthropic", GOLDEN[name]["request"], GOLDEN[name]["chunks"])
    server().body = events
    message: Any = {"role": "user", "content": "x"}
    with server().openai.chat.completions.stream(model="m", messages=[message]) as stream_:
        for _ in stream_:
            pass
        snapshot = stream_.current_completion_snapshot
    choices = [each["choices"][0] for each in GOLDEN[name]["shown"] if each["choices"]]
    assert snapshot.choices[0].finish_reason == choices[-1]["finish_reason"]
    texts = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert (snapshot.choices[0].message.content or "") == texts


@pytest.mark.parametrize("name", [name for name in GOLDEN if "answer" in GOLDEN[name]])
def test_plain_answers_are_valid_by_the_sdks_own_types(name: str) -> None:
    import anthropic
    import openai

    types: dict[str, Any] = {
        "responses": openai.types.responses.Response, "messages": anthropic.types.Message,
        "anthropic": openai.types.chat.ChatCompletion,
    }  # fmt: skip
    types[way_of(name)].model_validate(GOLDEN[name]["shown"])


# ------------------------------------------------------------------------------------------------------- other answers


def response_writer() -> ResponseWriter:
    made = writer("responses", request("responses"))
    assert isinstance(made, ResponseWriter)
    return made


@pytest.mark.parametrize("count", range(5))
def test_a_response_that_fails_ends_in_one_failed_event(count: int) -> None:
    made, reader = response_writer(), ChatReader()
    said = chunks_of(("a", "b", [("f", "x")]), [])
    before = b"".join(made.feed(reader.events(each), None) for each in said[:count])
    events = data_of(before + made.fail(GatewayError("try again in 1.5s", code="rate_limit_exceeded")))
    assert [event["type"] for event in events].count("response.created") == 1
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    failed = events[-1]["response"]
    assert events[-1]["type"] == "response.failed"
    assert failed["id"] == events[0]["response"]["id"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "rate_limit_exceeded")
    assert "in_progress" not in {item["status"] for item in failed["output"]}


def test_an_unknown_code_is_a_server_error() -> None:
    failed = data_of(response_writer().fail(GatewayError("x", code="our_own")))[-1]
    assert failed["response"]["error"] == {"code": "server_error", "message": "x"}


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("responses", [chunk(content="a")]),
        ("responses", [chunk("stop", tool_calls=[{"index": 0, "id": "a", "function": {"arguments": "x"}}])]),
        ("responses", [chunk("stop", function_call={"arguments": "x"})]),
        ("responses", [{"choices": [{"index": 1, "delta": {"content": "a"}}]}]),
        ("responses", [chunk(content=[{"type": "input_audio"}])]),
        ("messages", [chunk(content="a")]),
        (
            "messages",
            [chunk("stop", tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "["}}])],
        ),
        ("messages", [chunk("stop", tool_calls=[{"index": 0, "id": "a", "function": {"arguments": "x"}}])]),
        ("anthropic", [{"type": "message_start", "message": {}}]),
        ("anthropic", [{"type": "content_block_start", "content_block": {"type": "server_tool_use"}}]),
        ("anthropic", [{"type": "message_delta", "delta": {"stop_reason": "pause_turn"}}]),
    ],
)
def test_what_was_not_asked_for_is_unfit(way: str, said: list[dict[str, Any]]) -> None:
    with pytest.raises(Unfit):
        streamed(way, WAYS[way], said)


def test_two_calls_of_one_id_have_two_ids() -> None:
    call = {"id": "same", "function": {"name": "f", "arguments": "{}"}}
    said = [chunk(tool_calls=[{**call, "index": 0}]), chunk("tool_calls", tool_calls=[{**call, "index": 1}])]
    output = data_of(streamed("responses", request("responses"), said))[-1]["response"]["output"]
    assert [item["call_id"] for item in output] == ["same", "call_ID_2"]
    message = sdk_message(streamed("messages", request("messages"), said))
    assert [block.id for block in message.content] == ["same", "toolu_ID_1"]


def test_calls_without_an_index_are_distinguished_by_their_ids() -> None:
    said = [
        chunk(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": '{"x"'}}]),
        chunk(tool_calls=[{"function": {"arguments": ":1}"}}]),
        chunk("tool_calls", tool_calls=[{"id": "b", "function": {"name": "f", "arguments": "{}"}}]),
    ]
    output = data_of(streamed("responses", request("responses"), said))[-1]["response"]["output"]
    assert [item["arguments"] for item in output] == ['{"x":1}', "{}"]
    message = sdk_message(streamed("messages", request("messages"), said))
    assert [block.input for block in message.content] == [{"x": 1}, {}]


def test_an_annotation_of_chat_stands_one_level_higher_in_responses() -> None:
    cited = {"url": "https://x.test", "title": "X", "start_index": 0, "end_index": 1}
    said = [chunk("stop", content="a", annotations=[{"type": "url_citation", "url_citation": cited}])]
    events = data_of(streamed("responses", request("responses"), said))
    assert [event["annotation"] for event in events if "annotation" in event] == [{"type": "url_citation", **cited}]
    assert events[-1]["response"]["output"][0]["content"][0]["annotations"] == [{"type": "url_citation", **cited}]


def test_reasoning_stays_out_where_the_client_asked_for_none() -> None:
    said = [chunk("stop", content="a", reasoning_content="b")]
    message = sdk_message(streamed("messages", WAYS["messages"], said))
    assert [block.type for block in message.content] == ["text"]
    assert b"event: ping" in streamed("messages", WAYS["messages"], said)
    omitted = {**WAYS["messages"], "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}}
    assert [block.type for block in sdk_message(streamed("messages", omitted, said)).content] == ["text"]


@pytest.mark.parametrize(("budget", "effort"), [(1024, "low"), (4096, "medium"), (16384, "high")])
def test_a_thinking_budget_is_an_effort(budget: int, effort: str) -> None:
    body = asked("messages", {**WAYS["messages"], "thinking": {"type": "enabled", "budget_tokens": budget}}).body
    assert body["reasoning_effort"] == effort


# ----------------------------------------------------------------------------------------------------- smaller matters


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 7}}, (0, 7, 2)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 70}}, (0, 9, 0)),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, (9, 0, 0)),
        ({"completion_tokens": 3}, (0, 0, 0)),
    ],
)
def test_parts_of_the_prompt_are_never_more_than_it(usage: dict[str, Any], expected: tuple[int, int, int]) -> None:
    message = plain("messages", WAYS["messages"], answer_of({"content": "a"}, usage))["usage"]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert tuple(message[name] for name in names) == expected


def answer_of(message: dict[str, Any], usage: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


def test_reasoning_that_is_not_in_the_completion_is_added_to_it() -> None:
    usage = {
        "prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 10,
        "completion_tokens_details": {"reasoning_tokens": 3},
    }  # fmt: skip
    shown_usage = plain("responses", WAYS["responses"], answer_of({"content": "a"}, usage))["usage"]
    assert shown_usage["output_tokens"] == 5
    assert shown_usage["output_tokens_details"] == {"reasoning_tokens": 3}


def test_thoughts_among_the_parts_of_the_content_are_reasoning() -> None:
    """As Mistral sends them."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    output = plain("responses", WAYS["responses"], answer_of({"content": [thinking, {"type": "text", "text": "Ok"}]}))[
        "output"
    ]
    assert [(item["type"], item["content"][0]["text"]) for item in output] == [("reasoning", "Hm."), ("message", "Ok")]


def test_pieces_of_two_calls_by_turns_are_two_blocks() -> None:
    """Blocks of a message come one after the other, so the second call waits for the end of the first."""
    said = [
        chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}]),
        chunk(tool_calls=[{"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"y"'}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
        chunk(content="then"),
        chunk("tool_calls", tool_calls=[{"index": 1, "function": {"arguments": ":2}"}}]),
    ]
    shown = data_of(streamed("messages", request("messages"), said))
    ends = [each["index"] for each in shown if each["type"] == "content_block_stop"]
    assert ends == [0, 1, 2]
    message = sdk_message(streamed("messages", request("messages"), said))
    assert [(block.id, block.input) if block.type == "tool_use" else block.text for block in message.content] == [
        ("a", {"x": 1}), ("b", {"y": 2}), "then",
    ]  # fmt: skip


def test_messages_in_a_row_stay_apart_unless_calls_wait_for_their_results() -> None:
    said = {"type": "message", "role": "assistant"}
    items = [
        {"role": "user", "content": "x"}, {**said, "content": "one"}, {**said, "content": "two"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {**said, "content": "three"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call_output", "call_id": "c", "output": "y"},
    ]  # fmt: skip
    messages = asked("responses", {**WAYS["responses"], "input": items}).body["messages"]
    assert [(each["role"], each.get("content")) for each in messages] == [
        ("user", "x"), ("assistant", "one"), ("assistant", "two\n\nthree"), ("tool", "y"),
    ]  # fmt: skip
    assert messages[2]["reasoning_content"] == "hm"
    assert [call["id"] for call in messages[2]["tool_calls"]] == ["c"]


def test_each_count_of_a_messages_usage_replaces_its_own() -> None:
    """As anthropic-sdk adds up a stream (`accumulate_event`), which is how clients of a direct call count."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 10, "cache_read_input_tokens": 4}}}
    delta = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"input_tokens": 14, "output_tokens": 2},
    }
    asked_usage = {**WAYS["anthropic"], "stream_options": {"include_usage": True}}
    assert data_of(streamed("anthropic", asked_usage, [start, delta]))[-1]["usage"]["prompt_tokens"] == 18
    for unknown in ({}, {"input_tokens": None}):
        delta["usage"] = {"output_tokens": 2, **unknown}
        assert data_of(streamed("anthropic", asked_usage, [start, delta]))[-1]["usage"]["prompt_tokens"] == 14
