"""The validation table, and what a taken body comes to."""

from __future__ import annotations

import json
import pkgutil
from codecs import BOM_UTF8
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway
from gateway.api import prompt_tokens
from gateway.api.schema import MAX_OUTPUT, Part
from gateway.api.validate import restrict
from gateway.config import Limits
from gateway.errors import InvalidRequest
from gateway.formats.openai.completions import MAX_CHOICES
from gateway.formats.table import read
from gateway.records import Endpoint, Params

from .params_table import OMIT, ROWS, SMALLEST, Row, body, message

ENDPOINTS: tuple[Endpoint, ...] = ("completions", "chat", "embeddings")


def check(row: Row) -> Params:
    params = read(row.endpoint, row.raw)
    return restrict(params, Limits(**row.key), Limits(**row.model))


def params(endpoint: Endpoint, **changes: Any) -> Params:
    return read(endpoint, body(endpoint, **changes))


def outcome(endpoint: Endpoint, raw: bytes, limits: Limits = Limits()) -> Params | InvalidRequest:  # noqa: B008  (frozen)
    """Either of the two things that may happen to a body."""
    try:
        return restrict(read(endpoint, raw), limits, Limits())
    except InvalidRequest as error:
        return error


def json_values() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers(-3, 200) | st.floats() | st.sampled_from(["", "a", "type", "text"])
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
        max_leaves=5,
    )


KEYS = ["type", "role", "content", "text", "function", "name", "include_usage", "5", "image_url", "tool_calls", "x"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_row(row: Row) -> None:
    if row.is_taken:
        assert check(row).document.text.encode() == row.raw.removeprefix(BOM_UTF8)
        return
    with pytest.raises(InvalidRequest) as caught:
        check(row)
    error = caught.value
    assert row.says in error.message
    assert (error.status, error.type, error.param, error.code) == (400, "invalid_request_error", row.param, row.code)


def test_rows_have_names_of_their_own() -> None:
    names = [row.id for row in ROWS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", [row for row in ROWS if not row.is_taken], ids=lambda row: row.id)
def test_message_is_short_and_printable(row: Row) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(row)
    assert len(caught.value.message) < 500
    assert caught.value.message.isprintable()


SECRET = "sk-do-not-repeat-me"  # made up


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize(
    "name", ["model", "prompt", "messages", "input", "n", "temperature", "stop", "stream", "stream_options",
             "logit_bias", "tools", "tool_choice", "encoding_format", "response_format", "metadata", "dimensions"]
)  # fmt: skip
@pytest.mark.parametrize("value", [SECRET, [SECRET, 5], [[SECRET]], {SECRET: SECRET}, [{SECRET: SECRET}]])
def test_strings_of_the_client_are_never_repeated(endpoint: Endpoint, name: str, value: Any) -> None:
    found = outcome(endpoint, body(endpoint, **{name: value}))
    assert isinstance(found, Params) or SECRET not in found.body().decode()


def test_the_first_fault_is_reported() -> None:
    with pytest.raises(InvalidRequest, match="'temperature'"):
        params("completions", echo=1, top_p=7, temperature=7, best_of=99)


# -------------------------------------------------------------------------------------------------- what is asked for


def test_smallest_bodies() -> None:
    for endpoint in ENDPOINTS:
        found = params(endpoint)
        assert found.model == SMALLEST[endpoint]["model"]
        assert (found.stream, found.include_usage, found.n, found.best_of, found.prompts) == (False, False, 1, 1, 1)
        assert (found.output_limit, found.is_output_limit_added) == (None, False)
        assert found.document.members == SMALLEST[endpoint]


@pytest.mark.parametrize(
    ("changes", "n", "best_of", "candidates"),
    [
        ({}, 1, 1, 1),
        ({"n": None, "best_of": None}, 1, 1, 1),
        ({"n": 3}, 3, 1, 3),
        ({"n": 3, "best_of": 0}, 3, 1, 3),
        ({"n": 3, "best_of": 3}, 3, 3, 3),
        ({"n": 2, "best_of": 5}, 2, 5, 5),
    ],
)
def test_candidates(changes: dict[str, Any], n: int, best_of: int, candidates: int) -> None:
    one = params("completions", **changes)
    assert (one.n, one.best_of, one.choices, one.candidates) == (n, best_of, n, candidates)
    three = params("completions", prompt=["a", "b", "c"], **changes)
    assert (three.prompts, three.choices, three.candidates) == (3, 3 * n, 3 * candidates)


def test_most_that_a_call_can_ask_for_is_counted_exactly() -> None:
    """Above 2**53 a Redis script no longer counts exactly."""
    most = params("completions", prompt=["a"] * MAX_CHOICES, best_of=20, max_tokens=MAX_OUTPUT)
    assert most.candidates * MAX_OUTPUT < 2**53


@pytest.mark.parametrize(
    ("changes", "stream", "include_usage"),
    [
        ({"stream": True}, True, False),
        ({"stream": True, "stream_options": None}, True, False),
        ({"stream": True, "stream_options": {}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True),
        ({"stream": False, "stream_options": {"include_usage": True}}, False, False),
        ({"stream": None, "stream_options": {"include_usage": True}}, False, False),
    ],
)
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_usage_is_asked_for(endpoint: Endpoint, changes: dict[str, Any], stream: bool, include_usage: bool) -> None:
    found = params(endpoint, **changes)
    assert (found.stream, found.include_usage) == (stream, include_usage)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, None),
        ({"max_tokens": None, "max_completion_tokens": None}, None),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 50}, 50),
        ({"max_completion_tokens": 60}, 60),
        ({"max_tokens": 50, "max_completion_tokens": 60}, 60),
        ({"max_tokens": 60, "max_completion_tokens": 50}, 60),
        ({"max_tokens": 50, "max_completion_tokens": 0}, 50),
        ({"max_tokens": 50, "max_completion_tokens": None}, 50),
    ],
)
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_larger_output_limit_counts(endpoint: Endpoint, changes: dict[str, Any], limit: int | None) -> None:
    assert params(endpoint, **changes).output_limit == limit


@pytest.mark.parametrize(
    ("endpoint", "changes", "key", "model", "limit", "is_added"),
    [
        ("completions", {}, None, None, None, False),
        ("completions", {}, 100, None, 100, True),
        ("completions", {"max_tokens": None}, 100, None, 100, True),
        ("completions", {"max_tokens": 7}, 100, None, 7, False),
        ("completions", {"max_tokens": 0}, 100, None, 0, False),
        ("chat", {}, None, 200, 200, True),
        ("chat", {}, 100, 200, 100, True),
        ("chat", {}, 300, 200, 200, True),
        ("chat", {"max_completion_tokens": 9}, 300, 200, 9, False),
        ("embeddings", {}, 100, 200, None, False),
    ],
)
def test_limit_is_added_where_the_client_gave_none(
    endpoint: Endpoint, changes: dict[str, Any], key: int | None, model: int | None, limit: int | None, is_added: bool
) -> None:
    found = restrict(params(endpoint, **changes), Limits(max_tokens=key), Limits(max_tokens=model))
    assert (found.output_limit, found.is_output_limit_added) == (limit, is_added)


@pytest.mark.parametrize("config", ["generationConfig", "generation_config"])
@pytest.mark.parametrize(
    ("name", "limits"),
    [("maxOutputTokens", {"max_tokens": 5}), ("max_output_tokens", {"max_tokens": 5}), ("candidateCount", {"n": 2})],
)
def test_a_limit_holds_in_both_places_where_a_body_may_have_a_member(
    config: str, name: str, limits: dict[str, int]
) -> None:
    whole = {"contents": [{"parts": [{"text": "Hi"}]}]}
    for members in ({config: {name: 8}}, {name: 1, config: {name: 8}}, {name: 8, config: {name: 1}}):
        raw = json.dumps({**whole, **members}).encode()
        assert isinstance(outcome("generate_content", raw, Limits.model_validate(limits)), InvalidRequest)


# ----------------------------------------------------------------------------------------------------------- estimates


@pytest.mark.parametrize(
    ("prompt", "prompts", "tokens", "is_exact"),
    [
        (None, 1, 1, False),
        ("", 1, 0, False),
        ("a", 1, 1, False),
        ("abcd", 1, 1, False),
        ("abcde", 1, 2, False),
        ("ééé", 1, 2, False),
        ("\U0001f600", 1, 1, False),
        (["ab", "cd"], 2, 1, False),
        (["abcd", "", "e"], 3, 2, False),
        ([5], 1, 1, True),
        ([5, 6, 7], 1, 3, True),
        ([[5, 6], [7]], 2, 3, True),
    ],
)
def test_prompt_estimate(prompt: Any, prompts: int, tokens: int, is_exact: bool) -> None:
    found = params("completions", prompt=prompt)
    assert (found.prompts, found.prompt_tokens, found.is_prompt_exact) == (prompts, tokens, is_exact)
    if prompt:
        found = params("embeddings", input=[item or "x" for item in prompt] if type(prompt) is list else prompt)
        assert found.prompts == prompts
        assert found.is_prompt_exact == is_exact


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [(None, 3), ("abcd", 3), (["abcd", "efgh"], 5), ([5, 6], 4), ([[5], [6]], 6)],
)
def test_suffix_counts_for_each_prompt(prompt: Any, tokens: int) -> None:
    found = params("completions", prompt=prompt, suffix="12345")
    assert (found.prompt_tokens, found.is_prompt_exact) == (tokens, False)


CALL = {"name": "f" * 8, "arguments": "a" * 12}


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({"content": "a" * 40}, 10),
        ({"content": "é" * 20}, 10),
        ({"content": None}, 0),
        ({"content": OMIT}, 0),
        ({"content": "", "name": "abcd"}, 1),
        ({"content": "", "refusal": "abcd"}, 1),
        ({"content": "", "anything_else": "abcd"}, 0),
        ({"content": None, "tool_calls": [{"id": "x", "function": CALL}] * 2}, 10),
        ({"content": None, "tool_calls": [{"custom": {"name": "abcd", "input": "abcd"}}, 5, {}, {"function": 5}]}, 2),
        ({"content": None, "tool_calls": "nonsense"}, 0),
        ({"content": None, "function_call": CALL}, 5),
        ({"content": [{"type": "text", "text": "abcd"}, {"type": "text", "text": "abcd"}]}, 2),
        ({"content": [{"type": "refusal", "refusal": "abcd"}]}, 1),
        ({"content": [{"type": "input_audio", "input_audio": {"data": "x" * 9999}}]}, prompt_tokens.AUDIO_TOKENS),
        ({"content": [{"type": "file", "file": {"file_data": "x" * 9999}}]}, prompt_tokens.FILE_TOKENS),
        ({"content": [5, None, "abcd", [], {"type": ["text"], "text": "abcd"}, {"type": "text", "text": 5}]}, 1),
    ],
)
def test_chat_estimate(changes: dict[str, Any], tokens: int) -> None:
    found = params("chat", messages=message(**changes))
    assert (found.prompt_tokens, found.is_prompt_exact) == (tokens + prompt_tokens.MESSAGE_TOKENS, False)


def test_messages_are_summed_before_rounding() -> None:
    assert params("chat", messages=message(content="ab") * 2).prompt_tokens == 1 + 2 * prompt_tokens.MESSAGE_TOKENS


@pytest.mark.parametrize("name", ["tools", "response_format"])
@pytest.mark.parametrize("text", ["x", "é"])
def test_definitions_count_as_they_stand_in_the_body(name: str, text: str) -> None:
    definition: Any = {"type": "function", "function": {"name": "f", "description": text * 400}}
    definition = [definition] if name == "tools" else definition
    raw = json.dumps(SMALLEST["chat"] | {name: definition}, ensure_ascii=False).encode()
    size = len(json.dumps(definition, ensure_ascii=False).encode())
    content = len(SMALLEST["chat"]["messages"][0]["content"])
    assert read("chat", raw).prompt_tokens == -(-(size + content) // 4) + prompt_tokens.MESSAGE_TOKENS


def test_null_definitions_count_nothing() -> None:
    assert params("chat", tools=None).prompt_tokens == params("chat").prompt_tokens


# ------------------------------------------------------------------------------------------------------ hostile input


@given(st.sampled_from(ENDPOINTS), st.binary())
def test_no_bytes_break_it(endpoint: Endpoint, raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read(endpoint, raw)  # a random body has no model


NAMES = sorted(
    {"model", "prompt", "messages", "input", "n", "best_of", "logprobs", "stop", "stream", "stream_options", "echo",
     "max_tokens", "max_completion_tokens", "temperature", "logit_bias", "seed", "suffix", "user", "tools",
     "tool_choice", "functions", "function_call", "response_format", "top_logprobs", "dimensions", "encoding_format",
     "N", "x"}
)  # fmt: skip


@given(
    st.sampled_from(ENDPOINTS),
    st.dictionaries(st.sampled_from(NAMES), json_values(), max_size=3),
    st.sampled_from([Limits(), Limits(n=1, best_of=1, logprobs=1, stop=1, max_tokens=1, deny=("x",))]),
)
def test_no_values_break_it(endpoint: Endpoint, changes: dict[str, Any], limits: Limits) -> None:
    found = outcome(endpoint, body(endpoint, **changes), limits)
    if isinstance(found, Params):
        assert found.prompt_tokens >= 0
        assert found.choices >= 1
    else:
        assert json.loads(found.body())["error"]["type"] == "invalid_request_error"


@given(st.lists(json_values(), min_size=1, max_size=3), json_values())
def test_no_messages_break_it(messages: list[Any], tools: Any) -> None:
    for item in messages:
        if isinstance(item, dict):
            item["role"] = "user"
    found = outcome("chat", body("chat", messages=messages, tools=tools))
    assert not isinstance(found, Params) or found.prompt_tokens >= 0


@pytest.mark.parametrize(
    ("endpoint", "raw"),
    [
        ("completions", b'{"model": "m", "prompt": ["a"' + b", 1" * 200_000 + b"]}"),
        ("completions", b'{"model": "m", "prompt": [[1]' + b", []" * 200_000 + b"]}"),
        ("chat", b'{"model": "m", "messages": [1' + b", 1" * 200_000 + b"]}"),
        ("chat", b'{"model": "m", "messages": [{"role": "user"}], "tools": [' + b"{}," * 200_000 + b"1]}"),
        ("chat", body("chat", logit_bias={str(n): "x" for n in range(100_000)})),
    ],
    ids=["mixed prompts", "empty token arrays", "messages", "tools", "logit_bias"],
)  # fmt: skip
def test_a_hundred_thousand_faults_make_one_short_answer(endpoint: Endpoint, raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(endpoint, raw)
    assert len(caught.value.body()) < 500


def kinds_of(kind: type[Part]) -> Iterator[type[Part]]:
    yield kind
    for each in kind.__subclasses__():
        yield from kinds_of(each)


def lists_in(node: Any, seen: set[int]) -> Iterator[dict[str, Any]]:
    """The rules for lists in a schema of pydantic-core."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, dict) and node.get("type") == "list":
        yield node
    if isinstance(node, dict):
        node = [each for name, each in node.items() if name != "json_schema_input_schema"]  # which judges nothing
    for each in node if isinstance(node, list | tuple) else ():
        yield from lists_in(each, seen)


def test_a_list_is_judged_by_its_first_fault() -> None:
    """The faults of 30,000 items, in 63 KB, took 145 ms of the event loop, and one is shown."""
    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    kinds = {*kinds_of(Part)}
    for kind in kinds:
        kind.model_rebuild()
    slow = {
        (kind.__name__, found["items_schema"]["type"])
        for kind in kinds
        for found in lists_in(kind.__pydantic_core_schema__, set())
        if found.get("items_schema", {"type": "any"})["type"] != "any"
        and not found.get("fail_fast")
        and found.get("max_length", 1000) > 128
    }
    assert slow == set()
