"""LiteLLM's translations between Responses, Messages and chat, beside ours: the same, but for the rows of a table.

The cases are the golden files (`translated.py`). Of streams the events are compared one by one, deltas that
follow each other as one; of chat, what the chunks are together. Each row of `DIFFERS` and `STREAMS_DIFFER` names the
places where both differ and why ours is right; a place without a row fails, and so does a row without a place.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.litellm_proxy import HOME
from tests.wings.translate import differences
from tests.wings.translate.differences import Row, places
from tests.wings.translate.translated import GOLDEN

SCRIPT = Path(__file__).parents[1] / "litellm_oracle.py"
CASES = [name for name, golden in GOLDEN.items() if "answer" in golden]
STREAMS = [name for name, golden in GOLDEN.items() if "chunks" in golden]
WITHIN_S = 120.0
"""It imports for ten seconds on a quiet machine."""
pytestmark = pytest.mark.timeout(150)


DIFFERS = (
    # Every way.
    Row(r"\w+ sent \.(max_tokens|max_completion_tokens)", "OpenAI deprecates max_tokens; reasoning models refuse it"),
    Row(r"responses sent \.(custom_llm_provider)", "an argument of LiteLLM's own call, not of the API"),
    # Messages, requests.
    Row(r"messages sent \.context_management",
        "chat has no such parameter; what it asks for is done here, by leaving earlier thinking out"),
    Row(r"messages sent \.messages\[\]\.(reasoning_content|thinking_blocks)",
        "thinking of earlier turns stays out, and blocks of Anthropic's make no sense to another model"),
    Row(r"messages sent \.messages\[\]\.content\[\]\.(file|image_url|type)", "a PDF is a file part, no picture"),
    Row(r"messages sent \.messages\[\]\.tool_calls\[\]\.function\.arguments", "the same JSON, without blanks"),
    Row(r"messages sent \.messages\[\]\.content",
        "chat allows text alone in a tool message: pictures of a result follow in a message of the user, and a failed "
        "tool says so; LiteLLM drops `is_error`. System blocks are one text"),
    Row(r"messages sent \.parallel_tool_calls", "disable_parallel_tool_use means it; LiteLLM drops it"),
    Row(r"messages sent \.reasoning_effort",
        "output_config.effort is passed on, which LiteLLM drops for a model that it does not know; a budget of 10,000 "
        "tokens is medium here"),
    Row(r"messages sent \.tools\[\]\.function\.(description|parameters\.input_examples)",
        "chat has no examples of inputs, and they are no keyword of JSON Schema: they stand in the description"),
    Row(r"messages sent \.response_format\.json_schema\.(name|schema\.required)",
        "the name is free; strict schemas name all members themselves, and LiteLLM adds an empty list"),
    Row(r"messages sent \.service_tier", "`auto` is the default, and other upstreams refuse the parameter"),
    # Messages, answers.
    Row(r"messages shown \.stop_(reason|sequence)",
        "vLLM names the stop sequence in `stop_reason` of the choice; LiteLLM does not read it"),
    Row(r"messages shown \.content\[\]\.signature", "the SDK's type of a signature is a string: empty, never null"),
    Row(r"messages shown \.usage\..*", "zeros, and thinking as part of the output, as Anthropic reports them"),
    # Responses, requests.
    Row(r"responses sent \.messages",
        "texts are one string; leading developer messages are in the system message; pictures in a tool's result "
        "follow in a message of the user; reasoning goes back within its turn only"),
    Row(r"responses sent \.messages\[\]\.content", "texts are one string"),
    Row(r"responses sent \.(prompt_cache_key|verbosity|logprobs|top_logprobs)", "chat has it, and LiteLLM drops it"),
    Row(r"responses sent \.stream", "what the client asked for; the library takes it apart from the request"),
    Row(r"responses sent \.(tools|web_search_options)",
        "local_shell is a function here, which LiteLLM drops; web search is not offered, and a header says so"),
    Row(r"responses sent \.tools\[\]\.function\.description", "none is none"),
    # Responses, answers.
    Row(r"responses shown \.output",
        "a refusal is a part of the message; LiteLLM's answer to it is empty"),
    Row(r"responses shown \.output\[\]\.(content\[\]\.(annotations|type)|role|summary)",
        "reasoning is an item with `reasoning_text`, as openai-python types it; LiteLLM writes output_text"),
    Row(r"responses shown \.output\[\]\.(action|arguments|type|name)", "a call of local_shell comes back as one"),
    Row(r"responses shown \.output\[\]\.input", "the input of a custom tool is its text, not the JSON around it"),
    Row(r"responses shown \.output\[\]\.content\[\]\.logprobs", "chat's log probabilities are passed on"),
    Row(r"responses shown \.(parallel_tool_calls|reasoning\..*|text\..*|truncation|background|store)",
        "the defaults of the API, as OpenAI answers them"),
    Row(r"responses shown \.(completed_at|created_at)", "the time of the answer"),
    Row(r"responses shown \.(reasoning|top_logprobs|prompt_cache_key)", "parameters come back in the answer"),
    Row(r"responses shown \.input_transformations", "what was left out of the input is named, as OpenAI does"),
    Row(r"responses shown \.tools(\[\].*)?", "as they were offered: LiteLLM names tools that it has dropped"),
    Row(r"responses shown \.usage\.\w+_details(\..*)?", "zeros without details: the SDK's type requires them"),
    # Chat on an upstream with Messages, requests.
    Row(r"anthropic sent \.model", "LiteLLM has to be asked for a model that it knows"),
    Row(r"anthropic sent \.output_(config|format)",
        "output_config has replaced output_format, and has the effort; a schema is passed on as it is"),
    Row(r"anthropic sent \.thinking", "an effort is passed on; LiteLLM makes a thinking budget of it"),
    Row(r"anthropic sent \.tools\[\]\.(strict|type)", "`custom` is the default type; LiteLLM drops `strict`"),
    Row(r"anthropic sent \.tools\[\]\.input_schema\.additionalProperties",
        "Anthropic refuses a strict tool whose objects leave it open; LiteLLM drops `strict`"),
    Row(r"anthropic sent \.(system|messages\[\]\.content)",
        "a later system message is in the system prompt, too; LiteLLM puts it into the words of the user"),
    Row(r"anthropic sent \.messages\[\]\.content\[\]\.(title|content)",
        "the name of a file is kept; the text of a tool's result is a block"),
    Row(r"anthropic sent \.service_tier", "chat's `default` is `standard_only`; LiteLLM refuses the parameter"),
    # The same, answers.
    Row(r"anthropic shown \.created", "the time of the answer"),
    Row(r"anthropic shown \.choices\[\]\.message\.provider_specific_fields", "an addition of LiteLLM's own"),
    Row(r"anthropic shown \.choices\[\]\.message\.(content|refusal)", "the words of a refusal are shown"),
    Row(r"anthropic shown \.choices\[\]\.message\.tool_calls\[\]\.(index|function\.arguments)",
        "the same JSON, without blanks; only streams have an index"),
    Row(r"anthropic shown \.usage\.(cache_\w+|\w+_details(\..*)?)",
        "the counts in OpenAI's members; LiteLLM has Anthropic's beside them"),
)  # fmt: skip
REFUSES = {
    "messages/plain-cut-by-limit": "the arguments of a tool that the limit cut are no JSON: the SDK's input is then "
    "empty here, and LiteLLM raises an error over an answer that is paid for",
}
"""Cases that LiteLLM does not translate, and what becomes of them here."""


@pytest.fixture(scope="module")
def theirs() -> dict[str, dict[str, Any]]:
    assert (HOME / "wanted").exists(), f"{HOME} is not there, and this test needs it: run `make servers`."
    nowhere = "http://127.0.0.1:9"
    cases = [
        {"way": name.partition("/")[0]}
        | {part: GOLDEN[name][part] for part in ("request", "answer", "chunks") if part in GOLDEN[name]}
        for name in (*CASES, *STREAMS)
    ]
    done = subprocess.run(
        [HOME / "bin" / "python", SCRIPT], input=json.dumps(cases), capture_output=True, text=True, timeout=WITHIN_S,
        check=False,
        env={
            **os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere,
            "NO_PROXY": "127.0.0.1",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip((*CASES, *STREAMS), json.loads(done.stdout.rpartition("\n")[2]), strict=True))


def found(theirs: dict[str, dict[str, Any]], name: str) -> list[str]:
    """The places of one case, of the request to the upstream (`sent`) and the client's answer (`shown`)."""
    way = name.partition("/")[0]
    return [
        f"{way} {side} {path}"
        for side in (("sent", "shown") if name in CASES else ("sent",))
        for path in places(GOLDEN[name][side], theirs[name][side])
    ]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_difference_is_explained(theirs: dict[str, dict[str, Any]], name: str) -> None:
    if name in REFUSES:
        assert theirs[name].keys() == {"error"}, REFUSES[name]
        return
    assert "error" not in theirs[name], theirs[name]
    assert not differences.unexplained(DIFFERS, found(theirs, name))


def test_every_row_is_of_a_difference(theirs: dict[str, dict[str, Any]]) -> None:
    every = [place for name in (*CASES, *STREAMS) if name not in REFUSES for place in found(theirs, name)]
    assert not differences.unused(DIFFERS, every)


# ----------------------------------------------------------------------------------------------------------- streams

_LIFE = r"responses response\.(created|in_progress|completed|incomplete) \.response\."
STREAMS_DIFFER = (
    # Messages.
    Row(r"messages message_start \.message\.model", "the model that answers, as the upstream names it"),
    Row(r"messages message_start \.message\.usage\.input_tokens", "an estimate: clients show it until the end"),
    Row(r"messages message_delta \.usage\.cache_\w+_input_tokens", "zeros, as Anthropic reports them"),
    Row(r"messages message_delta \.usage\.(input|output)_tokens",
        "the upstream reports nothing: each counts by a tokenizer of its own"),
    Row(r"messages -content_block_(start:thinking|delta:thinking_delta|stop)",
        "the client did not ask for thinking: it gets a ping instead"),
    Row(r"messages content_block_(start:text|delta:text_delta|stop) \.index", "no block of thinking stands before it"),
    # Chat on an upstream with Messages.
    Row(r"anthropic stream \.(refusal|role)", "the words of a refusal are shown; every stream begins with the role"),
    Row(r"anthropic stream \.calls\[\]\[\]", "a call without input has the arguments {}, as in a plain answer"),
    Row(r"anthropic stream \.usage\.(cost|cache_\w+|\w+_details(\..*)?)", "as of plain answers"),
    # Responses: the object at the beginning and at the end.
    Row(_LIFE + r"model", "the model that answers, as the upstream names it"),
    Row(_LIFE + r"(created_at|completed_at)", "the time of the answer"),
    Row(_LIFE + r"(background|store|truncation|metadata|top_p|text(\.format)?|reasoning|parallel_tool_calls)",
        "the defaults of the API, as OpenAI answers them, from the first event on; nothing is stored"),
    Row(_LIFE + r"usage\.(input|output|total)_tokens",
        "the upstream reports nothing: each counts by a tokenizer of its own"),
    Row(_LIFE + r"usage\.\w+_details(\..*)?", "zeros without details: the SDK's type requires them"),
    Row(_LIFE + r"output\[\]\.(action|arguments|type|name|input|role|summary)", "as of plain answers"),
    Row(_LIFE + r"output\[\]\.content\[\]\.(annotations|type|logprobs|refusal|text)", "as of plain answers"),
    # Responses: texts.
    Row(r"responses response\.(output_text\.(delta|done)|content_part\.\w+:output_text) (\.part)?\.logprobs",
        "empty where there are none: the SDK's type requires it"),
    Row(r"responses response\.output_item\.done:message \.item\.content\[\]\.logprobs", "the same"),
    Row(r"responses response\.output_item\.done:message \.item\.status",
        "a message that the filter cut is incomplete, as in the last event"),
    # Responses: a refusal is a part of its own; LiteLLM's answer to it is empty.
    Row(r"responses \+response\.(refusal\.(delta|done)|content_part\.(added|done):refusal)", "a refusal is shown"),
    Row(r"responses -response\.(output_text\.done|content_part\.(added|done):output_text)", "no text was said"),
    Row(r"responses response\.output_item\.done:message \.item\.content\[\]\.(annotations|refusal|text|type)",
        "a refusal is shown"),
    # Responses: reasoning.
    Row(r"responses response\.output_item\.added:reasoning \.item\.(content|summary)",
        "a list where there is none: the SDK's type requires it"),
    Row(r"responses [+-]response\.(reasoning_(summary_)?text\.\w+|content_part\.\w+:reasoning_text"
        r"|output_item\.done:reasoning)",
        "what the upstream thought is no summary: `reasoning_text`, which ends before the next item begins; LiteLLM "
        "never ends it"),
    # Responses: calls.
    Row(r"responses response\.function_call_arguments\.done \.name", "the SDK's type requires the name"),
    Row(r"responses [+-]response\.(output_item\.(added|done):(function|custom_tool|local_shell)_call"
        r"|(function_call_arguments|custom_tool_call_input)\.(delta|done))",
        "a message ends before the first call begins, which LiteLLM ends last; the input of a custom tool is streamed "
        "as its text, where LiteLLM streams the JSON around it; a local shell call comes back as one"),
)  # fmt: skip


def whole_chat(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the chunks of a chat are together."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [choice["delta"] for choice in choices]
    whole: dict[str, Any] = {
        name: "".join(delta.get(name) or "" for delta in deltas)
        for name in ("role", "content", "reasoning_content", "refusal")
    }  # fmt: skip
    thoughts = [block for delta in deltas for block in delta.get("thinking_blocks") or []]
    whole["signatures"] = [block["signature"] for block in thoughts if block.get("signature")]
    whole["ends"] = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    whole["usage"] = next((chunk["usage"] for chunk in chunks if chunk.get("usage")), None)
    calls: dict[int, list[str]] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls") or []):
        parts = (call.get("id"), call["function"].get("name"), call["function"].get("arguments"))
        known = calls.setdefault(call["index"], ["", "", ""])
        known[:] = [before + (part or "") for before, part in zip(known, parts, strict=True)]
    return whole | {"calls": list(calls.values())}


def stream_places(theirs: dict[str, dict[str, Any]], name: str) -> Iterator[str]:
    """Where the streams of one case differ."""
    if name.startswith("anthropic"):
        ours, others = (whole_chat(given[name]["shown"]) for given in (GOLDEN, theirs))
        return (f"anthropic stream {path}" for path in places(ours, others))
    return differences.stream_places(name.partition("/")[0], GOLDEN[name]["shown"], theirs[name]["shown"])


@pytest.mark.parametrize("name", STREAMS)
def test_every_difference_of_a_stream_is_explained(theirs: dict[str, dict[str, Any]], name: str) -> None:
    assert "error" not in theirs[name], theirs[name]
    assert not differences.unexplained(DIFFERS, found(theirs, name))
    assert not differences.unexplained(STREAMS_DIFFER, stream_places(theirs, name))


def test_every_row_is_of_a_difference_of_streams(theirs: dict[str, dict[str, Any]]) -> None:
    assert not differences.unused(STREAMS_DIFFER, [place for name in STREAMS for place in stream_places(theirs, name)])
