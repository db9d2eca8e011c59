"""What the gateway takes and refuses, as plain rows: the specification of the data plane's 400s.

The rules are tested with these rows directly (test_params.py); whatever speaks HTTP can send the very same bodies.
A row is either taken (`code` and `says` empty) or refused with status 400, this `param`, this `code` and a message that
holds `says`. `key` and `model` are the limits of the caller's key and of the model, as they stand in a configuration.
"""
# ruff: noqa: E501  (one row, one line, however long OpenAI's sentence is)

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.records import Endpoint

MODELS: Mapping[Endpoint, str] = {
    "completions": "gpt-3.5-turbo-instruct",
    "chat": "gpt-4o-mini",
    "embeddings": "text-embedding-3-small",
}
SMALLEST: Mapping[Endpoint, dict[str, Any]] = {
    "completions": {"model": MODELS["completions"], "prompt": "Say this is a test"},
    "chat": {"model": MODELS["chat"], "messages": [{"role": "user", "content": "Say this is a test"}]},
    "embeddings": {"model": MODELS["embeddings"], "input": "Say this is a test"},
}

OMIT = object()
"""Leaves out a member of the smallest body."""


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    endpoint: Endpoint
    raw: bytes
    param: str | None = None
    code: str | None = None
    says: str = ""
    key: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_taken(self) -> bool:
        return not self.says


def body(endpoint: Endpoint, **changes: Any) -> bytes:
    """The smallest body of this endpoint with these members set, or left out."""
    members = SMALLEST[endpoint] | changes
    return json.dumps({name: value for name, value in members.items() if value is not OMIT}).encode()


def _id(endpoint: str, changes: Mapping[str, Any], note: str) -> str:
    shown = " ".join(
        f"{name} left out" if value is OMIT else f"{name}={json.dumps(value)}" for name, value in changes.items()
    )
    return f"{endpoint}: " + (note or (shown if len(shown) <= 80 else shown[:80] + "..."))


def taken(endpoint: Endpoint, note: str = "", **changes: Any) -> Row:
    return Row(_id(endpoint, changes, note), endpoint, body(endpoint, **changes))


def refused(endpoint: Endpoint, param: str | None, code: str | None, says: str, note: str = "", **changes: Any) -> Row:
    return Row(_id(endpoint, changes, note), endpoint, body(endpoint, **changes), param, code, says)


def sent(
    endpoint: Endpoint, note: str, raw: bytes | str, param: str | None = None, code: str | None = None, says: str = ""
) -> Row:
    """A body that no JSON library would write."""
    return Row(f"{endpoint}: {note}", endpoint, raw if isinstance(raw, bytes) else raw.encode(), param, code, says)


def limited(
    endpoint: Endpoint,
    key: Mapping[str, Any],
    model: Mapping[str, Any],
    param: str | None,
    code: str | None,
    says: str,
    **changes: Any,
) -> Row:
    limits = " ".join(f"{owner} limits {json.dumps(what)}" for owner, what in (("key", key), ("model", model)) if what)
    name = _id(endpoint, changes, "") + " with " + limits
    return Row(name, endpoint, body(endpoint, **changes), param, code, says, key, model)


def inside(endpoint: Endpoint, more: str) -> str:
    """The smallest body with this text as its last members."""
    return body(endpoint).decode()[:-1] + ", " + more + "}"


def tool(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"}} | changes


def message(**changes: Any) -> list[dict[str, Any]]:
    members = {"role": "user", "content": "hi"} | changes
    return [{name: value for name, value in members.items() if value is not OMIT}]


def only(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


MAX = "integer_above_max_value"
MIN = "integer_below_min_value"
DMAX = "decimal_above_max_value"
DMIN = "decimal_below_min_value"
TYPE = "invalid_type"
VALUE = "invalid_value"
LONG = "array_above_max_length"
EMPTY = "empty_array"
MISSING = "missing_required_parameter"
UNKNOWN = "unknown_parameter"
TWICE = "duplicate_parameter"
DENIED = "unsupported_parameter"

NOT_JSON = "We could not parse the JSON body of your request."
NO_MODEL = "Missing required parameter: 'model'."

_INPUTS = "one of a string, array of strings, array of integers or array of integer arrays"

# fmt: off
ROWS: list[Row] = [
    # ---- the smallest bodies, and what every endpoint needs
    taken("completions", "the smallest body"),
    taken("chat", "the smallest body"),
    taken("embeddings", "the smallest body"),
    *(row for endpoint in MODELS for row in (
        refused(endpoint, "model", MISSING, NO_MODEL, model=OMIT),
        refused(endpoint, "model", TYPE, "Invalid type for 'model': expected a string, but got null instead.", model=None),
        refused(endpoint, "model", TYPE, "expected a string, but got an integer instead.", model=5),
        refused(endpoint, "model", TYPE, "expected a string, but got an array instead.", model=["a"]),
        refused(endpoint, "model", "empty_string", "Invalid 'model': empty string. Expected a string with minimum length 1, but got an empty string instead.", model=""),
        refused(endpoint, "model", "string_above_max_length", "Invalid 'model': string too long. Expected a string with maximum length 256, but got a string with length 257 instead.", model="m" * 257),
        taken(endpoint, "unknown parameters pass", top_k=40, min_p="x", anything={"at": ["all"]}),
        taken(endpoint, user="user-1234"),
        refused(endpoint, "user", TYPE, "expected a string, but got an integer instead.", user=1),
        sent(endpoint, "whitespace everywhere", b" \r\n\t" + body(endpoint).replace(b": ", b"\n:\t") + b"\n\n"),
    )),
    refused("completions", "prompt", MISSING, "Missing required parameter: 'prompt'.", prompt=OMIT),
    refused("chat", "messages", MISSING, "Missing required parameter: 'messages'.", messages=OMIT),
    refused("embeddings", "input", MISSING, "Missing required parameter: 'input'.", input=OMIT),
    refused("chat", "messages", MISSING, "Missing required parameter: 'messages'. The body has 'input', which belongs to POST /v1/responses.", messages=OMIT, input=[{"role": "user", "content": "Hi"}]),
    refused("completions", "prompt", MISSING, "which belongs to POST /v1/chat/completions.", prompt=OMIT, messages=[{"role": "user", "content": "Hi"}]),

    # ---- completions and chat: ranges
    *(row for endpoint in ("completions", "chat") for row in (
        taken(endpoint, n=1),
        taken(endpoint, n=128),
        taken(endpoint, n=None),
        refused(endpoint, "n", MIN, "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.", n=0),
        refused(endpoint, "n", MIN, "but got -1 instead.", n=-1),
        refused(endpoint, "n", MAX, "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 129 instead.", n=129),
        refused(endpoint, "n", MAX, "but got a number of 1000 digits instead.", "an n of 1000 digits", n=10**999),
        refused(endpoint, "n", MIN, "but got a number of 1000 digits instead.", "a negative n of 1000 digits", n=-(10**999)),
        refused(endpoint, "n", TYPE, "Invalid type for 'n': expected an integer, but got a string instead.", n="2"),
        refused(endpoint, "n", TYPE, "expected an integer, but got a boolean instead.", n=True),
        refused(endpoint, "n", TYPE, "expected an integer, but got a decimal number instead.", n=1.5),
        refused(endpoint, "n", TYPE, "expected an integer, but got a decimal number instead.", n=2.0),
        refused(endpoint, "n", TYPE, "expected an integer, but got an object instead.", n={}),
        refused(endpoint, "n", TYPE, "expected an integer, but got an array instead.", n=[2]),
        sent(endpoint, "n=1e0", inside(endpoint, '"n": 1e0'), "n", TYPE, "expected an integer, but got a decimal number instead."),

        taken(endpoint, max_tokens=0),
        taken(endpoint, max_tokens=2147483647),
        taken(endpoint, max_tokens=None),
        taken(endpoint, max_tokens=5, max_completion_tokens=7),
        refused(endpoint, "max_tokens", MIN, "Expected a value >= 0, but got -1 instead.", max_tokens=-1),
        refused(endpoint, "max_tokens", MAX, "Expected a value <= 2147483647, but got 2147483648 instead.", max_tokens=2147483648),
        refused(endpoint, "max_tokens", TYPE, "expected an integer, but got a decimal number instead.", max_tokens=16.5),
        refused(endpoint, "max_tokens", TYPE, "expected an integer, but got a boolean instead.", max_tokens=False),
        refused(endpoint, "max_completion_tokens", MIN, "Expected a value >= 0, but got -1 instead.", max_completion_tokens=-1),
        refused(endpoint, "max_completion_tokens", TYPE, "expected an integer, but got a string instead.", max_completion_tokens="16"),

        taken(endpoint, temperature=0),
        taken(endpoint, temperature=2),
        taken(endpoint, temperature=2.0),
        taken(endpoint, temperature=None),
        refused(endpoint, "temperature", DMAX, "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 200 instead.", temperature=200),
        refused(endpoint, "temperature", DMAX, "Expected a value <= 2, but got 2.1 instead.", temperature=2.1),
        refused(endpoint, "temperature", DMIN, "Invalid 'temperature': decimal below minimum value. Expected a value >= 0, but got -0.1 instead.", temperature=-0.1),
        refused(endpoint, "temperature", TYPE, "Invalid type for 'temperature': expected a decimal, but got a string instead.", temperature="1"),
        refused(endpoint, "temperature", TYPE, "expected a decimal, but got a boolean instead.", temperature=True),
        refused(endpoint, "temperature", TYPE, "expected a decimal, but got a number of 401 digits instead.", "a temperature of 401 digits", temperature=10**400),
        sent(endpoint, "temperature is NaN", inside(endpoint, '"temperature": NaN'), says="NaN is not a JSON value"),
        sent(endpoint, "temperature is -Infinity", inside(endpoint, '"temperature": -Infinity'), says="-Infinity is not a JSON value"),
        sent(endpoint, "temperature is 1e999", inside(endpoint, '"temperature": 1e999'), says="A number is too large"),
        sent(endpoint, "temperature is 1e-999, which is 0", inside(endpoint, '"temperature": 1e-999')),

        taken(endpoint, top_p=0),
        taken(endpoint, top_p=1),
        refused(endpoint, "top_p", DMAX, "Expected a value <= 1, but got 1.01 instead.", top_p=1.01),
        refused(endpoint, "top_p", DMIN, "Expected a value >= 0, but got -1 instead.", top_p=-1),
        refused(endpoint, "top_p", TYPE, "expected a decimal, but got an object instead.", top_p={}),
        *(row for penalty in ("frequency_penalty", "presence_penalty") for row in (
            taken(endpoint, **only(penalty, -2)),
            taken(endpoint, **only(penalty, 2)),
            refused(endpoint, penalty, DMAX, "Expected a value <= 2, but got 2.5 instead.", **only(penalty, 2.5)),
            refused(endpoint, penalty, DMIN, "Expected a value >= -2, but got -2.5 instead.", **only(penalty, -2.5)),
            refused(endpoint, penalty, TYPE, "expected a decimal, but got an array instead.", **only(penalty, [])),
        )),

        taken(endpoint, logit_bias={}),
        taken(endpoint, logit_bias=None),
        taken(endpoint, logit_bias={"50256": -100, "foo": 0, "": 99.5, "7": 100, "8": -0.25, "9": 1e-3}),
        refused(endpoint, "logit_bias.50256", DMAX, "Expected a value <= 100, but got 101 instead.", logit_bias={"50256": 101}),
        refused(endpoint, "logit_bias.50256", DMIN, "Expected a value >= -100, but got -100.5 instead.", logit_bias={"1": 0, "50256": -100.5}),
        refused(endpoint, "logit_bias.5", TYPE, "expected a decimal, but got a string instead.", logit_bias={"5": "1"}),
        refused(endpoint, "logit_bias.5", TYPE, "expected a decimal, but got null instead.", logit_bias={"5": None}),
        refused(endpoint, "logit_bias", TYPE, "Invalid type for 'logit_bias': expected a decimal, but got a boolean instead.", logit_bias={"my secret": True}),
        refused(endpoint, "logit_bias", TYPE, "expected an object, but got an array instead.", logit_bias=[1]),

        taken(endpoint, seed=9223372036854775807),
        taken(endpoint, "the seed that JavaScript makes of 2**63 - 1", seed=9223372036854775808),
        taken(endpoint, seed=-9223372036854775808),
        refused(endpoint, "seed", MAX, "but got 9223372036854775809 instead.", seed=9223372036854775809),
        refused(endpoint, "seed", MIN, "but got -9223372036854775809 instead.", seed=-9223372036854775809),
        refused(endpoint, "seed", TYPE, "expected an integer, but got a decimal number instead.", seed=1.0),

        taken(endpoint, stop="\n"),
        taken(endpoint, stop=""),
        taken(endpoint, stop=None),
        taken(endpoint, stop=["a", "b", "c", "d"]),
        refused(endpoint, "stop", LONG, "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 5 instead.", stop=["a"] * 5),
        refused(endpoint, "stop", EMPTY, "Invalid 'stop': empty array. Expected an array with minimum length 1, but got an empty array instead.", stop=[]),
        refused(endpoint, "stop[1]", TYPE, "expected a string, but got an integer instead.", stop=["a", 5]),
        refused(endpoint, "stop", TYPE, "Invalid type for 'stop': expected one of a string or array of strings, but got an integer instead.", stop=5),
        refused(endpoint, "stop", TYPE, "but got an object instead.", stop={"a": "b"}),

        taken(endpoint, stream=True),
        taken(endpoint, stream=None),
        refused(endpoint, "stream", TYPE, "Invalid type for 'stream': expected a boolean, but got a string instead.", stream="true"),
        refused(endpoint, "stream", TYPE, "expected a boolean, but got an integer instead.", stream=1),
        taken(endpoint, stream=True, stream_options={"include_usage": True, "include_obfuscation": False}),
        taken(endpoint, "stream_options without stream", stream=False, stream_options={"include_usage": True}),
        taken(endpoint, stream_options=None),
        taken(endpoint, stream_options={"something_new": 1}),
        refused(endpoint, "stream_options", TYPE, "expected an object, but got a boolean instead.", stream_options=True),
        refused(endpoint, "stream_options.include_usage", TYPE, "expected a boolean, but got an integer instead.", stream_options={"include_usage": 1}),
        refused(endpoint, "stream_options.include_obfuscation", TYPE, "expected a boolean, but got a string instead.", stream_options={"include_obfuscation": "no"}),
    )),

    # ---- completions
    taken("completions", prompt=""),
    taken("completions", prompt=None),
    taken("completions", prompt=["a", ""]),
    taken("completions", prompt=[1212, 318, 257]),
    taken("completions", prompt=[[1212, 318], [0]]),
    taken("completions", "2048 prompts", prompt=["a"] * 2048),
    refused("completions", "prompt", LONG, "Expected an array with maximum length 2048, but got an array with length 2049 instead.", "2049 prompts", prompt=["a"] * 2049),
    refused("completions", "prompt", LONG, "Expected an array with maximum length 2048, but got an array with length 2049 instead.", "2049 token prompts", prompt=[[1]] * 2049),
    taken("completions", "one prompt of 5000 tokens", prompt=[1] * 5000),
    refused("completions", "prompt", EMPTY, "Invalid 'prompt': empty array.", prompt=[]),
    refused("completions", "prompt[0]", EMPTY, "Invalid 'prompt[0]': empty array.", prompt=[[]]),
    refused("completions", "prompt[1]", TYPE, "expected a string, but got an integer instead.", prompt=["a", 1]),
    refused("completions", "prompt[1]", TYPE, "expected an integer, but got a string instead.", prompt=[1, "a"]),
    refused("completions", "prompt[1]", TYPE, "expected an array, but got a string instead.", prompt=[[1], "a"]),
    refused("completions", "prompt[1][0]", TYPE, "expected an integer, but got a boolean instead.", prompt=[[1], [True]]),
    refused("completions", "prompt[0]", TYPE, "expected a string, but got a boolean instead.", prompt=[True]),
    refused("completions", "prompt[0]", TYPE, "expected a string, but got null instead.", prompt=[None]),
    refused("completions", "prompt[1]", MIN, "Expected a value >= 0, but got -5 instead.", prompt=[1, -5]),
    refused("completions", "prompt", TYPE, f"expected {_INPUTS}, but got an integer instead.", prompt=5),
    refused("completions", "prompt", TYPE, "but got an object instead.", prompt={}),
    taken("completions", "2048 choices", prompt=["a"] * 16, n=128),
    refused("completions", "n", VALUE, "'n' (currently 128) times the number of prompts (currently 17) must be at most 2048", "2176 choices", prompt=["a"] * 17, n=128),

    taken("completions", best_of=0),
    taken("completions", best_of=0, n=3),
    taken("completions", best_of=1),
    taken("completions", best_of=20),
    taken("completions", best_of=None, n=3),
    taken("completions", best_of=3, n=3),
    taken("completions", best_of=1, stream=True),
    refused("completions", "best_of", MAX, "Expected a value <= 20, but got 21 instead.", best_of=21),
    refused("completions", "best_of", MIN, "Expected a value >= 0, but got -1 instead.", best_of=-1),
    refused("completions", "best_of", TYPE, "expected an integer, but got a string instead.", best_of="3"),
    refused("completions", "best_of", None, "(HINT: you must set 'n' (currently 3) to be at most 'best_of' (currently 2)", best_of=2, n=3),
    refused("completions", "best_of", None, "(currently 1)", best_of=1, n=2),
    refused("completions", "best_of", VALUE, "cannot be streamed", best_of=2, stream=True),

    taken("completions", logprobs=0),
    taken("completions", logprobs=5),
    taken("completions", logprobs=None),
    refused("completions", "logprobs", MAX, "Expected a value <= 5, but got 6 instead.", logprobs=6),
    refused("completions", "logprobs", MIN, "Expected a value >= 0, but got -1 instead.", logprobs=-1),
    refused("completions", "logprobs", TYPE, "expected an integer, but got a boolean instead.", logprobs=True),

    taken("completions", echo=True),
    taken("completions", echo=None),
    refused("completions", "echo", TYPE, "expected a boolean, but got an integer instead.", echo=1),
    taken("completions", suffix="end."),
    taken("completions", suffix=None),
    refused("completions", "suffix", TYPE, "expected a string, but got an array instead.", suffix=["end"]),
    refused("completions", "user", TYPE, "expected a string, but got null instead.", user=None),
    taken("completions", "parameters of chat pass", tools="x", messages=1, top_logprobs=99),

    # ---- chat
    taken("chat", messages=message(role="developer", content=[{"type": "text", "text": "hi"}])),
    taken("chat", messages=message(role="assistant", content=None, tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}])),
    taken("chat", messages=message(role="tool", tool_call_id="c", content="")),
    taken("chat", messages=message(content=OMIT)),
    taken("chat", "fields and parts that OpenAI does not have", messages=message(reasoning_content="hm", prefix=True, content=[{"type": "video_url", "video_url": 5}, 7])),
    refused("chat", "messages", EMPTY, "Invalid 'messages': empty array.", messages=[]),
    refused("chat", "messages", TYPE, "expected an array, but got a string instead.", messages="hi"),
    refused("chat", "messages", TYPE, "expected an array, but got null instead.", messages=None),
    refused("chat", "messages[0]", TYPE, "expected an object, but got a string instead.", messages=["hi"]),
    refused("chat", "messages[1]", TYPE, "expected an object, but got null instead.", messages=[*message(), None]),
    refused("chat", "messages[0].role", MISSING, "Missing required parameter: 'messages[0].role'.", messages=message(role=OMIT)),
    refused("chat", "messages[0].role", TYPE, "expected a string, but got null instead.", messages=message(role=None)),
    refused("chat", "messages[0].role", "empty_string", "Invalid 'messages[0].role': empty string.", messages=message(role="")),
    refused("chat", "messages[1].content", TYPE, "Invalid type for 'messages[1].content': expected one of a string or array of objects, but got an integer instead.", messages=message() + message(content=5)),
    refused("chat", "messages[0].content", TYPE, "but got an object instead.", messages=message(content={"type": "text", "text": "hi"})),

    taken("chat", logprobs=True),
    taken("chat", logprobs=None),
    taken("chat", logprobs=True, top_logprobs=0),
    taken("chat", logprobs=True, top_logprobs=20),
    taken("chat", top_logprobs=None),
    refused("chat", "logprobs", TYPE, "expected a boolean, but got an integer instead.", logprobs=5),
    refused("chat", "top_logprobs", MAX, "Expected a value <= 20, but got 21 instead.", logprobs=True, top_logprobs=21),
    refused("chat", "top_logprobs", MIN, "Expected a value >= 0, but got -1 instead.", logprobs=True, top_logprobs=-1),
    refused("chat", "top_logprobs", VALUE, "It is only allowed when 'logprobs' is true.", top_logprobs=3),
    refused("chat", "top_logprobs", VALUE, "It is only allowed when 'logprobs' is true.", logprobs=False, top_logprobs=3),

    taken("chat", tools=[tool()]),
    taken("chat", tools=[]),
    taken("chat", tools=None),
    taken("chat", tools=[{"type": "custom", "custom": {"name": "f"}}]),
    taken("chat", "1024 tools", tools=[tool()] * 1024),
    refused("chat", "tools", LONG, "Expected an array with maximum length 1024, but got an array with length 1025 instead.", "1025 tools", tools=[tool()] * 1025),
    refused("chat", "tools", TYPE, "expected an array, but got an object instead.", tools=tool()),
    refused("chat", "tools[0]", TYPE, "expected an object, but got a string instead.", tools=["f"]),
    refused("chat", "tools[0].type", MISSING, "Missing required parameter: 'tools[0].type'.", tools=[{"function": {"name": "f"}}]),
    refused("chat", "tools[0].type", TYPE, "expected a string, but got an integer instead.", tools=[tool(type=1)]),
    refused("chat", "tools[1].function", MISSING, "Missing required parameter: 'tools[1].function'.", tools=[tool(), {"type": "function"}]),
    refused("chat", "tools[0].function", TYPE, "expected an object, but got a string instead.", tools=[tool(function="f")]),
    refused("chat", "tools[0].function.name", MISSING, "Missing required parameter: 'tools[0].function.name'.", tools=[tool(function={})]),
    refused("chat", "tools[0].function.name", TYPE, "expected a string, but got null instead.", tools=[tool(function={"name": None})]),

    *(taken("chat", tool_choice=choice) for choice in ("none", "auto", "required", {"type": "function", "function": {"name": "f"}}, None)),
    refused("chat", "tool_choice", VALUE, "Invalid value for 'tool_choice'. Supported values are: 'none', 'auto' or 'required'.", tool_choice="any"),
    refused("chat", "tool_choice", TYPE, "expected one of a string or object, but got a boolean instead.", tool_choice=True),
    taken("chat", function_call="auto", functions=[{"name": "f"}]),
    taken("chat", function_call={"name": "f"}),
    refused("chat", "function_call", TYPE, "expected one of a string or object, but got an array instead.", function_call=[]),
    refused("chat", "functions", TYPE, "expected an array, but got an object instead.", functions={}),

    *(taken("chat", response_format={"type": kind}) for kind in ("text", "json_object", "json_schema", "of_the_future")),
    refused("chat", "response_format", TYPE, "expected an object, but got a string instead.", response_format="json_object"),
    refused("chat", "response_format.type", MISSING, "Missing required parameter: 'response_format.type'.", response_format={}),
    refused("chat", "response_format.type", TYPE, "expected a string, but got an integer instead.", response_format={"type": 1}),

    *(row for name, good, bad, expected in (
        ("parallel_tool_calls", False, "no", "a boolean"),
        ("store", True, 1, "a boolean"),
        ("reasoning_effort", "low", 3, "a string"),
        ("service_tier", "flex", True, "a string"),
        ("user", "user-1234", {}, "a string"),
        ("metadata", {"a": "b"}, "a=b", "an object"),
        ("modalities", ["text", "audio"], "text", "an array"),
    ) for row in (
        taken("chat", **only(name, good), max_tokens=1),
        taken("chat", **only(name, None), max_tokens=1),
        refused("chat", name, TYPE, f"Invalid type for '{name}': expected {expected}, but got ", **only(name, bad), max_tokens=1),
    )),
    taken("chat", "a best_of, which chat does not have, passes", best_of="many"),

    # ---- embeddings
    taken("embeddings", input=" "),
    taken("embeddings", input=["a", "b"]),
    taken("embeddings", input=[1212, 318]),
    taken("embeddings", input=[[1212], [318]]),
    taken("embeddings", "2048 inputs", input=["a"] * 2048),
    refused("embeddings", "input", LONG, "Expected an array with maximum length 2048, but got an array with length 2049 instead.", "2049 inputs", input=["a"] * 2049),
    refused("embeddings", "input", LONG, "Expected an array with maximum length 2048, but got an array with length 2049 instead.", "2049 tokens", input=[1] * 2049),
    refused("embeddings", "input", "empty_string", "Invalid 'input': empty string.", input=""),
    refused("embeddings", "input[1]", "empty_string", "Invalid 'input[1]': empty string.", input=["a", ""]),
    refused("embeddings", "input", EMPTY, "Invalid 'input': empty array.", input=[]),
    refused("embeddings", "input[0]", EMPTY, "Invalid 'input[0]': empty array.", input=[[]]),
    refused("embeddings", "input[1]", TYPE, "expected a string, but got an integer instead.", input=["a", 1]),
    refused("embeddings", "input[0]", MIN, "Expected a value >= 0, but got -1 instead.", input=[-1]),
    refused("embeddings", "input", TYPE, f"expected {_INPUTS}, but got null instead.", input=None),
    refused("embeddings", "input", TYPE, "but got a decimal number instead.", input=1.5),
    taken("embeddings", dimensions=1),
    taken("embeddings", dimensions=3072),
    refused("embeddings", "dimensions", MIN, "Expected a value >= 1, but got 0 instead.", dimensions=0),
    refused("embeddings", "dimensions", TYPE, "expected an integer, but got a string instead.", dimensions="256"),
    taken("embeddings", encoding_format="float"),
    taken("embeddings", encoding_format="base64"),
    refused("embeddings", "encoding_format", VALUE, "Supported values are: 'float' or 'base64'.", encoding_format="hex"),
    refused("embeddings", "encoding_format", TYPE, "expected a string, but got an integer instead.", encoding_format=1),
    taken("embeddings", "parameters of completions pass", n=0, stream="x", max_tokens=-1),

    # ---- names that are known ones but for their case
    refused("completions", "N", UNKNOWN, "Unknown parameter: 'N'. Did you mean 'n'?", N=128),
    refused("completions", "Best_Of", UNKNOWN, "Did you mean 'best_of'?", Best_Of=0),
    sent("completions", "stop with a long s", inside("completions", '"\u017ftop": "a"'), "\u017ftop", UNKNOWN, "Did you mean 'stop'?"),
    sent("completions", "max_tokens with a Kelvin sign", inside("completions", '"max_to\u212aens": 5'), "max_to\u212aens", UNKNOWN, "Did you mean 'max_tokens'?"),
    refused("completions", "Model", UNKNOWN, "Unknown parameter: 'Model'. Did you mean 'model'?", model=OMIT, Model="m"),
    refused("chat", "MESSAGES", UNKNOWN, "Did you mean 'messages'?", MESSAGES=[]),
    refused("chat", "stream_options.Include_Usage", UNKNOWN, "Unknown parameter: 'stream_options.Include_Usage'. Did you mean 'stream_options.include_usage'?", stream_options={"Include_Usage": True}),
    refused("embeddings", "Input", UNKNOWN, "Did you mean 'input'?", Input="a"),
    taken("embeddings", "other case of another endpoint's parameter", N=1, Stop="a"),
    sent("chat", "other case, written as an escape", inside("chat", r'"\u004e": 128'), "N", UNKNOWN, "Unknown parameter: 'N'."),

    # ---- duplicates
    sent("completions", "duplicate", inside("completions", '"n": 1, "n": 1'), "n", TWICE, "Duplicate parameter: 'n' is given more than once"),
    sent("completions", "duplicate, once as an escape", inside("completions", r'"n": 1, "\u006e": 1'), "n", TWICE, "'n' is given more than once"),
    sent("chat", "duplicate role", inside("chat", '"x": [{"role": 1, "role": 2}]'), "role", TWICE, "'role' is given more than once in the same object."),
    sent("chat", "duplicate deep inside", inside("chat", '"x": [[{"a": {"b": {"c": 1, "d": 2, "c": 3}}}]]'), "c", TWICE, "'c' is given more than once"),
    sent("chat", "duplicate of an empty name", inside("chat", '"": 1, "": 1'), "", TWICE, "'' is given more than once"),
    sent("chat", "duplicate with a long name", inside("chat", '"{0}": 1, "{0}": 1'.format("x" * 65)), None, TWICE, "One name is given more than once"),
    sent("chat", "duplicate with a control character", inside("chat", r'"a\u0007": 1, "a\u0007": 1'), None, TWICE, "One name is given more than once"),
    sent("chat", "the same name in two objects", inside("chat", '"x": [{"a": 1}, {"a": {"a": 2}}]')),

    # ---- what is not JSON
    sent("chat", "empty body", b"", says="The body is empty.)"),
    sent("chat", "blank body", b" \n\t\r ", says="The body is empty.)"),
    sent("chat", "array body", b"[]", says="The body has to be an object, but begins like an array at line 1, column 1.)"),
    sent("chat", "string body", b'"hello"', says="begins like a string"),
    sent("chat", "number body", b" -5", says="begins like a number at line 1, column 2."),
    sent("chat", "null body", b"null", says="begins like null"),
    sent("chat", "form body", b"model=x", says="Expecting an object at line 1, column 1.)"),
    sent("chat", "byte order mark", b"\xef\xbb\xbf" + body("chat")),
    sent("chat", "two byte order marks", b"\xef\xbb\xbf" * 2 + body("chat"), says=NOT_JSON),
    sent("chat", "UTF-16", body("chat").decode().encode("utf-16"), says="The body is not UTF-8"),
    sent("chat", "UTF-32 without mark", body("chat").decode().encode("utf-32-le"), says=NOT_JSON),
    sent("chat", "invalid UTF-8", b'{"model": "\xff"}', says="The body is not UTF-8: look at its byte 12.)"),
    sent("chat", "overlong UTF-8", b'{"model": "\xc0\x80"}', says="The body is not UTF-8"),
    sent("chat", "a surrogate in UTF-8", b'{"model": "\xed\xa0\x80"}', says="The body is not UTF-8"),
    sent("chat", "half a surrogate pair", inside("chat", r'"user": "\ud800"'), says="half of a surrogate pair"),
    sent("chat", "the other half", inside("chat", r'"user": "\uDC00x"'), says="half of a surrogate pair"),
    sent("chat", "two wrong halves", inside("chat", r'"user": "\udc00\ud800"'), says="half of a surrogate pair"),
    sent("chat", "half a pair in a name", inside("chat", r'"\ud83d": 1'), says="half of a surrogate pair"),
    sent("chat", "half a pair after an escaped backslash", inside("chat", r'"user": "\\ud83d\ude00"'), says="half of a surrogate pair"),
    sent("chat", "a whole pair", inside("chat", r'"user": "\ud83d\ude00 \\ud800 \u00e9"')),
    sent("chat", "NUL as an escape", inside("chat", r'"user": "\u0000"')),
    sent("chat", "control character in a string", inside("chat", '"user": "a\nb"'), says="Invalid control character at line 1, column "),
    sent("chat", "control character in a name", inside("chat", '"us\ter": "a"'), says="Invalid control character at line 1, column "),
    sent("chat", "bad escape", inside("chat", r'"user": "\x41"'), says="Invalid \\escape at line 1, column "),
    sent("chat", "trailing text", body("chat") + b" x", says="There is something after the end of the object at line 1, column "),
    sent("chat", "two objects", body("chat") * 2, says="There is something after the end of the object"),
    sent("chat", "trailing NUL", body("chat") + b"\0", says="There is something after the end of the object"),
    sent("chat", "trailing comma", b'{"model": "m",}', says="Expecting a name in double quotes at line 1, column 15.)"),
    sent("chat", "comma first", b"{,}", says="Expecting a name in double quotes at line 1, column 2.)"),
    sent("chat", "no comma", b'{"model": "m"\n "n": 1}', says="Expecting ',' or '}' at line 2, column 2.)"),
    sent("chat", "no colon", b'{"model" "m"}', says="Expecting ':' after a name at line 1, column 9.)"),
    sent("chat", "no value", b'{"model": }', says="Expecting value at line 1, column 11.)"),
    sent("chat", "no end", b'{"model": "m"', says="The object has no end at line 1, column 14.)"),
    sent("chat", "only a brace", b"{", says="Expecting a name in double quotes at line 1, column 2.)"),
    sent("chat", "unfinished string", b'{"model": "m', says="Unterminated string at line 1, column 11.)"),
    sent("chat", "comment", b'{"model": "m" /* x */}', says="Expecting ',' or '}'"),
    sent("chat", "single quotes", b"{'model': 'm'}", says="Expecting a name in double quotes"),
    sent("chat", "Python's None", b'{"model": None}', says="Expecting value"),
    sent("chat", "leading zero", b'{"model": 01}', says="Expecting ',' or '}'"),
    sent("chat", "plus sign", b'{"model": +1}', says="Expecting value"),
    sent("chat", "no-break space", '{"model":\u00a0"m"}', says="Expecting value"),
    sent("chat", "an integer of 4301 digits", inside("chat", '"x": ' + "1" * 4301), says="A number has too many digits"),
    sent("chat", "an integer of 4300 digits", inside("chat", '"x": ' + "1" * 4300)),
    sent("chat", "a decimal of many digits", inside("chat", '"x": 1.' + "1" * 9000)),
    sent("chat", "NaN deep inside", inside("chat", '"x": [{"a": NaN}]'), says="NaN is not a JSON value"),
    sent("chat", "-1e400 deep inside", inside("chat", '"x": [{"a": -1e400}]'), says="A number is too large"),
    sent("chat", "256 levels", inside("chat", '"x": ' + "[" * 255 + "]" * 255)),
    sent("chat", "257 levels", inside("chat", '"x": ' + "[" * 256 + "]" * 256), says="nested more than 256 deep"),
    sent("chat", "257 levels of objects", inside("chat", '"x": ' + '{"a":' * 256 + "1" + "}" * 256), says="nested more than 256 deep"),
    sent("chat", "100,000 levels", b"[" * 100_000, says="nested more than 256 deep"),
    sent("chat", "100,000 levels inside", inside("chat", '"x": ' + "[" * 100_000), says="nested more than 256 deep"),
    sent("chat", "brackets in a string are not levels", inside("chat", '"user": "' + "[{" * 1000 + r'\"[' * 1000 + r'\\"')),
    sent("chat", "many brackets, none of them deep", inside("chat", '"x": [' + "[],{}," * 1000 + "0]")),

    # ---- limits of the key and of the model
    limited("completions", {"n": 4}, {}, None, None, "", n=4),
    limited("completions", {"n": 4}, {}, "n", MAX, "Invalid 'n': integer above maximum value. This key allows a value <= 4, but got 8 instead.", n=8),
    limited("chat", {}, {"n": 4}, "n", MAX, "This model allows a value <= 4, but got 5 instead.", n=5),
    limited("chat", {"n": 4}, {"n": 2}, "n", MAX, "This model allows a value <= 2, but got 3 instead.", n=3),
    limited("chat", {"n": 4}, {"n": 2}, "n", MAX, "This key allows a value <= 4, but got 5 instead.", n=5),
    limited("chat", {"n": 4}, {}, "n", MAX, "Expected a value <= 128, but got 129 instead.", n=129),
    limited("completions", {"best_of": 2}, {}, None, None, "", best_of=2),
    limited("completions", {"best_of": 2}, {}, None, None, "", best_of=0),
    limited("completions", {"best_of": 2}, {}, "best_of", MAX, "This key allows a value <= 2, but got 3 instead.", best_of=3),
    limited("chat", {"best_of": 2}, {}, "best_of", MAX, "This key allows a value <= 2, but got 3 instead.", best_of=3),
    limited("completions", {"logprobs": 2}, {}, None, None, "", logprobs=2),
    limited("completions", {"logprobs": 2}, {}, "logprobs", MAX, "This key allows a value <= 2, but got 3 instead.", logprobs=3),
    limited("completions", {"logprobs": 0}, {}, "logprobs", MAX, "This key allows a value <= 0, but got 1 instead.", logprobs=1),
    limited("chat", {"logprobs": 2}, {}, None, None, "", logprobs=True, top_logprobs=2),
    limited("chat", {"logprobs": 0}, {}, None, None, "", logprobs=True),
    limited("chat", {"logprobs": 2}, {}, "top_logprobs", MAX, "This key allows a value <= 2, but got 3 instead.", logprobs=True, top_logprobs=3),
    limited("chat", {"stop": 1}, {}, None, None, "", stop="a"),
    limited("chat", {"stop": 1}, {}, None, None, "", stop=["a"]),
    limited("chat", {"stop": 1}, {}, "stop", LONG, "Invalid 'stop': array too long. This key allows an array with maximum length 1, but got an array with length 2 instead.", stop=["a", "b"]),
    limited("completions", {"stop": 0}, {}, "stop", LONG, "This key allows an array with maximum length 0, but got an array with length 1 instead.", stop="a"),
    limited("completions", {"stop": 0}, {}, None, None, "", stop=None),
    limited("completions", {"max_tokens": 100}, {}, None, None, "", max_tokens=100),
    limited("completions", {"max_tokens": 100}, {}, None, None, ""),
    limited("completions", {"max_tokens": 100}, {}, "max_tokens", MAX, "This key allows a value <= 100, but got 101 instead.", max_tokens=101),
    limited("chat", {"max_tokens": 100}, {}, "max_completion_tokens", MAX, "This key allows a value <= 100, but got 101 instead.", max_completion_tokens=101),
    limited("chat", {"max_tokens": 100}, {}, "max_completion_tokens", MAX, "but got 101 instead.", max_tokens=1, max_completion_tokens=101),
    limited("chat", {}, {"max_tokens": 100}, "max_tokens", MAX, "This model allows a value <= 100, but got 101 instead.", max_tokens=101, max_completion_tokens=1),
    limited("completions", {"max_tokens": 100}, {}, "max_completion_tokens", MAX, "This key allows a value <= 100, but got 101 instead.", max_completion_tokens=101),
    limited("chat", {"deny": ["service_tier"]}, {}, None, None, "", store=True),
    limited("chat", {"deny": ["service_tier"]}, {}, "service_tier", DENIED, "Unsupported parameter: 'service_tier' is not allowed with this key.", service_tier="flex"),
    limited("completions", {"deny": ["service_tier"]}, {}, "Service_Tier", DENIED, "'Service_Tier' is not allowed with this key.", Service_Tier="flex"),
    limited("embeddings", {}, {"deny": ["dimensions"]}, "dimensions", DENIED, "'dimensions' is not allowed with this model.", dimensions=5),
    limited("chat", {"deny": ["seed", "logit_bias"]}, {}, "logit_bias", DENIED, "'logit_bias' is not allowed", logit_bias={}, seed=1),
]
# fmt: on
